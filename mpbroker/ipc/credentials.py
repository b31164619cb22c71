"""SCRAM credentials: as handlers ask for them, and as the coordinator publishes them to the processors.

The bulletin has a base and the deltas after it.
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


class CredentialBase(Struct, tag="base"):
    credentials: list[ScramImage]


class CredentialDelta(Struct, tag="delta"):
    """Credentials to put, and (user, mechanism) of those that are removed."""

    changed: list[ScramImage] = []
    removed: list[tuple[str, int]] = []


CredentialNews = CredentialBase | CredentialDelta
