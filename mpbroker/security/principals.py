"""Principals, and the rules that map a certificate's subject to a principal (KIP-371, SslPrincipalMapper).

A rule is `RULE:pattern/replacement/[LU]` or `DEFAULT` (the unchanged subject). The first rule whose pattern
matches the whole subject applies. Patterns are regular expressions of Java; Python's `re` reads them the same
except for named groups and possessive quantifiers. In a replacement `$1` is a group, as in Java.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

USER = "User"


class Principal(NamedTuple):
    """A principal (Kafka: KafkaPrincipal). The type is always `User` in this broker."""

    name: str
    type: str = USER

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


def why_nobody(name: str) -> str | None:
    """Return why a principal cannot have this name, or None if it can.

    Sessions store names as UTF-8 with a terminating zero byte.
    """
    if not name:
        return "its name is empty"
    if "\0" in name:
        return "its name holds a zero byte"
    if any("\ud800" <= one <= "\udfff" for one in name):
        return "its name is not valid Unicode"
    return None


ANONYMOUS = Principal("ANONYMOUS")

# Rules are split as in Kafka's SslPrincipalMapper: pattern and replacement have no unescaped slash.
_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
_REFERENCE = re.compile(r"\\(.)|\$(\d)", re.DOTALL)


class RuleError(ValueError):
    """The text of ssl.principal.mapping.rules is not valid."""


class NoRuleMatches(ValueError):
    """No rule gives a certificate's subject a principal, so the client is refused."""


@dataclass(frozen=True)
class Rule:
    """A mapping rule. `pattern` None means DEFAULT. `case` is "L" (lower), "U" (upper) or "" (unchanged)."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def apply(self, subject: str) -> str | None:
        if self.pattern is None:
            return subject
        match = self.pattern.fullmatch(subject)
        if match is None:
            return None
        name = expand(self.replacement, match)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name


def expand(replacement: str, match: re.Match[str]) -> str:
    """Return a replacement with `$n` expanded to group n. A backslash makes the next character literal."""
    return _REFERENCE.sub(lambda found: found[1] or match[int(found[2])] or "", replacement)


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Parse ssl.principal.mapping.rules. Raises RuleError, which shows the wrong rule."""
    rules: list[Rule] = []
    at, text = 0, text.strip() or "DEFAULT"
    while at < len(text):
        found = _RULE.match(text, at)
        if found is None:
            raise RuleError(
                f"'{text[at:]}' is not a rule; write RULE:pattern/replacement/ (followed by L or U for lower "
                "or upper case) or DEFAULT"
            )
        if found[1]:
            rules.append(Rule())
        else:
            rules.append(_rule(found[2], found[3], found[4]))
        at = found.end()
    return tuple(rules)


def _rule(pattern: str, replacement: str, case: str) -> Rule:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise RuleError(f"'{pattern}' is not a pattern: {error}") from error
    groups = [int(found[2]) for found in _REFERENCE.finditer(replacement) if found[2]]
    if any(group > compiled.groups for group in groups):
        raise RuleError(f"'{replacement}' refers to a group that '{pattern}' lacks")
    return Rule(compiled, replacement, case)


def map_subject(rules: tuple[Rule, ...], subject: str) -> Principal:
    """Return the principal of a certificate's subject. Raises NoRuleMatches."""
    for rule in rules:
        if (name := rule.apply(subject)) is not None:
            if why := why_nobody(name):
                raise NoRuleMatches(f"ssl.principal.mapping.rules give {subject!r} no principal: {why}")
            return Principal(name)
    raise NoRuleMatches(f"No rules apply to {subject}, rules {len(rules)} in ssl.principal.mapping.rules")


def principal_of(text: str) -> Principal:
    """Return the principal that is written `User:name`."""
    kind, _, name = text.partition(":")
    return Principal(name, kind)
