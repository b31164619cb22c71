"""SASL OAUTHBEARER (RFC 7628; KIP-255, KIP-768): bearer tokens, either unsecured or signed.

An invalid token is answered with a JSON text in a *successful* SaslAuthenticate response. The client then
sends 0x01, and this is answered with the failure. `jwks` checks signatures.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

from mpbroker.security.mechanism import Mechanism, SaslFailed
from mpbroker.security.principals import Principal, why_nobody

_CLIENT_FIRST = re.compile(r"n,(?:a=(?P<authzid>[^,]*))?,\x01(?P<pairs>(?:[A-Za-z]+=[^\x01]*\x01)+)\x01")
_BEARER = re.compile(r"bearer ([A-Za-z0-9._~+/=-]+)", re.IGNORECASE)
_KVSEP = b"\x01"
_REFUSAL = '{"status":"invalid_token"}'
TOKEN_CHARACTERS_MAX = 64 << 10


class InvalidToken(ValueError):
    """The token is refused. The message contains no part of the token."""


class Token(NamedTuple):
    """The parts of a valid token that the broker uses: the user name and the time of expiry (wall clock)."""

    subject: str
    expires_ms: int


Validator: TypeAlias = Callable[[str, int], Token]
"""Checks a token's text at a time (wall clock, ms). Raises InvalidToken."""


@dataclass(frozen=True)
class ClaimRules:
    """Requirements on a token's claims. The clocks of issuer and broker may differ by `skew_ms`."""

    subject_claim: str = "sub"
    scope_claim: str = "scope"
    required_scope: frozenset[str] = frozenset()
    audience: frozenset[str] = frozenset()
    issuer: str | None = None
    skew_ms: int = 0

    def check(self, claims: dict[str, Any], now_ms: int) -> Token:
        """Check the claims; return the user name and the expiry. Raises InvalidToken."""
        expires_ms = _time_ms(claims, "exp")
        if expires_ms is None:
            raise InvalidToken("it has no expiry (exp)")
        if now_ms >= expires_ms + self.skew_ms:
            raise InvalidToken("it has expired (exp)")
        for name in ("nbf", "iat"):
            begins_ms = _time_ms(claims, name)
            if begins_ms is not None and now_ms < begins_ms - self.skew_ms:
                raise InvalidToken(f"it is not valid yet ({name})")
        subject = claims.get(self.subject_claim)
        if not isinstance(subject, str) or not subject.strip():
            raise InvalidToken(f"it names no user ({self.subject_claim})")
        if why := why_nobody(subject):
            raise InvalidToken(f"it names no user: {why} ({self.subject_claim})")
        if self.issuer is not None and claims.get("iss") != self.issuer:
            raise InvalidToken("it is from another issuer (iss)")
        if self.audience and not self.audience & _words(claims.get("aud")):
            raise InvalidToken("it is for another audience (aud)")
        if not self.required_scope <= _words(claims.get(self.scope_claim), " "):
            raise InvalidToken(f"its scope does not suffice ({self.scope_claim})")
        return Token(subject, expires_ms)


def _time_ms(claims: dict[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12:
        raise InvalidToken(f"its {name} is not a time")
    return int(value * 1000)


def _words(value: object, separator: str | None = None) -> frozenset[str]:
    """Return the strings of a claim, which is a list or one string, split at `separator` if given."""
    if isinstance(value, str):
        return frozenset(value.split(separator)) if separator else frozenset([value])
    if isinstance(value, list):
        return frozenset(one for one in value if isinstance(one, str))
    return frozenset()


def check_size(token: str) -> None:
    """Raise InvalidToken if a token is longer than any legitimate token."""
    if len(token) > TOKEN_CHARACTERS_MAX:
        raise InvalidToken(f"it has more than {TOKEN_CHARACTERS_MAX} characters")


def object_of(text: bytes) -> dict[str, Any]:
    """Parse the text of a JSON object. Raises InvalidToken."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidToken("it is not JSON") from error
    if not isinstance(value, dict):
        raise InvalidToken("it is not a JSON object")
    return value


def refuse_critical(header: dict[str, Any]) -> None:
    """Raise InvalidToken if a header has critical extensions, since none is supported (RFC 7515, 4.1.11)."""
    if "crit" in header:
        raise InvalidToken("it has extensions that are not understood (crit)")


def unsecured_validator(rules: ClaimRules) -> Validator:
    """Return a validator of unsigned tokens (`alg` is none). As in Kafka, it is meant for tests."""

    def validate(token: str, now_ms: int) -> Token:
        check_size(token)
        header, claims, signature = _split(token)
        fields = object_of(_decode(header))
        refuse_critical(fields)
        if fields.get("alg") != "none" or signature:
            raise InvalidToken("it is signed, and this listener only knows unsecured tokens")
        return rules.check(object_of(_decode(claims)), now_ms)

    return validate


def _split(token: str) -> tuple[str, str, str]:
    parts = token.split(".")
    if len(parts) != 3:
        raise InvalidToken("it has not three parts")
    return parts[0], parts[1], parts[2]


def _decode(segment: str) -> bytes:
    """Decode base64url without padding. Raises InvalidToken."""
    try:
        return base64.b64decode(segment + "=" * (-len(segment) % 4), altchars=b"-_", validate=True)
    except ValueError as error:
        raise InvalidToken("it is not base64") from error


class OAuthBearerServer(Mechanism):
    name: ClassVar[str] = "OAUTHBEARER"

    def __init__(self, validator: Validator, now_ms: Callable[[], int]) -> None:
        super().__init__()
        self._validate = validator
        self._now_ms = now_ms
        self._refused: str | None = None

    def step(self, token: bytes) -> bytes:
        if self._refused is not None:
            if token != _KVSEP:
                raise SaslFailed("no 0x01 after an invalid token")
            raise SaslFailed(f"invalid token: {self._refused}", _REFUSAL)
        if self.complete:
            raise SaslFailed("a message after the last one")
        try:
            text = token.decode("utf-8")
        except UnicodeDecodeError as error:
            raise SaslFailed("the message is not UTF-8") from error
        match = _CLIENT_FIRST.fullmatch(text)
        if match is None:
            raise SaslFailed("the client's message is malformed")
        bearer = [_BEARER.fullmatch(p[5:]) for p in match["pairs"].split("\x01") if p.startswith("auth=")]
        if len(bearer) != 1 or bearer[0] is None:
            raise SaslFailed("the client's message has no bearer token")
        try:
            believed = self._validate(bearer[0][1], self._now_ms())
        except InvalidToken as error:
            self._refused = str(error)
            return _REFUSAL.encode()
        if (match["authzid"] or "") not in ("", believed.subject):
            raise SaslFailed(
                "the client asked for another user's authorization id",
                "Authentication failed: Client requested an authorization id that is different from the "
                "token's principal name",
            )
        self.principal = Principal(believed.subject)
        self.expires_ms = believed.expires_ms
        return b""
