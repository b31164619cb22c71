"""Delegation tokens (KIP-48): their HMACs, and the credentials for logins with tokens.

A client that knows a token's HMAC can log in as the token's owner with SCRAM: the user is the token's id, the
password is the HMAC in base64. The HMAC is computed from the id and the broker's secret; it is not stored.
(Kafka: DelegationTokenManager, DelegationTokenCache.)
"""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from mpbroker.config.keys import Secret
from mpbroker.security.scram import (
    ITERATIONS_MIN,
    SALT_BYTES,
    ScramCredential,
    ScramType,
    credential_of,
    salted_password,
)

HASH: Final = "sha512"
# Bytes of a token without its principals; their names count as they are.
TOKEN_BYTES: Final = 256
NAME_BYTES: Final = 8
# Ids of removed tokens that the index keeps, plus as many as there are tokens.
STALE_MAX: Final = 1000


@dataclass(frozen=True)
class Token:
    """A delegation token. Principals are written `User:name`, times are of the wall clock.

    `requester` has created the token. `max_ms` is the latest time to which the token can be renewed.
    """

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    max_ms: int
    expires_ms: int

    @cached_property
    def size_bytes(self) -> int:
        """Return the most bytes that the token takes in memory and in messages to the processors."""
        names = (self.owner, self.requester, *self.renewers)
        return TOKEN_BYTES + sum(NAME_BYTES + len(name.encode()) for name in names)

    @property
    def ends_ms(self) -> int:
        """Return the time (ms) from which the token cannot be used."""
        return min(self.max_ms, self.expires_ms)

    def has_expired(self, now_ms: int) -> bool:
        return self.ends_ms <= now_ms

    def may_be_renewed_by(self, principal: str) -> bool:
        return principal == self.owner or principal in self.renewers

    def concerns_any_of(self, principals: AbstractSet[str]) -> bool:
        """Return whether one of these principals is the token's owner, requester or a renewer."""
        return not principals.isdisjoint((self.owner, self.requester, *self.renewers))


class TokenMacs:
    """Computes the HMACs of tokens with a secret, and finds tokens by their HMACs."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret.text.encode()
        self._ids: dict[bytes, str] = {}
        self._indexed: set[str] = set()

    def of(self, token_id: str) -> bytes:
        return hmac.digest(self._secret, token_id.encode(), HASH)

    def find(self, mac: bytes, tokens: Mapping[str, Token]) -> Token | None:
        """Return the token with this HMAC, or None."""
        if len(self._indexed) > 2 * len(tokens) + STALE_MAX:
            self._ids.clear()
            self._indexed.clear()
        for token_id in tokens.keys() - self._indexed:
            self._ids[self.of(token_id)] = token_id
            self._indexed.add(token_id)
        return tokens.get(self._ids.get(mac, ""))


def token_macs(secret: Secret | None) -> TokenMacs | None:
    """Return the TokenMacs for delegation.token.secret.key; None if it is not set, which disables tokens."""
    return TokenMacs(secret) if secret is not None and secret.text else None


def credential_of_token(kind: ScramType, mac: bytes) -> ScramCredential:
    """Return the SCRAM credential of the token with this HMAC. The derivation takes some milliseconds."""
    salt = secrets.token_bytes(SALT_BYTES)
    password = base64.b64encode(mac).decode()
    return credential_of(kind, salted_password(kind, password, salt, ITERATIONS_MIN), salt, ITERATIONS_MIN)
