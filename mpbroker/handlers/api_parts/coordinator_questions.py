"""Questions to the coordinator about topics, settings, credentials and quotas.

Kafka's controller answers such questions. (`forwarding` passes on requests about groups and transactions.)
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.purgatory import NEVER_MS
from mpbroker.ipc import calls
from mpbroker.protocol.errors import ApiError, ErrorCode

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Unanswered:
    """The error to respond with when the coordinator has not answered.

    REQUEST_TIMED_OUT: the coordinator still completes the change. NOT_CONTROLLER: all other failures; every
    admin client retries after this error.
    """

    code: ErrorCode
    message: str
    throttle_ms: int = 0


def try_ask_coordinator(
    context: RequestContext, question: calls.Message, answer: type[Answer], timeout_ms: int | None = None
) -> Generator[None, None, Answer | Unanswered]:
    """Ask the coordinator; return its answer, or Unanswered if the call fails or `timeout_ms` is over."""
    broker, connection = context.broker, context.slot.connection
    deadline_ms = NEVER_MS if timeout_ms is None else broker.monotonic_ms() + max(0, timeout_ms)

    def ask(then: Callable[[calls.Message], None]) -> None:
        broker.coordinator.call(question, then, connection, deadline_ms)

    found = yield from context.wait(ask)
    if isinstance(found, answer):
        return found
    if not isinstance(found, calls.Failed):
        return Unanswered(ErrorCode.NOT_CONTROLLER, "the coordinator did not answer")
    timed_out = found.error == ErrorCode.REQUEST_TIMED_OUT
    return Unanswered(ErrorCode.REQUEST_TIMED_OUT if timed_out else ErrorCode.NOT_CONTROLLER, found.message)


def ask_coordinator(
    context: RequestContext, question: calls.Message, answer: type[Answer]
) -> Generator[None, None, Answer]:
    """Ask the coordinator; return its answer. Raises ApiError if no message of type `answer` comes."""
    found = yield from try_ask_coordinator(context, question, answer)
    if isinstance(found, Unanswered):
        raise ApiError(found.code)
    return found
