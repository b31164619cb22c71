"""A request to a coordinator: who waits for its answer, what it came with, and how the answer gets there."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, Protocol, TypeAlias

from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import Message

Waiter: TypeAlias = Hashable
"""Identifies a request that waits for its answer. A coordinator hands it back and looks at nothing in it."""
Then: TypeAlias = Callable[[ErrorCode], None]
"""Called once with the outcome of something; NONE means that it was done."""


class RequestContext(NamedTuple):
    """The context that a request's message came with (Kafka: RequestContext)."""

    waiter: Waiter
    version: int
    client_id: str
    client_host: str


Handler: TypeAlias = Callable[[RequestContext, Any], Message | None]
"""Serves the requests of one API. Returns the response, or None if it goes out by `Answers`, now or later.

Raises ApiError if the whole request fails.
"""


class Answers(Protocol):
    def answer(self, waiter: Waiter, response: Message) -> None: ...

    def fail(self, waiter: Waiter, error: ErrorCode) -> None:
        """Answer that the whole request failed. The handler process makes a response of its API of that."""


def response_error(append_error: ErrorCode) -> ErrorCode:
    """Return what a client is told of an append that failed with this error.

    (Kafka: TransactionStateManager.appendTransactionToLog, CoordinatorOperationExceptionHelper.)
    """
    if append_error in (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
    ):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if append_error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR):
        return ErrorCode.NOT_COORDINATOR
    if append_error in (
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_FETCH_SIZE,
    ):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return append_error
