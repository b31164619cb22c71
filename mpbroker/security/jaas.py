"""Parser of `sasl.jaas.config`: one JAAS entry `LoginModule flag key="value" key=value;` (KIP-85).

As in Java's JaasConfig, words may be quoted, and in quotes a backslash escapes the next character. Comments
are not supported. Options may be secrets, so errors name keys and positions, never values.
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass, field

from mpbroker.config.keys import Secret

FLAGS = ("required", "requisite", "sufficient", "optional")
USER_PREFIX = "user_"

_TOKEN = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"'=;]+)|([=;]))""", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class JaasError(ValueError):
    """The text is not a JAAS entry. The message names the position, and shows no value."""


@dataclass(frozen=True)
class JaasEntry:
    module: str
    options: dict[str, str] = field(repr=False)


def parse_jaas(config: Secret) -> JaasEntry:
    """Parse the text of `sasl.jaas.config`. Raises JaasError."""
    tokens = _tokens(config.text)
    if len(tokens) < 2 or tokens[1][1].lower() not in FLAGS:
        raise JaasError(f"it must begin with a login module and one of {', '.join(FLAGS)}")
    options: dict[str, str] = {}
    at = 2
    while at < len(tokens) and tokens[at] != ("=", ";"):
        key = tokens[at][1]
        if at + 2 >= len(tokens) or tokens[at + 1] != ("=", "=") or tokens[at + 2][0] == "=":
            raise JaasError(f"option {len(options) + 1} is not key=value")
        if key in options:
            raise JaasError(f"option {key} comes twice")
        options[key] = tokens[at + 2][1]
        at += 3
    if at != len(tokens) - 1:
        raise JaasError("it must end with one ';'")
    return JaasEntry(tokens[0][1], options)


def _tokens(text: str) -> list[tuple[str, str]]:
    """Return the (kind, text) of each token: kind is "=" for the signs `=` and `;`, "w" for a word."""
    found: list[tuple[str, str]] = []
    at, text = 0, text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise JaasError(f"character {at + 1} begins a quoted text that does not end")
        quoted = match[1] if match[1] is not None else match[2]
        if match[4]:
            found.append(("=", match[4]))
        elif quoted is not None:
            found.append(("w", re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), quoted, flags=re.DOTALL)))
        else:
            found.append(("w", match[3]))
        at = match.end()
    return found


@dataclass(frozen=True)
class PlainUsers:
    """Users of PLAIN, from the options `user_<name>="<password>"`. (Kafka: PlainServerCallbackHandler.)"""

    passwords: dict[str, bytes] = field(repr=False)

    @classmethod
    def of(cls, entry: JaasEntry) -> PlainUsers:
        users = {
            key.removeprefix(USER_PREFIX): value.encode()
            for key, value in entry.options.items()
            if key.startswith(USER_PREFIX)
        }
        return cls(users)

    def check(self, user: str, password: str) -> bool:
        """Return whether the user exists and has this password.

        The time that it takes does not show where two passwords differ or whether the user exists.
        """
        expected = self.passwords.get(user)
        same = hmac.compare_digest(password.encode(), expected if expected is not None else b"\0")
        return same and expected is not None
