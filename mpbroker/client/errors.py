"""Errors between a client and a cluster; each text says what, where and what to do."""

import re

from mpbroker.protocol.errors import ErrorCode, error_code


class ClientError(Exception):
    """The base of all errors of a client."""

    @property
    def retriable(self) -> bool:
        """Tell whether the same request may succeed a little later."""
        return False


class ConfigError(ClientError):
    """A setting is missing, malformed or not supported; `name` is its name if only one is wrong."""

    name = ""


class ConnectionLost(ClientError):
    """The broker cannot be reached or is gone. The request may have been done or not."""

    @property
    def retriable(self) -> bool:
        return True


class RequestTimedOut(ConnectionLost):
    """No answer came in time; the connection was closed."""


class AdvertisedUnreachable(ConnectionLost):
    """No connection was ever made to an address that the broker advertises (advertised.listeners).

    `retriable` is what the client's settings say: mostly nothing changes before somebody changes a setting.
    """

    def __init__(self, message: str, *, retriable: bool) -> None:
        super().__init__(message)
        self._retriable = retriable

    @property
    def retriable(self) -> bool:
        return self._retriable


class AuthenticationFailed(ClientError):
    """The two sides do not trust each other: a certificate, a password, or the protocol is wrong."""


class InvalidReceive(ClientError):
    """The peer sent something that is no response of Kafka's protocol."""


class UnsupportedByBroker(ClientError):
    """The broker lacks the API, or every version of it that this client has."""


class ApiFailed(ClientError):
    """The broker answered with an error code."""

    def __init__(self, what: str, number: int, message: str | None = None) -> None:
        self.code = error_code(number)
        text = (message or self.code.message).removesuffix(".")
        super().__init__(f"{text if _names(text, what) else f'{what}: {text}'} ({self.code.name})")

    @property
    def retriable(self) -> bool:
        return self.code.retriable


def not_done(what: str, number: int, message: str | None = None) -> ApiFailed:
    """Return the error about a whole topic or group; what the broker says of a missing one is of no use."""
    if number in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND):
        message = "does not exist"
    return ApiFailed(what, number, message)


def without_leader(topic: str, partition: int) -> ApiFailed:
    """Return the error for a partition that has no leader in the metadata."""
    why = "it has no leader: it is just being made, or it is offline, and the broker's log says why"
    return ApiFailed(f"partition {topic}-{partition}", ErrorCode.LEADER_NOT_AVAILABLE, why)


def _names(text: str, what: str) -> bool:
    """Tell whether a broker's text already names its subject, as "Topic 'orders' already exists" does."""
    kind, _, name = (re.escape(part) for part in what.partition(" "))
    named = rf"\b{kind} {name}(?![\w-]|\.\w)|'{name}'|\"{name}\""
    return bool(name) and re.search(named, text, re.IGNORECASE) is not None
