"""The transaction coordinator: every request about transactions, and the state that they change.

Fed with decoded requests, a clock and what the log says; it answers through `answers`, writes through
`writer` and has markers appended by `markers`. A decision is answered when its record is durable. (Kafka:
TransactionCoordinator.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.runtime.answers import Answers, Then, Waiter
from mpbroker.coordinator.runtime.batches import Producer
from mpbroker.coordinator.runtime.partitions import PartitionState
from mpbroker.coordinator.runtime.timers import Clock, Timers
from mpbroker.coordinator.transactions.adds import Adds, Checked, Topics
from mpbroker.coordinator.transactions.ends import Ends, Markers
from mpbroker.coordinator.transactions.inits import Inits
from mpbroker.coordinator.transactions.looks import Looks
from mpbroker.coordinator.transactions.manager import ProducerIds, TransactionManager, Writer
from mpbroker.coordinator.transactions.records import TransactionValue
from mpbroker.coordinator.transactions.states import TransactionState
from mpbroker.ipc.calls import CheckedTransaction, CheckTransaction
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    Message,
)

log = logging.getLogger("mpbroker")


class TransactionCoordinator:
    """Topics that are deleted leave their transactions at the end of these: their markers have no place."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        writer: Writer,
        markers: Markers,
        producer_ids: ProducerIds,
        answers: Answers,
        topics: Topics,
    ) -> None:
        self.timers = Timers()
        self._config = config
        self._clock = clock
        self._answers = answers
        self.manager = TransactionManager(self.timers, clock, writer, producer_ids)
        self._ends = Ends(self.manager, markers, self.timers, clock, answers)
        self.holds = self._ends.holds
        self._inits = Inits(config, self.manager, self._ends, clock, answers)
        self._adds = Adds(config, self.manager, self.holds, clock, answers, topics)
        self._looks = Looks(self.manager, clock)
        self._set_sweep()
        self._set_expiry()

    # --- requests

    def handle(self, waiter: Waiter, request: Message, version: int) -> None:
        try:
            self._serve(waiter, request, version)
        except ApiError as error:
            self._answers.fail(waiter, error.code)

    def _serve(self, waiter: Waiter, request: Message, version: int) -> None:
        """Raises ApiError."""
        match request:
            case InitProducerIdRequest():
                self._inits.init(waiter, request)
            case AddPartitionsToTxnRequest():
                self._adds.add_partitions(waiter, request)
            case AddOffsetsToTxnRequest():
                self._adds.add_offsets(waiter, request)
            case EndTxnRequest():
                self._ends.end(waiter, request, version)
            case DescribeTransactionsRequest():
                self._answers.answer(waiter, self._looks.describe(request))
            case ListTransactionsRequest():
                self._answers.answer(waiter, self._looks.list(request))
            case _:
                raise ApiError(ErrorCode.UNSUPPORTED_VERSION)

    def check(self, waiter: Waiter, call: CheckTransaction, then: Callable[[Checked], bool]) -> None:
        """May these partitions be appended to, or what keeps the whole transaction from it. `then` says
        whether somebody has heard that: nobody else would end what is held.
        """

        def checked(outcome: Checked) -> None:
            if not then(outcome) and isinstance(outcome, CheckedTransaction):
                self.holds.end(outcome.hold)

        self._adds.check(waiter, call, checked)

    def check_offsets(
        self,
        transactional_id: str,
        producer: Producer,
        partition: int,
        adds: bool,
        then: Then,
    ) -> None:
        """May offsets be appended to that partition of `__consumer_offsets` in the transaction?

        With NONE `then` is called at the very moment at which it is so: what is queued in it comes before the
        marker.
        """
        self._adds.check_offsets(transactional_id, producer, partition, adds, then)

    def abandon(self, waiter: Waiter) -> None:
        """Nobody is there any more to hear the answer. What is under way for it goes on."""
        self.manager.abandon(waiter)

    def waiters(self) -> list[Waiter]:
        """Whose requests wait for others."""
        return self.manager.waiters()

    # --- holds

    def end_hold(self, hold: int) -> None:
        self.holds.end(hold)

    def end_holds(self, is_gone: Callable[[Waiter], bool]) -> None:
        """Handlers died, and all that they had published is in the log."""
        self.holds.end_all_of(is_gone)

    def expect_earlier_holds(self) -> None:
        """An earlier coordinator has granted some: until they ended no transaction of TV1 gets markers."""
        self.holds.expect_earlier()

    def earlier_holds_ended(self) -> None:
        self.holds.earlier_ended()

    # --- what nobody asks for

    def _set_sweep(self) -> None:
        interval_ms = self._config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        self.timers.set("sweep", self._clock.monotonic_ms() + interval_ms, self._sweep)

    def _sweep(self) -> None:
        """Transactions that are open for longer than their producer has asked for are aborted."""
        self._set_sweep()
        now_ms = self._clock.wall_ms()
        for transaction in self.manager:
            value = transaction.value
            assert value is not None
            is_open = value.state is TransactionState.ONGOING and not transaction.is_busy
            if is_open and value.start_ms + value.timeout_ms < now_ms:
                log.info(
                    "transactional id %s: its transaction is open for longer than %d ms and is aborted; "
                    "its producer (%d, epoch %d) is fenced",
                    transaction.transactional_id,
                    value.timeout_ms,
                    value.producer_id,
                    value.producer_epoch,
                )
                self._ends.fence(transaction, None, lambda _error: None)

    def _set_expiry(self) -> None:
        interval_ms = self._config.transaction_remove_expired_transaction_cleanup_interval_ms
        self.timers.set("expiry", self._clock.monotonic_ms() + interval_ms, self._expire)

    def _expire(self) -> None:
        """Transactional ids that nobody has used for long are forgotten."""
        self._set_expiry()
        used_before = self._clock.wall_ms() - self._config.transactional_id_expiration_ms
        for transaction in self.manager:
            value = transaction.value
            assert value is not None
            if value.state.is_over and not transaction.is_busy and value.update_ms <= used_before:
                self.manager.bury(transaction)

    def tick(self) -> None:
        """Does what is due."""
        self.timers.run(self._clock.monotonic_ms(), "transactional id", self.went_wrong)

    def went_wrong(self, transactional_id: str, waiter: Waiter | None = None) -> None:
        """By a fault of ours: the waiter, or whoever waits for others of the id, is told to ask again."""
        transaction = self.manager.find(transactional_id)
        if waiter is not None:
            self._answers.fail(waiter, ErrorCode.UNKNOWN_SERVER_ERROR)
        elif transaction is not None:
            self.manager.end_turns(transaction, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    # --- coming and going

    @property
    def partitions(self) -> list[PartitionState] | None:
        """Of `__transaction_state`: None while that is not known, empty while it does not exist."""
        return self.manager.partitions

    def partition_for(self, transactional_id: str) -> int:
        return self.manager.partition_for(transactional_id)

    def opened(self, partitions: int) -> None:
        """`__transaction_state` has so many partitions, none of which was read yet; 0: it is not there."""
        self.manager.partitions = [PartitionState.LOADING] * partitions

    def loaded(
        self, partition: int, values: dict[str, TransactionValue | None], coordinator_epoch: int
    ) -> None:
        """`values` has the last of each id; what was decided gets its markers, perhaps once more."""
        for transaction in self.manager.loaded(partition, values, coordinator_epoch):
            assert transaction.value is not None
            if transaction.value.state.is_preparing:
                self._ends.send_markers(transaction)

    def failed(self, partition: int) -> None:
        """The partition cannot be read."""
        self.manager.failed(partition)

    def reopened(self, partition: int) -> bool:
        """Whether the partition was offline, and is loading now."""
        return self.manager.reopened(partition)

    def unload(self) -> None:
        """What the log says is not known any more: nobody waits, nothing is believed. Holds stay."""
        self.manager.unload()
