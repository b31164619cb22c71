"""SCRAM credentials and delegation tokens: as handlers ask for them, and as processors get them.

The bulletin is a base, followed by deltas.
"""

from __future__ import annotations

from msgspec import Struct


class ScramImage(Struct, array_like=True):
    """The stored form of a password; it cannot be used to log in elsewhere. `mechanism` is Kafka's number."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


class TokenImage(Struct, array_like=True):
    """A delegation token as logins need it. `owner` is written `User:name`; the HMAC is its password."""

    token_id: str
    owner: str
    expires_ms: int
    hmac: bytes

    def __repr__(self) -> str:
        """Return a text without the HMAC."""
        return f"TokenImage({self.token_id}, owner={self.owner})"


class CredentialBase(Struct, tag="base"):
    credentials: list[ScramImage]
    tokens: list[TokenImage] = []


class CredentialDelta(Struct, tag="delta"):
    """Credentials and tokens to add or replace; (user, mechanism) and token ids of removed ones."""

    changed: list[ScramImage] = []
    removed: list[tuple[str, int]] = []
    tokens: list[TokenImage] = []
    removed_tokens: list[str] = []


CredentialNews = CredentialBase | CredentialDelta
