"""InitProducerId with a transactional id: who is its producer from now on.

(Kafka: TransactionCoordinator.handleInitProducerId; KIP-360 for producers that go on after an error.) Whoever
had the id before is fenced by a newer epoch, and what it left open is aborted first.
"""

from __future__ import annotations

import logging
from functools import partial

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.runtime.answers import Answers, Waiter
from mpbroker.coordinator.runtime.batches import Producer
from mpbroker.coordinator.runtime.timers import Clock
from mpbroker.coordinator.transactions import transaction as steps
from mpbroker.coordinator.transactions.ends import Ends
from mpbroker.coordinator.transactions.manager import TransactionManager
from mpbroker.coordinator.transactions.states import TransactionState
from mpbroker.coordinator.transactions.transaction import Bump, Step, Transaction
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import InitProducerIdRequest, InitProducerIdResponse
from mpbroker.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

log = logging.getLogger("mpbroker")


class Inits:
    def __init__(
        self,
        config: BrokerConfig,
        manager: TransactionManager,
        ends: Ends,
        clock: Clock,
        answers: Answers,
    ) -> None:
        self._config = config
        self._manager = manager
        self._ends = ends
        self._clock = clock
        self._answers = answers

    def init(self, waiter: Waiter, request: InitProducerIdRequest) -> None:
        """Raises ApiError."""
        transactional_id = request.transactional_id or ""
        expected = self._expected(request)
        fence_failed = ErrorCode.NONE

        def fenced(error: ErrorCode) -> None:
            nonlocal fence_failed
            fence_failed = error

        def attempt() -> bool:
            if fence_failed:
                raise ApiError(fence_failed)
            transaction = self._find_or_put(transactional_id)
            if transaction.is_busy:
                return False
            value = transaction.value
            if value is not None and value.state is TransactionState.ONGOING:
                if expected is not None and expected != (value.producer_id, value.producer_epoch):
                    raise ApiError(ErrorCode.PRODUCER_FENCED)
                self._ends.fence(transaction, expected, fenced)
                return False
            self._begin(waiter, transaction, request.transaction_timeout_ms, expected)
            return True

        self._manager.submit(transactional_id, attempt, partial(self._answers.fail, waiter), waiter)

    def _expected(self, request: InitProducerIdRequest) -> Producer | None:
        """Who the producer says it is. Raises ApiError."""
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

    def _find_or_put(self, transactional_id: str) -> Transaction:
        """Raises ApiError."""
        transaction = self._manager.find(transactional_id)
        if transaction is None:
            if not self._manager.partitions:
                raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            transaction = Transaction(transactional_id)
            self._manager.put(transaction)
        return transaction

    def _begin(
        self, waiter: Waiter, transaction: Transaction, timeout_ms: int, expected: Producer | None
    ) -> None:
        """Raises ApiError."""
        value, now_ms = transaction.value, self._clock.wall_ms()
        refuse = partial(self._answers.fail, waiter)

        def with_id(producer_id: int) -> None:
            if value is None:
                step = steps.new_producer(producer_id, timeout_ms, now_ms)
            else:
                step = steps.rotate(value, producer_id, timeout_ms, expected, now_ms)
            self._write(waiter, transaction, step)

        if value is None or steps.bump_for(value, transaction.last_epoch, expected) is Bump.NEW_ID:
            self._manager.take_id(transaction, with_id, refuse)
        else:
            self._write(waiter, transaction, steps.begin_anew(transaction, timeout_ms, expected, now_ms))

    def _write(self, waiter: Waiter, transaction: Transaction, step: Step) -> None:
        producer_id, epoch = step.value.producer_id, step.value.producer_epoch

        def written(error: ErrorCode) -> None:
            if error:
                self._answers.fail(waiter, error)
                return
            transaction.bumps = False
            log.info(
                "transactional id %s: its producer is %d, epoch %d",
                transaction.transactional_id,
                producer_id,
                epoch,
            )
            self._answers.answer(waiter, InitProducerIdResponse(0, 0, producer_id, epoch))

        self._manager.write(transaction, step, written, waiter)
