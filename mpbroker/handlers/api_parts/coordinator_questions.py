"""Questions to the coordinator that go to the controller in Kafka: topics, settings, credentials, quotas.

(Requests about groups and transactions are passed on unchanged: `forwarding`.)
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
    """An error in place of an answer.

    REQUEST_TIMED_OUT: the coordinator still completes the change. Otherwise NOT_CONTROLLER, after which every
    admin client retries.
    """

    code: ErrorCode
    message: str
    throttle_ms: int = 0


def try_ask_coordinator(
    context: RequestContext, question: calls.Message, answer: type[Answer], timeout_ms: int | None = None
) -> Generator[None, None, Answer | Unanswered]:
    """Ask the coordinator. Return a message of type `answer`, or after `timeout_ms` the reason for none."""
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
    """Ask the coordinator. Raises ApiError if there is no `answer`."""
    found = yield from try_ask_coordinator(context, question, answer)
    if isinstance(found, Unanswered):
        raise ApiError(found.code)
    return found
