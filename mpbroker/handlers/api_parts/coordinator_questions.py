"""Questions to the coordinator that go to the controller in Kafka: topics, settings, credentials, quotas.

(Requests about groups and transactions are passed on unchanged: `forwarding`.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from mpbroker.handlers.broker import ApiExchange
from mpbroker.handlers.calls.patient_client import NEVER_MS
from mpbroker.ipc import calls
from mpbroker.protocol.errors import ErrorCode

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Unanswered:
    """An error in place of an answer.

    REQUEST_TIMED_OUT: the coordinator still does what was asked. Otherwise NOT_CONTROLLER, after which every
    admin client retries.
    """

    code: ErrorCode
    message: str
    throttle_ms: int = 0


def ask_coordinator(
    exchange: ApiExchange,
    question: calls.Message,
    answer: type[Answer],
    then: Callable[[Answer | Unanswered], None],
    timeout_ms: int | None = None,
) -> None:
    """Ask the coordinator. `then` gets an `answer`, or why there is none, after at most `timeout_ms`."""

    def answered(message: calls.Message) -> None:
        then(message if isinstance(message, answer) else _unanswered(message))

    exchange.broker.coordinator.call(
        question,
        exchange.later(answered),
        exchange.slot.connection,
        NEVER_MS if timeout_ms is None else exchange.broker.monotonic_ms() + max(0, timeout_ms),
    )


def _unanswered(message: calls.Message) -> Unanswered:
    if not isinstance(message, calls.Failed):
        return Unanswered(ErrorCode.NOT_CONTROLLER, "the coordinator did not answer")
    timed_out = message.error == ErrorCode.REQUEST_TIMED_OUT
    return Unanswered(ErrorCode.REQUEST_TIMED_OUT if timed_out else ErrorCode.NOT_CONTROLLER, message.message)
