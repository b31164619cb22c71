"""The end of a transaction, from the decision to the record which says that all markers are written.

A client ends its transaction with EndTxn. The coordinator aborts a transaction that is open for too long, or
whose transactional id gets a new producer. The client is answered when the decision is durable. Then markers
are written, and the id's next transaction waits until all markers are durable. (Kafka:
TransactionCoordinator.endTransaction, TransactionMarkerChannelManager.)
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Final

from mpbroker.coordinator.runtime.requests import Answers, RequestContext, Then, Waiter
from mpbroker.coordinator.runtime.timers import Clock, Timers
from mpbroker.coordinator.runtime.write_queue import Producer
from mpbroker.coordinator.transactions import steps
from mpbroker.coordinator.transactions.marker_holds import MarkerHolds
from mpbroker.coordinator.transactions.marker_sender import RETRY_MS, MarkerSender
from mpbroker.coordinator.transactions.records import TV1, TV2
from mpbroker.coordinator.transactions.state_manager import TransactionStateManager
from mpbroker.coordinator.transactions.steps import Action, PendingStep, TransactionMetadata, Verdict
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import EndTxnRequest, EndTxnResponse
from mpbroker.records.batch import NO_PRODUCER_ID

FIRST_BUMPING_VERSION: Final = 5

log = logging.getLogger("mpbroker.coordinator.transactions")


@dataclass(eq=False)
class EndTxn:
    """Ends transactions: records the decision, answers the client, and has the markers written.

    `holds` delays the markers of a transaction while a handler may still append one of its batches.
    """

    _state: TransactionStateManager
    _markers: MarkerSender
    _timers: Timers
    _clock: Clock
    _answers: Answers

    def __post_init__(self) -> None:
        self.holds = MarkerHolds(self._send_held)

    # --- EndTxn

    def end(self, context: RequestContext, request: EndTxnRequest) -> None:
        attempt = partial(self._attempt_end, context, request)
        refuse = partial(self._answers.fail, context.waiter)
        self._state.submit(PendingStep(request.transactional_id, attempt, refuse, context.waiter))

    def _attempt_end(self, context: RequestContext, request: EndTxnRequest) -> Action | None:
        """Return the action that serves the EndTxn, None if the request has to wait. Raises ApiError."""
        transaction, value = self._state.existing(request.transactional_id)
        if transaction.is_changing:
            return None
        producer = Producer(request.producer_id, request.producer_epoch)
        client_version = TV2 if context.version >= FIRST_BUMPING_VERSION else TV1
        verdict = steps.judge_end(value, producer, request.committed, client_version)
        if verdict is Verdict.WAIT:
            return None
        if verdict is Verdict.RETRY:
            return partial(self._answer, context.waiter, transaction, client_version)
        # A verified epoch must be bumped, even if this fences a client that ends its transaction as in TV1.
        ends_as = TV2 if transaction.is_epoch_verified else client_version
        send_markers = partial(self._send_markers_and_answer, context.waiter, transaction, client_version)
        return partial(self._decide, transaction, request.committed, ends_as, send_markers, context.waiter)

    def _decide(
        self,
        transaction: TransactionMetadata,
        is_commit: bool,
        client_version: int,
        send_markers: Then,
        waiter: Waiter | None = None,
    ) -> None:
        """Write the decision to commit or abort. `send_markers` gets NONE when it is durable, or an error."""
        assert transaction.value is not None
        prepare = partial(steps.prepare, transaction, is_commit, client_version, self._clock.wall_ms())
        if steps.needs_next_id(transaction.value, client_version):
            self._state.append_with_new_id(transaction, prepare, send_markers, waiter)
        else:
            self._state.append(transaction, prepare(NO_PRODUCER_ID), send_markers, waiter)

    def _send_markers_and_answer(
        self, waiter: Waiter, transaction: TransactionMetadata, client_version: int, error: ErrorCode
    ) -> None:
        if error:
            self._answers.fail(waiter, error)
            return
        transaction.bumps = client_version == TV2
        self.send_markers(transaction)
        self._answer(waiter, transaction, client_version)

    def _answer(self, waiter: Waiter, transaction: TransactionMetadata, client_version: int) -> None:
        assert transaction.value is not None
        if client_version == TV2:
            response = EndTxnResponse(0, ErrorCode.NONE, *steps.producer_after_end(transaction.value))
        else:
            response = EndTxnResponse()
        self._answers.answer(waiter, response)

    # --- aborts that the producer did not ask for

    def fence(self, transaction: TransactionMetadata, report: Then) -> None:
        """Abort the transaction and bump its epoch. `report` gets NONE when this is durable, or an error.

        The decision's record is the same as for an EndTxn v5. A producer that sends EndTxn with
        its old epoch after its transaction has timed out gets the new epoch, as if it repeated an EndTxn.
        """

        def report_and_send_markers(error: ErrorCode) -> None:
            report(error)
            if not error:
                self.send_markers(transaction)

        self._decide(transaction, False, TV2, report_and_send_markers)

    # --- markers

    def send_markers(self, transaction: TransactionMetadata) -> None:
        """Append a transaction's markers now, or when no hold is left. Its decision must be durable."""
        assert transaction.value is not None
        bumped = transaction.value.client_version == TV2
        transaction.is_held = not bumped and self.holds.must_wait(transaction.transactional_id)
        if not transaction.is_held:
            self._send(transaction)

    def _send_held(self, transactional_id: str) -> None:
        transaction = self._state.find(transactional_id)
        if transaction is not None and transaction.is_held:
            transaction.is_held = False
            self._send(transaction)

    def _send(self, transaction: TransactionMetadata) -> None:
        """Append a transaction's markers. Later batches belong to the next transaction or are refused."""
        assert transaction.value is not None
        epoch = self._state.coordinator_epoch(transaction.transactional_id)
        marker = steps.marker_for(transaction.value, epoch)
        self._markers.send(marker, transaction.value.partitions, partial(self._complete, transaction))

    def _complete(self, transaction: TransactionMetadata) -> None:
        """Write the record that completes the transaction, so that no restart appends its markers again."""
        if not self._state.is_current(transaction):
            return

        def retry_if_refused(error: ErrorCode) -> None:
            if not error:
                return
            log.warning(
                "transactional id %s: the end of its transaction cannot be written now: %s",
                transaction.transactional_id,
                error.name,
            )
            again_ms = self._clock.monotonic_ms() + RETRY_MS
            again = partial(self._complete, transaction)
            self._timers.set(("complete", transaction.transactional_id), again_ms, again)

        step = steps.complete(transaction, self._clock.wall_ms())
        self._state.append(transaction, step, retry_if_refused)
