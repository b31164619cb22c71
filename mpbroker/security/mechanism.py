"""The interface of a SASL mechanism: it takes and returns tokens, and ends with a principal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from mpbroker.security.principals import Principal


class SaslFailed(Exception):
    """Authentication fails.

    `shown` is the text for the client, which reveals nothing about users; by default it is Kafka's general
    text. The exception's own text is for the log, and has no secrets.
    """

    def __init__(self, reason: str, shown: str | None = None) -> None:
        super().__init__(reason)
        self.shown = shown


class Mechanism(ABC):
    """A SASL exchange with one client.

    `principal` is set when it is complete; `expires_ms` (wall clock) if the authentication expires.
    `claimed` is the user name that the client has sent, which need not be its own. `is_by_token`: the client
    shows a delegation token.
    """

    name: ClassVar[str]

    def __init__(self) -> None:
        self.principal: Principal | None = None
        self.expires_ms: int | None = None
        self.claimed = ""
        self.is_by_token = False

    @property
    def complete(self) -> bool:
        return self.principal is not None

    @abstractmethod
    def step(self, token: bytes) -> bytes:
        """Return the answer to the client's token. Raises SaslFailed."""
