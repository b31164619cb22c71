"""Batches that are part of a transaction: the coordinator is asked before they go to the log (KIP-890).

Clients of transaction.version 2 (Produce v12 or later) have their partitions added by that; those of others
are looked for in the transaction. Where its marker will have the producer's own epoch the coordinator holds
that back until the handler says that the batches are appended, or never will be: a batch behind it would
begin a transaction that nobody ends (`holds.py`). (Kafka: AddPartitionsToTxnManager,
ReplicaManager.handleProduceAppend, VerificationGuard.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from mpbroker.handlers.exchange import Exchange
from mpbroker.handlers.granted import Granted, Place
from mpbroker.handlers.holds import NO_HOLD, Hold, Holds
from mpbroker.handlers.patient_client import PatientClient
from mpbroker.ipc.calls import CheckedTransaction, CheckTransaction, Failed, Message
from mpbroker.protocol.errors import ErrorCode, error_code
from shm.clock import monotonic_ms

FIRST_VERSION_WITH_ABORTABLE = 11
# From here on what is written adds its partition to the transaction.
FIRST_VERSION_THAT_ADDS = 12
# Clients know none of these in an answer to Produce, and ask again after this one without another look at the
# metadata.
ASKED_AGAIN = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
# A coordinator that still loads the transaction's partition, or will, since a log worker died while it wrote,
# is asked again so soon, and for so long: an error would let the client's next batches overtake this one.
LOADING = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
ASK_AGAIN_MS = 20
LOADING_MS = 5_000


def told(version: int, code: ErrorCode) -> ErrorCode:
    """What the coordinator said, as a client that produces with this version knows it."""
    if code == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code == ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_VERSION_WITH_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    waits_for_end = code == ErrorCode.CONCURRENT_TRANSACTIONS and version < FIRST_VERSION_THAT_ADDS
    return ErrorCode.NOT_ENOUGH_REPLICAS if code in ASKED_AGAIN or waits_for_end else code


class Part(NamedTuple):
    """A partition that a batch is for."""

    topic: str
    partition: int
    place: Place


class Asked(NamedTuple):
    """Whose transaction it is, and for which partitions there are batches."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    adds: bool
    parts: Sequence[Part]


Then: TypeAlias = Callable[[list[ErrorCode], Hold], None]
"""Gets an error for each part, in their order, and the hold that it has to end."""


@dataclass(frozen=True)
class Question:
    """`missing`: the parts that are asked for. `until_ms` (monotonic): so long a coordinator may load.
    `is_again`: one has died over it before.
    """

    exchange: Exchange
    asked: Asked
    missing: list[Part]
    then: Then
    until_ms: int
    is_again: bool = False

    def errors(self, found: Sequence[int]) -> list[ErrorCode]:
        """Of all parts, from those that were asked for."""
        by_part = dict(zip(self.missing, map(error_code, found), strict=True))
        return [by_part.get(part, ErrorCode.NONE) for part in self.asked.parts]


class Transactions:
    """`holds`: what the coordinator has let through and waits for."""

    def __init__(self, coordinator: PatientClient, holds: Holds) -> None:
        self._coordinator = coordinator
        self.holds = holds
        self._granted = Granted()
        self._waiting: dict[Exchange, None] = {}
        # What is to be asked again, and when (monotonic).
        self._again: deque[tuple[int, Question]] = deque()

    def __len__(self) -> int:
        """Requests that wait for the coordinator."""
        return len(self._waiting)

    # ---- asking

    def check(self, exchange: Exchange, asked: Asked, then: Then) -> None:
        """The request is not parked meanwhile, as others are that wait for the coordinator: its batches lie
        in its block, which it would give up. It stays its handler's load, as one that waits for the log does.
        """
        missing = [part for part in asked.parts if not self._is_granted(asked, part)]
        if missing:
            self._ask(Question(exchange, asked, missing, then, monotonic_ms() + LOADING_MS))
        else:
            then([ErrorCode.NONE] * len(asked.parts), self.holds.open(NO_HOLD))

    def _is_granted(self, asked: Asked, part: Part) -> bool:
        return asked.adds and self._granted.has(asked.producer_id, asked.producer_epoch, part.place)

    def _ask(self, question: Question) -> None:
        exchange, asked = question.exchange, question.asked

        def answered(message: Message) -> None:
            self._waiting.pop(exchange, None)
            if isinstance(message, CheckedTransaction):
                self._checked(question, message)
            elif not exchange.done:
                self._failed(question, message)

        call = CheckTransaction(
            asked.transactional_id,
            asked.producer_id,
            asked.producer_epoch,
            [(part.topic, part.partition) for part in question.missing],
            asked.adds,
        )
        self._waiting[exchange] = None
        self._coordinator.call(call, exchange.later(answered), exchange.slot.connection)

    def _checked(self, question: Question, message: CheckedTransaction) -> None:
        hold = self.holds.open(message.hold)
        try:
            errors = question.errors(message.errors)
            if question.exchange.done:
                hold.end()
                return
            if hold.number == NO_HOLD and question.asked.adds:
                self._remember(question.asked, errors)
            question.then(errors, hold)
        except BaseException:
            hold.end()
            raise

    def _remember(self, asked: Asked, errors: list[ErrorCode]) -> None:
        for part, code in zip(asked.parts, errors, strict=True):
            if code == ErrorCode.NONE:
                self._granted.add(asked.producer_id, asked.producer_epoch, part.place)

    def _failed(self, question: Question, message: Message) -> None:
        code = error_code(message.error) if isinstance(message, Failed) else ErrorCode.UNKNOWN_SERVER_ERROR
        now_ms = monotonic_ms()
        if self._coordinator.server_is_up and code in LOADING and now_ms < question.until_ms:
            self._waiting[question.exchange] = None
            self._again.append((now_ms + ASK_AGAIN_MS, question))
        elif self._coordinator.server_is_up:
            question.then([code] * len(question.asked.parts), self.holds.open(NO_HOLD))
        elif code == ErrorCode.NOT_COORDINATOR and not question.is_again:
            # It died over it; its successor is waited for.
            self._ask(replace(question, is_again=True))
        else:
            # An error for this one alone would let those overtake it that the client has sent behind it.
            question.exchange.close()

    def ask_again(self, now_ms: int) -> None:
        """Those whose coordinator was loading."""
        while self._again and self._again[0][0] <= now_ms:
            _, question = self._again.popleft()
            del self._waiting[question.exchange]
            if not question.exchange.done:
                self._ask(question)

    def next_deadline_ms(self) -> int | None:
        return self._again[0][0] if self._again else None

    def close_waiting(self) -> None:
        """Processors take every produce for lost that is not answered: none of these is appended any more."""
        for exchange in list(self._waiting):
            exchange.close()
