"""Errors of a client. Each text names what failed (a topic, an address), the reason, and often a remedy."""

import re
from collections.abc import Sequence
from typing import Self

from mpbroker.protocol.errors import ErrorCode, error_code

# Error codes that the same call would always get. Unknown or existing topics are not among them, since a
# moment later the call may succeed.
_WRONG_INPUT = frozenset(
    {
        *("INVALID_TOPIC_EXCEPTION", "INVALID_PARTITIONS", "INVALID_REPLICATION_FACTOR", "INVALID_CONFIG"),
        *("INVALID_REPLICA_ASSIGNMENT", "INVALID_REQUEST", "INVALID_GROUP_ID", "INVALID_TIMESTAMP"),
        *("INVALID_PRINCIPAL_TYPE", "INVALID_REGULAR_EXPRESSION", "INVALID_REQUIRED_ACKS"),
        *("INVALID_SESSION_TIMEOUT", "INVALID_TRANSACTION_TIMEOUT", "OFFSET_METADATA_TOO_LARGE"),
        *("OFFSET_OUT_OF_RANGE", "POLICY_VIOLATION", "UNACCEPTABLE_CREDENTIAL", "UNSUPPORTED_SASL_MECHANISM"),
        *("UNSUPPORTED_COMPRESSION_TYPE", "BROKER_ID_NOT_REGISTERED"),
    }
)


class BadText(Exception):
    """A text is malformed. The message has only advice; the caller adds the name of the flag or field."""


class BadTime(BadText):
    """A text is not a time. The caller adds to the message which time zone is the default."""


class ClientError(Exception):
    """The base of all errors of a client."""

    @property
    def retriable(self) -> bool:
        """Return whether the same request may succeed if it is sent again later."""
        return False

    @property
    def is_wrong_call(self) -> bool:
        """Return whether the call's arguments are invalid in every state of the cluster."""
        return False

    def advised(self, advice: str) -> Self:
        """Append advice to this error's text; return this error."""
        self.args = (f"{self}{advice}",)
        return self


class InvalidArgument(ClientError):
    """A call has an argument that is invalid in every state of the cluster."""

    @property
    def is_wrong_call(self) -> bool:
        return True


class FailedPrecondition(ClientError):
    """The cluster's state does not allow a call, for example because a group still has members."""


class ClientConfigError(InvalidArgument):
    """A setting is missing, malformed or not supported. `name` is empty if several settings are involved."""

    name = ""


class ConnectionLost(ClientError):
    """The broker cannot be reached, or closed the connection. It may have executed the request."""

    @property
    def retriable(self) -> bool:
        return True


class RequestTimedOut(ConnectionLost):
    """The broker did not answer or accept the request in time."""


class AdvertisedUnreachable(ConnectionLost):
    """The client never reached an advertised address. Retriable if ClientConfig.retries_advertised is set."""

    def __init__(self, message: str, *, retriable: bool) -> None:
        super().__init__(message)
        self._retriable = retriable

    @property
    def retriable(self) -> bool:
        return self._retriable


class AuthenticationFailed(ClientError):
    """Authentication failed: a certificate, a password, or the protocol is wrong."""


class InvalidReceive(ClientError):
    """The peer sent bytes that are not a response of Kafka's protocol."""


class UnsupportedByBroker(ClientError):
    """The broker lacks the API, or supports no version of it that this client supports."""


class ApiFailed(ClientError):
    """The broker answered with an error code."""

    def __init__(self, what: str, number: int, message: str | None = None) -> None:
        self.code = error_code(number)
        self.message = message or self.code.message
        text = self.message.removesuffix(".")
        super().__init__(f"{text if _names(text, what) else f'{what}: {text}'} ({self.code.name})")

    @property
    def retriable(self) -> bool:
        return self.code.retriable

    @property
    def is_wrong_call(self) -> bool:
        return self.code.name in _WRONG_INPUT


def raise_all(failed: Sequence[ClientError]) -> None:
    """Raise the errors as one: InvalidArgument if all are wrong calls, otherwise FailedPrecondition."""
    if len(failed) == 1:
        raise failed[0]
    if failed:
        kind = InvalidArgument if all(one.is_wrong_call for one in failed) else FailedPrecondition
        raise kind("\n".join(map(str, failed)))


def not_done(what: str, number: int, message: str | None = None) -> ApiFailed:
    """Return an ApiFailed about `what` ("topic a"). Not-found codes get the message "does not exist"."""
    if number in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND):
        message = "does not exist"
    return ApiFailed(what, number, message)


def without_leader(topic: str, partition: int) -> ApiFailed:
    """Return the error for a partition that has no leader in the metadata."""
    why = "it has no leader: it is being created, or it is offline, and the broker's log has the reason"
    return ApiFailed(f"partition {topic}-{partition}", ErrorCode.LEADER_NOT_AVAILABLE, why)


def _names(text: str, what: str) -> bool:
    """Return whether a broker's text names the subject `what`, as "Topic 'orders' already exists" does."""
    kind, _, name = (re.escape(part) for part in what.partition(" "))
    named = rf"\b{kind} {name}(?![\w-]|\.\w)|'{name}'|\"{name}\""
    return bool(name) and re.search(named, text, re.IGNORECASE) is not None
