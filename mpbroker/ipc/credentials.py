"""SCRAM credentials: as handlers ask for them, and as the coordinator publishes them to the processors.

Published is a base and the deltas after it.
"""

from __future__ import annotations

from msgspec import Struct


class ScramImage(Struct, array_like=True):
    """What becomes of a password: nobody can log in elsewhere with it. `mechanism` is Kafka's number."""

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
