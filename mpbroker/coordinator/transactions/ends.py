"""How a transaction ends: EndTxn, aborts that no producer asks for, markers, and the record that it is over.

(Kafka: TransactionCoordinator.endTransaction, TransactionMarkerChannelManager.) The client is answered when
the decision is durable; markers follow, and the next transaction waits until all of them are durable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from mpbroker.coordinator.runtime.answers import Answers, Then, Waiter
from mpbroker.coordinator.runtime.batches import Marker, Producer
from mpbroker.coordinator.runtime.timers import Clock, Timers
from mpbroker.coordinator.transactions import transaction as steps
from mpbroker.coordinator.transactions.holds import Holds
from mpbroker.coordinator.transactions.manager import TransactionManager
from mpbroker.coordinator.transactions.records import TV1, TV2, TopicPartition
from mpbroker.coordinator.transactions.transaction import Transaction, Verdict
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import EndTxnRequest, EndTxnResponse
from mpbroker.records.batch import NO_PRODUCER_ID

FIRST_BUMPING_VERSION: Final = 5
# How soon the record that a transaction is over is tried again.
RETRY_MS: Final = 100

log = logging.getLogger("mpbroker")


class Markers(Protocol):
    def send(self, marker: Marker, partitions: frozenset[TopicPartition], then: Callable[[], None]) -> None:
        """`then` follows when each has it, durably, or is gone; never after `unload`."""


class Ends:
    def __init__(
        self,
        manager: TransactionManager,
        markers: Markers,
        timers: Timers,
        clock: Clock,
        answers: Answers,
    ) -> None:
        self.holds = Holds(self._released)
        self._manager = manager
        self._markers = markers
        self._timers = timers
        self._clock = clock
        self._answers = answers

    # --- EndTxn

    def end(self, waiter: Waiter, request: EndTxnRequest, version: int) -> None:
        producer = Producer(request.producer_id, request.producer_epoch)
        client_version = TV2 if version >= FIRST_BUMPING_VERSION else TV1
        is_commit = request.committed
        refuse = partial(self._answers.fail, waiter)

        def attempt() -> bool:
            transaction, value = self._manager.existing(request.transactional_id)
            if transaction.is_changing:
                return False
            verdict = steps.judge_end(value, producer, is_commit, client_version)
            if verdict is Verdict.WAIT:
                return False
            # Who changes back to TV1 is the one that has to begin anew, not who reads what it has written.
            ends_as = TV2 if transaction.is_granted else client_version
            decide = partial(self._decide, waiter, transaction, is_commit, client_version, ends_as)
            if verdict is Verdict.RETRY:
                self._answer(waiter, transaction, client_version)
            elif steps.needs_next_id(value, ends_as):
                self._manager.take_id(transaction, decide, refuse)
            else:
                decide(NO_PRODUCER_ID)
            return True

        self._manager.submit(request.transactional_id, attempt, refuse, waiter)

    def _decide(
        self,
        waiter: Waiter,
        transaction: Transaction,
        is_commit: bool,
        client_version: int,
        ends_as: int,
        next_producer_id: int,
    ) -> None:
        def decided(error: ErrorCode) -> None:
            if error:
                self._answers.fail(waiter, error)
                return
            transaction.bumps = client_version == TV2
            self.send_markers(transaction)
            self._answer(waiter, transaction, client_version)

        now_ms = self._clock.wall_ms()
        step = steps.prepare(transaction, is_commit, ends_as, next_producer_id, now_ms)
        self._manager.write(transaction, step, decided, waiter)

    def _answer(self, waiter: Waiter, transaction: Transaction, client_version: int) -> None:
        assert transaction.value is not None
        if client_version == TV2:
            response = EndTxnResponse(0, ErrorCode.NONE, *steps.told(transaction.value))
        else:
            response = EndTxnResponse()
        self._answers.answer(waiter, response)

    # --- without its producer

    def fence(self, transaction: Transaction, expected: Producer | None, then: Then) -> None:
        """Aborts it and bumps its epoch; `then` hears when that is decided, or why it could not be."""
        assert transaction.value is not None
        step = steps.fence(transaction.value, expected, self._clock.wall_ms())

        def decided(error: ErrorCode) -> None:
            then(error)
            if not error:
                self._send(transaction)

        self._manager.write(transaction, step, decided)

    # --- markers

    def send_markers(self, transaction: Transaction) -> None:
        """Of a transaction that is decided, also in an earlier life."""
        assert transaction.value is not None
        bumped = transaction.value.client_version == TV2
        transaction.is_held = not bumped and self.holds.must_wait(transaction.transactional_id)
        if not transaction.is_held:
            self._send(transaction)

    def _released(self, transactional_id: str) -> None:
        transaction = self._manager.find(transactional_id)
        if transaction is not None and transaction.is_held:
            transaction.is_held = False
            self._send(transaction)

    def _send(self, transaction: Transaction) -> None:
        """What is appended later has an epoch that the marker makes an old one, or there is nothing."""
        assert transaction.value is not None
        epoch = self._manager.coordinator_epoch(transaction.transactional_id)
        marker = steps.marker_for(transaction.value, epoch)
        self._markers.send(marker, transaction.value.partitions, partial(self._complete, transaction))

    def _complete(self, transaction: Transaction) -> None:
        """All markers are durable. As long as no record says so they would be sent again after a restart."""
        if not self._manager.is_current(transaction):
            return

        def completed(error: ErrorCode) -> None:
            if not error:
                return
            log.warning(
                "transactional id %s: that its transaction is over cannot be written now: %s",
                transaction.transactional_id,
                error.name,
            )
            again_ms = self._clock.monotonic_ms() + RETRY_MS
            again = partial(self._complete, transaction)
            self._timers.set(("complete", transaction.transactional_id), again_ms, again)

        step = steps.complete(transaction, self._clock.wall_ms())
        self._manager.write(transaction, step, completed)
