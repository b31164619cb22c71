"""What the coordinator publishes to the processors: SCRAM credentials, as a base and the deltas after it."""

from __future__ import annotations

from msgspec import Struct


class ScramImage(Struct, array_like=True):
    """A credential; `mechanism` is Kafka's number."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


class CredentialBase(Struct, tag="base"):
    credentials: list[ScramImage]


class CredentialDelta(Struct, tag="delta"):
    """What to put, and (user, mechanism) of what is gone."""

    changed: list[ScramImage] = []
    removed: list[tuple[str, int]] = []


CredentialNews = CredentialBase | CredentialDelta
