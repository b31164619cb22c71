"""Whoever waits for an answer, and how it gets to him."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol, TypeAlias

from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import Message

Waiter: TypeAlias = Hashable
"""Who waits for an answer; a coordinator only hands it back."""
Then: TypeAlias = Callable[[ErrorCode], None]
"""Hears how something went; NONE: well."""


class Answers(Protocol):
    def answer(self, waiter: Waiter, response: Message) -> None: ...

    def fail(self, waiter: Waiter, error: ErrorCode) -> None:
        """The whole request failed; its API knows how to say so."""


def response_error(append_error: ErrorCode) -> ErrorCode:
    """What a client is told of an append that failed.

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
