"""The transaction coordinator: the methods that serve requests, and periodic work.

The coordinator gets decoded requests, a clock and the records of its topic. It answers through `answers`,
writes through `queue` and appends markers through `markers`. A request is answered when the record of its
decision is durable. (Kafka: TransactionCoordinator.)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.runtime.host import Host
from mpbroker.coordinator.runtime.partitions import TopicPartitions
from mpbroker.coordinator.runtime.requests import Answers, Serve, Waiter
from mpbroker.coordinator.runtime.timers import Clock, Timers
from mpbroker.coordinator.runtime.write_queue import WriteQueue
from mpbroker.coordinator.transactions.add_partitions import AddPartitions
from mpbroker.coordinator.transactions.describe import DescribeTransactions
from mpbroker.coordinator.transactions.end_txn import EndTxn
from mpbroker.coordinator.transactions.init_producer_id import InitProducerId
from mpbroker.coordinator.transactions.listing import ListTransactions
from mpbroker.coordinator.transactions.marker_sender import MarkerSender
from mpbroker.coordinator.transactions.records import (
    Entry,
    TransactionState,
    TransactionValue,
    decode,
    encode,
)
from mpbroker.coordinator.transactions.state_manager import TransactionStateManager
from mpbroker.ipc.producer_ids import ProducerIds
from mpbroker.ipc.table import Partition
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.records.iterate import Batch

log = logging.getLogger("mpbroker.coordinator.transactions")


class TransactionContents:
    """Takes the records read from `__transaction_state`, and keeps the last one of each transactional id."""

    def __init__(self, state: TransactionStateManager, end_txn: EndTxn) -> None:
        self._state = state
        self._end_txn = end_txn
        self._values: dict[str, TransactionValue | None] = {}

    def begin(self) -> None:
        self._values = {}

    def read(self, _partition: int, batch: Batch) -> None:
        if batch.is_control:
            return
        for record in batch.records():
            if (entry := decode(record.key, record.value)) is not None:
                transactional_id, value = entry
                self._values[transactional_id] = value

    def end(self, end: Partition) -> None:
        """Load a partition's transactions. Send, perhaps again, the markers of those whose end is decided."""
        for transaction in self._state.load(end.partition, self._values, end.leader_epoch):
            assert transaction.value is not None
            if transaction.value.state.is_preparing:
                self._end_txn.send_markers(transaction)

    def fail(self, partition: int) -> None:
        self._state.fail(partition)


class TransactionCoordinator:
    """The state machine of transactions (implements Shard)."""

    creators: Final = frozenset({ApiKey.INIT_PRODUCER_ID})

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        markers: MarkerSender,
        producer_ids: ProducerIds,
        answers: Answers,
        host: Host,
    ) -> None:
        self._config = config
        self._clock = clock
        self._answers = answers
        self.timers = Timers()
        self.partitions = TopicPartitions()
        self.queue = WriteQueue[Entry](
            "transactional id",
            encode,
            self.partitions.partition_for,
            clock.wall_ms,
            # A transaction that could be added to can be ended, also if message.max.bytes was lowered since.
            lambda: config.transaction_state_log_segment_bytes,
            self.refuse_waiters,
        )
        self.state = TransactionStateManager(self.partitions, self.queue, self.timers, clock, producer_ids)
        self.end_txn = EndTxn(self.state, markers, self.timers, clock, answers)
        self.add_partitions = AddPartitions(config, self.state, self.end_txn.holds, clock, answers, host)
        self.contents = TransactionContents(self.state, self.end_txn)
        init_producer_id = InitProducerId(config, self.state, self.end_txn, clock, answers)
        describe = DescribeTransactions(self.state)
        self.listing = ListTransactions(self.state, self.timers, clock, answers)
        self.served: Mapping[ApiKey, Serve] = {
            ApiKey.INIT_PRODUCER_ID: init_producer_id.init,
            ApiKey.ADD_PARTITIONS_TO_TXN: self.add_partitions.add_partitions,
            ApiKey.ADD_OFFSETS_TO_TXN: self.add_partitions.add_offsets,
            ApiKey.END_TXN: self.end_txn.end,
            ApiKey.DESCRIBE_TRANSACTIONS: describe.describe,
            ApiKey.LIST_TRANSACTIONS: self.listing.list,
        }
        # The other members of the protocol `Shard`. Holds outlive `unload`.
        self.unload = self.state.unload
        self._set_sweep()
        self._set_expiry()

    def topic_loaded(self) -> None:
        """Do nothing: `TransactionContents.end` has sent the markers of each partition's transactions."""

    def waiters(self) -> list[Waiter]:
        """Return the requests whose steps are waiting, and the unfinished ListTransactions requests."""
        return [*self.state.waiters(), *self.listing.waiters()]

    def abandon(self, waiter: Waiter) -> None:
        """End the wait of a request whose client has disconnected."""
        self.state.abandon(waiter)
        self.listing.abandon(waiter)

    def withdraw(self, waiter: Waiter) -> None:
        """End the wait, if any, of a request that failed. The caller answers the request."""
        self.state.withdraw(waiter)
        self.listing.withdraw(waiter)

    def refuse_waiters(self, transactional_id: str, waiter: Waiter | None = None) -> None:
        """Fail `waiter`, or all waiting requests of the id if `waiter` is None, after an internal error."""
        transaction = self.state.find(transactional_id)
        if waiter is not None:
            self._answers.fail(waiter, ErrorCode.UNKNOWN_SERVER_ERROR)
        elif transaction is not None:
            self.state.refuse_pending_steps(transaction, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    # --- periodic work

    def tick(self) -> None:
        """Run the timers that have expired."""
        self.timers.run(self._clock.monotonic_ms(), "transactional id", self.refuse_waiters)

    def _set_sweep(self) -> None:
        interval_ms = self._config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        self.timers.set("sweep", self._clock.monotonic_ms() + interval_ms, self._sweep)

    def _sweep(self) -> None:
        """Abort transactions that have been open for longer than their timeout."""
        self._set_sweep()
        now_ms = self._clock.wall_ms()
        for transaction in self.state:
            value = transaction.value
            assert value is not None
            is_open = value.state is TransactionState.ONGOING and not transaction.is_busy
            if is_open and value.start_ms + value.timeout_ms < now_ms:
                log.info(
                    "transactional id %s: its transaction is open for longer than %d ms and is aborted; "
                    "epoch %d of producer %d is fenced",
                    transaction.transactional_id,
                    value.timeout_ms,
                    value.producer_epoch,
                    value.producer_id,
                )
                self.end_txn.fence(transaction, lambda _error: None)

    def _set_expiry(self) -> None:
        interval_ms = self._config.transaction_remove_expired_transaction_cleanup_interval_ms
        self.timers.set("expiry", self._clock.monotonic_ms() + interval_ms, self._expire)

    def _expire(self) -> None:
        """Delete transactional ids that were not used for transactional.id.expiration.ms."""
        self._set_expiry()
        used_before = self._clock.wall_ms() - self._config.transactional_id_expiration_ms
        for transaction in self.state:
            value = transaction.value
            assert value is not None
            if value.state.is_over and not transaction.is_busy and value.update_ms <= used_before:
                self.state.bury(transaction)
