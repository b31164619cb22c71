"""The interface of a SASL mechanism: it exchanges tokens with a client until it knows the principal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from mpbroker.security.principals import Principal


class SaslFailed(Exception):
    """The authentication has failed.

    `shown` is the text for the client, which must not reveal anything about users; None means Kafka's general
    text. The text of the exception is for the log, and must not have secrets.
    """

    def __init__(self, reason: str, shown: str | None = None) -> None:
        super().__init__(reason)
        self.shown = shown


class Mechanism(ABC):
    """A SASL exchange with one client.

    `principal` is set when the exchange is complete, `expires_ms` (wall clock) if the authentication expires.
    `claimed` is the user name that the client has sent and may not have proved. `is_by_token` is true if the
    client uses a delegation token.
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
        """Return the server's token that answers the client's `token`. Raises SaslFailed."""
