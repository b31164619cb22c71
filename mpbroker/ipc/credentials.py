"""SCRAM credentials and delegation tokens, as messages between processes have them.

The coordinator publishes them to the processors in a bulletin (`bulletin.py`): a base, followed by deltas.
"""

from __future__ import annotations

from msgspec import Struct


class ScramImage(Struct, array_like=True):
    """A user's credential: the stored form of a password. `mechanism` is Kafka's number of the mechanism."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


class TokenImage(Struct, array_like=True):
    """A delegation token, as far as a login needs it. `owner` is `User:name`; `hmac` is the password."""

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
    """Credentials and tokens to add or replace, and (user, mechanism) or token id of each one to remove."""

    changed: list[ScramImage] = []
    removed: list[tuple[str, int]] = []
    tokens: list[TokenImage] = []
    removed_tokens: list[str] = []


CredentialNews = CredentialBase | CredentialDelta
