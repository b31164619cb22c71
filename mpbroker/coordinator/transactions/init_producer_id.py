"""InitProducerId with a transactional id: makes the client the producer of that id.

(Kafka: TransactionCoordinator.handleInitProducerId; KIP-360 for producers that continue after an error.) The
open transaction of the earlier producer is aborted first, and a newer epoch fences that producer.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.runtime.requests import Answers, RequestContext, Waiter
from mpbroker.coordinator.runtime.timers import Clock
from mpbroker.coordinator.runtime.write_queue import Producer
from mpbroker.coordinator.transactions import steps
from mpbroker.coordinator.transactions.end_txn import EndTxn
from mpbroker.coordinator.transactions.records import TransactionState
from mpbroker.coordinator.transactions.state_manager import TransactionStateManager
from mpbroker.coordinator.transactions.steps import Action, Bump, PendingStep, Step, TransactionMetadata
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import InitProducerIdRequest, InitProducerIdResponse
from mpbroker.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

log = logging.getLogger("mpbroker.coordinator.transactions")


@dataclass(eq=False)
class _Init:
    """An InitProducerId request.

    `expected`: the producer id and epoch in the request. `fence_error`: why the open transaction could not be
    aborted.
    """

    waiter: Waiter
    transactional_id: str
    timeout_ms: int
    expected: Producer | None
    fence_error: ErrorCode = ErrorCode.NONE


@dataclass(eq=False)
class InitProducerId:
    _config: BrokerConfig
    _state: TransactionStateManager
    _end_txn: EndTxn
    _clock: Clock
    _answers: Answers

    def init(self, context: RequestContext, request: InitProducerIdRequest) -> None:
        """Serve an InitProducerId request. Raises ApiError if a field is invalid."""
        name = request.transactional_id or ""
        init = _Init(context.waiter, name, request.transaction_timeout_ms, self._expected(request))
        refuse = partial(self._answers.fail, context.waiter)
        self._state.submit(PendingStep(name, partial(self._attempt, init), refuse, context.waiter))

    def _expected(self, request: InitProducerIdRequest) -> Producer | None:
        """Return the producer in the request, None if it has none. Raises ApiError if a field is invalid."""
        if not request.transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
            raise ApiError(ErrorCode.INVALID_REQUEST)
        if request.enable2_pc or request.keep_prepared_txn:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        if not 0 < request.transaction_timeout_ms <= self._config.transaction_max_timeout_ms:
            raise ApiError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        if request.producer_id == NO_PRODUCER_ID:
            return None
        return Producer(request.producer_id, request.producer_epoch)

    def _attempt(self, init: _Init) -> Action | None:
        """Return the action that serves the request, None if it has to wait. Raises ApiError."""
        if init.fence_error:
            raise ApiError(init.fence_error)
        transaction = self._find_or_put(init.transactional_id)
        if transaction.is_busy:
            return None
        value = transaction.value
        if value is not None and value.state is TransactionState.ONGOING:
            steps.check_may_abort(transaction, init.expected, self._clock.wall_ms())

            def fenced(error: ErrorCode) -> None:
                init.fence_error = error

            self._end_txn.fence(transaction, fenced)
            return None
        return self._begin(init, transaction)

    def _find_or_put(self, transactional_id: str) -> TransactionMetadata:
        """Return or create a transactional id's state. Raises ApiError if no __transaction_state exists."""
        transaction = self._state.find(transactional_id)
        if transaction is None:
            if not self._state.partitions.states:
                raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            transaction = TransactionMetadata(transactional_id)
            self._state.put(transaction)
        return transaction

    def _begin(self, init: _Init, transaction: TransactionMetadata) -> Action:
        """Return the action that makes the client the producer. (No transaction is open.) Raises ApiError."""
        value, now_ms = transaction.value, self._clock.wall_ms()
        written = partial(self._written, init, transaction)
        if (
            value is not None
            and steps.bump_for(value, transaction.last_epoch, init.expected) is not Bump.NEW_ID
        ):
            step = steps.begin_next_epoch(transaction, init.timeout_ms, init.expected, now_ms)
            return partial(self._state.append, transaction, step, written, init.waiter)

        def with_id(producer_id: int) -> Step:
            if value is None:
                return steps.new_producer(producer_id, init.timeout_ms, now_ms)
            return steps.rotate(value, producer_id, init.timeout_ms, init.expected, now_ms)

        return partial(self._state.append_with_new_id, transaction, with_id, written, init.waiter)

    def _written(self, init: _Init, transaction: TransactionMetadata, error: ErrorCode) -> None:
        if error:
            self._answers.fail(init.waiter, error)
            return
        assert transaction.value is not None
        producer_id, epoch = transaction.value.producer_id, transaction.value.producer_epoch
        transaction.bumps = False
        log.info(
            "transactional id %s: its producer is %d, epoch %d",
            transaction.transactional_id,
            producer_id,
            epoch,
        )
        self._answers.answer(init.waiter, InitProducerIdResponse(0, 0, producer_id, epoch))
