"""The transactional ids, and the steps that change their states: at most one step per id at a time.

(Kafka: TransactionStateManager.) A step is written first and applied when it is durable; a refused step
leaves the transactional id unchanged. While a step is under way, requests for the same id wait in a queue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from mpbroker.coordinator.runtime.partitions import LoadState, TopicPartitions
from mpbroker.coordinator.runtime.requests import Then, Waiter, response_error
from mpbroker.coordinator.runtime.timers import Clock, Timers
from mpbroker.coordinator.runtime.write_queue import WriteQueue
from mpbroker.coordinator.transactions.records import Entry, TransactionState, TransactionValue
from mpbroker.coordinator.transactions.steps import PATIENCE_MS, PendingStep, Step, TransactionMetadata
from mpbroker.ipc.producer_ids import ProducerIds
from mpbroker.protocol.errors import ApiError, ErrorCode

log = logging.getLogger("mpbroker.coordinator.transactions")


@dataclass(eq=False)
class TransactionStateManager:
    """The transactional ids. `epochs`: the leader epoch of each loaded partition, by its number."""

    partitions: TopicPartitions
    _queue: WriteQueue[Entry]
    _timers: Timers
    _clock: Clock
    _producer_ids: ProducerIds
    epochs: dict[int, int] = field(default_factory=dict, init=False)
    _transactions: dict[str, TransactionMetadata] = field(default_factory=dict, init=False)
    # The steps in the queues of all transactions. (A dict for its order.)
    _waiting: dict[PendingStep, None] = field(default_factory=dict, init=False)

    # --- transactions

    def __iter__(self) -> Iterator[TransactionMetadata]:
        """Iterate over a copy of the transactions that have a record."""
        return iter([one for one in self._transactions.values() if one.value is not None])

    def __len__(self) -> int:
        return len(self._transactions)

    def coordinator_epoch(self, transactional_id: str) -> int:
        return self.epochs[self.partitions.partition_for(transactional_id)]

    def find(self, transactional_id: str) -> TransactionMetadata | None:
        return self._transactions.get(transactional_id)

    def existing(self, transactional_id: str) -> tuple[TransactionMetadata, TransactionValue]:
        """Return the transaction and its value. Raises ApiError if it has no record."""
        transaction = self._transactions.get(transactional_id)
        if transaction is None or transaction.value is None:
            raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return transaction, transaction.value

    def is_current(self, transaction: TransactionMetadata) -> bool:
        """Return whether this object is still the state of its id. Returns False after a drop or a reload."""
        return self._transactions.get(transaction.transactional_id) is transaction

    def put(self, transaction: TransactionMetadata) -> None:
        self._transactions[transaction.transactional_id] = transaction

    # --- one after the other

    def submit(self, step: PendingStep) -> None:
        """Attempt the step now, or after the steps that wait already."""
        try:
            if not step.transactional_id:
                raise ApiError(ErrorCode.INVALID_REQUEST)
            self.partitions.check_loaded(step.transactional_id)
            transaction = self.find(step.transactional_id)
            has_to_queue = transaction is not None and transaction.pending_steps
            action = None if has_to_queue else step.attempt()
            if action is None:
                self._wait(step)
            else:
                action()
        except Exception as error:  # noqa: BLE001 - `_refuse` handles every error
            _refuse(step.transactional_id, step.refuse, error)

    def _wait(self, step: PendingStep) -> None:
        transaction = self._transactions[step.transactional_id]
        transaction.pending_steps.append(step)
        self._waiting[step] = None
        if step.deadline_ms is None:
            step.deadline_ms = self._clock.monotonic_ms() + PATIENCE_MS
        give_up = partial(self._give_up, step, ErrorCode.CONCURRENT_TRANSACTIONS)
        self._timers.set(("wait", step.transactional_id, step), step.deadline_ms, give_up)

    def _give_up(self, step: PendingStep, error: ErrorCode) -> None:
        self._transactions[step.transactional_id].pending_steps.remove(step)
        self._end_wait(step)
        step.refuse(error)

    def _end_wait(self, step: PendingStep) -> None:
        del self._waiting[step]
        self._timers.cancel(("wait", step.transactional_id, step))

    def _take_pending_steps(self, transaction: TransactionMetadata) -> None:
        """Attempt the waiting steps in order, until one of them has to wait again."""
        while transaction.pending_steps and self.is_current(transaction):
            step = transaction.pending_steps.popleft()
            try:
                action = step.attempt()
                if action is None:
                    transaction.pending_steps.appendleft(step)
                    return
                action()
            except Exception as error:  # noqa: BLE001 - `_refuse` handles every error
                _refuse(step.transactional_id, step.refuse, error)
            self._end_wait(step)

    def refuse_pending_steps(self, transaction: TransactionMetadata, error: ErrorCode) -> None:
        for step in list(transaction.pending_steps):
            self._give_up(step, error)

    def waiters(self) -> list[Waiter]:
        """Return the requests whose steps are waiting."""
        return [step.waiter for step in self._waiting if step.waiter is not None]

    def abandon(self, waiter: Waiter) -> None:
        """End the wait of a request whose client has disconnected. A step under way is not stopped."""
        for step in [step for step in self._waiting if step.waiter == waiter]:
            self._give_up(step, ErrorCode.NETWORK_EXCEPTION)

    def withdraw(self, waiter: Waiter) -> None:
        """Do nothing. A request cannot fail after it has queued its step, which is its last action."""

    # --- steps

    def append(
        self, transaction: TransactionMetadata, step: Step, report: Then, waiter: Waiter | None = None
    ) -> None:
        """Write a step. Call `report` with NONE when the step is durable, with an error if it is refused."""
        transaction.begin(step.value.state)
        apply = partial(self._apply_or_undo, transaction, step, report)
        try:
            name = transaction.transactional_id
            self._queue.append(name, [(name, step.value)], apply, waiter)
        except Exception:
            # Nothing is under way: the next step must not wait for it.
            transaction.undo()
            self._drop_if_unused(transaction)
            raise

    def _apply_or_undo(
        self, transaction: TransactionMetadata, step: Step, report: Then, error: ErrorCode
    ) -> None:
        if not self.is_current(transaction):
            report(response_error(error) or ErrorCode.NOT_COORDINATOR)
            return
        if error:
            transaction.undo()
        else:
            transaction.done(step)
        report(response_error(error))
        self._take_pending_steps(transaction)
        self._drop_if_unused(transaction)

    def append_with_new_id(
        self,
        transaction: TransactionMetadata,
        make_step: Callable[[int], Step],
        report: Then,
        waiter: Waiter | None,
    ) -> None:
        """Allocate a producer id, then write the step that `make_step` returns for it."""
        producer_id = self._producer_ids.take_now()
        if producer_id is not None:
            self.append(transaction, make_step(producer_id), report, waiter)
            return
        transaction.takes_id = True

        def taken(producer_id: int | None) -> None:
            transaction.takes_id = False
            if not self.is_current(transaction):
                report(ErrorCode.NOT_COORDINATOR)
                return
            try:
                if producer_id is None:
                    raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
                self.append(transaction, make_step(producer_id), report, waiter)
            except Exception as error:  # noqa: BLE001 - `_refuse` handles every error
                _refuse(transaction.transactional_id, report, error)
            self._take_pending_steps(transaction)
            self._drop_if_unused(transaction)

        self._producer_ids.take(taken)

    def _drop_if_unused(self, transaction: TransactionMetadata) -> None:
        """Drop a transactional id that has no record, no step under way and no waiting step."""
        unused = transaction.value is None and not transaction.is_busy and not transaction.pending_steps
        if unused and self.is_current(transaction):
            del self._transactions[transaction.transactional_id]

    def bury(self, transaction: TransactionMetadata) -> None:
        """Write a tombstone for an expired transactional id. Drop the id when the tombstone is durable."""
        transaction.begin(TransactionState.DEAD)

        def written(error: ErrorCode) -> None:
            if not self.is_current(transaction):
                return
            transaction.undo()
            if error:
                self._take_pending_steps(transaction)
                return
            for step in self._drop(transaction):
                self.submit(step)

        self._queue.append(transaction.transactional_id, [(transaction.transactional_id, None)], written)

    # --- loading and unloading

    def load(
        self, partition: int, values: dict[str, TransactionValue | None], coordinator_epoch: int
    ) -> list[TransactionMetadata]:
        """Add and return the transactions of a partition. `values`: the last value by transactional id."""
        self._unload_partition(partition)
        found = [TransactionMetadata(name, value) for name, value in values.items() if value is not None]
        for transaction in found:
            transaction.assume_verified()
            self.put(transaction)
        self.epochs[partition] = coordinator_epoch
        self.partitions.set(partition, LoadState.LOADED)
        return found

    def fail(self, partition: int) -> None:
        """Mark the partition offline, and drop its transactions."""
        self._unload_partition(partition)
        self.partitions.set(partition, LoadState.OFFLINE)

    def _unload_partition(self, partition: int) -> None:
        if not self.partitions.is_loaded(partition):
            return
        for transaction in list(self._transactions.values()):
            if self.partitions.partition_for(transaction.transactional_id) == partition:
                self._unload(transaction)

    def _unload(self, transaction: TransactionMetadata) -> None:
        for step in self._drop(transaction):
            step.refuse(ErrorCode.NOT_COORDINATOR)

    def _drop(self, transaction: TransactionMetadata) -> list[PendingStep]:
        """Drop the transaction and its queue. Return the steps that waited."""
        del self._transactions[transaction.transactional_id]
        steps = list(transaction.pending_steps)
        transaction.pending_steps.clear()
        for step in steps:
            self._end_wait(step)
        return steps

    def unload(self) -> None:
        """Drop all transactions, and refuse all waiting steps with NOT_COORDINATOR."""
        for transaction in list(self._transactions.values()):
            self._unload(transaction)
        self.epochs.clear()
        self.partitions.close()


def _refuse(transactional_id: str, refuse: Then, error: Exception) -> None:
    """Call `refuse` with the code of `error`; if `error` is no ApiError, log it and use a general code."""
    if isinstance(error, ApiError):
        refuse(error.code)
    else:
        log.error("transactional id %s: a request failed", transactional_id, exc_info=error)
        refuse(ErrorCode.UNKNOWN_SERVER_ERROR)
