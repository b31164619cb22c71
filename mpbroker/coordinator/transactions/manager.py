"""The transactional ids there are, and what happens to them one step after the other.

(Kafka: TransactionStateManager.) A step is written first and believed when it is durable; if it is refused it
never was. Requests for an id that has a step under way wait in its queue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from mpbroker.coordinator.runtime.answers import Then, Waiter, response_error
from mpbroker.coordinator.runtime.partitions import PartitionState, java_hash
from mpbroker.coordinator.runtime.timers import Clock, Timers
from mpbroker.coordinator.transactions.queue import PATIENCE_MS, Turn
from mpbroker.coordinator.transactions.records import Entry, TransactionValue
from mpbroker.coordinator.transactions.states import TransactionState
from mpbroker.coordinator.transactions.transaction import Step, Transaction
from mpbroker.protocol.errors import ApiError, ErrorCode

log = logging.getLogger("mpbroker")


class Writer(Protocol):
    def write(
        self, transactional_id: str, entries: list[Entry], then: Then, waiter: Waiter | None = None
    ) -> None:
        """Appends to the id's partition; `then` follows, in order, when that is durable or refused.
        `waiter`: who is answered then.
        """


class ProducerIds(Protocol):
    def take(self, then: Callable[[int | None], None]) -> None:
        """An id that nobody else has; None: there is none now."""


class TransactionManager:
    """`partitions` of `__transaction_state`: None while that is not known, empty while it does not exist.
    `epochs`: the leader epoch of each that is loaded.
    """

    def __init__(self, timers: Timers, clock: Clock, writer: Writer, producer_ids: ProducerIds) -> None:
        self.partitions: list[PartitionState] | None = None
        self.epochs: dict[int, int] = {}
        self._timers = timers
        self._clock = clock
        self._writer = writer
        self._producer_ids = producer_ids
        self._transactions: dict[str, Transaction] = {}
        # In all queues.
        self._waiting: dict[Turn, None] = {}

    # --- which there are

    def __iter__(self) -> Iterator[Transaction]:
        """Those that have a record."""
        return iter([one for one in self._transactions.values() if one.value is not None])

    def __len__(self) -> int:
        return len(self._transactions)

    def partition_for(self, transactional_id: str) -> int:
        return java_hash(transactional_id) % len(self.partitions) if self.partitions else 0

    def coordinator_epoch(self, transactional_id: str) -> int:
        return self.epochs[self.partition_for(transactional_id)]

    def check_loaded(self, transactional_id: str) -> None:
        """Raises ApiError."""
        if self.partitions is None:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if not self.partitions:
            return
        state = self.partitions[self.partition_for(transactional_id)]
        if state is PartitionState.LOADING:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if state is PartitionState.OFFLINE:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def find(self, transactional_id: str) -> Transaction | None:
        return self._transactions.get(transactional_id)

    def existing(self, transactional_id: str) -> tuple[Transaction, TransactionValue]:
        """Raises ApiError."""
        transaction = self.find(transactional_id)
        if transaction is None or transaction.value is None:
            raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return transaction, transaction.value

    def is_current(self, transaction: Transaction) -> bool:
        """Not forgotten, nor read anew, meanwhile."""
        return self._transactions.get(transaction.transactional_id) is transaction

    def put(self, transaction: Transaction) -> None:
        self._transactions[transaction.transactional_id] = transaction

    # --- one after the other

    def submit(
        self,
        transactional_id: str,
        attempt: Callable[[], bool],
        refuse: Then,
        waiter: Waiter | None,
    ) -> None:
        deadline_ms = self._clock.monotonic_ms() + PATIENCE_MS
        self._submit(Turn(transactional_id, attempt, refuse, waiter, deadline_ms))

    def _submit(self, turn: Turn) -> None:
        try:
            if not turn.transactional_id:
                raise ApiError(ErrorCode.INVALID_REQUEST)
            self.check_loaded(turn.transactional_id)
        except ApiError as error:
            turn.refuse(error.code)
            return
        transaction = self.find(turn.transactional_id)
        if (transaction is not None and transaction.turns) or not self._attempt(turn):
            self._wait(turn)

    def _attempt(self, turn: Turn) -> bool:
        return self._guarded(turn.transactional_id, turn.attempt, turn.refuse)

    def _guarded(self, transactional_id: str, attempt: Callable[[], bool], refuse: Then) -> bool:
        """What goes wrong with one is no other's affair: neither of who lets it go on nor of who waits."""
        try:
            return attempt()
        except ApiError as error:
            refuse(error.code)
        except Exception:
            log.exception("transactional id %s: a request failed", transactional_id)
            refuse(ErrorCode.UNKNOWN_SERVER_ERROR)
        return True

    def _wait(self, turn: Turn) -> None:
        transaction = self._transactions[turn.transactional_id]
        transaction.turns.append(turn)
        self._waiting[turn] = None
        give_up = partial(self._give_up, turn, ErrorCode.CONCURRENT_TRANSACTIONS)
        self._timers.set(("wait", turn.transactional_id, turn), turn.deadline_ms, give_up)

    def _give_up(self, turn: Turn, error: ErrorCode) -> None:
        transaction = self._transactions[turn.transactional_id]
        transaction.turns.remove(turn)
        self._has_waited(turn)
        turn.refuse(error)

    def _has_waited(self, turn: Turn) -> None:
        del self._waiting[turn]
        self._timers.cancel(("wait", turn.transactional_id, turn))

    def go_on(self, transaction: Transaction) -> None:
        """Who waits comes to its turn, if nothing is under way any more."""
        while transaction.turns and self.is_current(transaction):
            turn = transaction.turns.popleft()
            if not self._attempt(turn):
                transaction.turns.appendleft(turn)
                return
            self._has_waited(turn)

    def end_turns(self, transaction: Transaction, error: ErrorCode) -> None:
        for turn in list(transaction.turns):
            self._give_up(turn, error)

    def waiters(self) -> list[Waiter]:
        return [turn.waiter for turn in self._waiting if turn.waiter is not None]

    def abandon(self, waiter: Waiter) -> None:
        for turn in [turn for turn in self._waiting if turn.waiter == waiter]:
            self._give_up(turn, ErrorCode.NETWORK_EXCEPTION)

    # --- steps

    def write(self, transaction: Transaction, step: Step, then: Then, waiter: Waiter | None = None) -> None:
        """`then` hears what a client is to be told, when the step is done or undone."""

        def written(error: ErrorCode) -> None:
            if not self.is_current(transaction):
                then(response_error(error) or ErrorCode.NOT_COORDINATOR)
                return
            if error:
                transaction.undo()
            else:
                transaction.done(step)
            then(response_error(error))
            self.go_on(transaction)
            self._drop_if_unused(transaction)

        transaction.begin(step.value.state)
        try:
            self._writer.write(
                transaction.transactional_id, [(transaction.transactional_id, step.value)], written, waiter
            )
        except Exception:
            # Nothing is under way: the next step must not wait for it.
            transaction.undo()
            raise

    def take_id(self, transaction: Transaction, then: Callable[[int], None], refuse: Then) -> None:
        """A new producer id for it; until it is there nothing else happens to it."""
        transaction.takes_id = True

        def taken(producer_id: int | None) -> None:
            transaction.takes_id = False
            if not self.is_current(transaction):
                refuse(ErrorCode.NOT_COORDINATOR)
                return

            def attempt() -> bool:
                if producer_id is None:
                    raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
                then(producer_id)
                return True

            self._guarded(transaction.transactional_id, attempt, refuse)
            self.go_on(transaction)
            self._drop_if_unused(transaction)

        self._producer_ids.take(taken)

    def _drop_if_unused(self, transaction: Transaction) -> None:
        """Its first record was refused."""
        unused = transaction.value is None and not transaction.is_busy and not transaction.turns
        if unused and self.is_current(transaction):
            del self._transactions[transaction.transactional_id]

    def bury(self, transaction: Transaction) -> None:
        """Nobody has used it for long: it is forgotten, as if it had never been."""
        transaction.begin(TransactionState.DEAD)

        def written(error: ErrorCode) -> None:
            if not self.is_current(transaction):
                return
            transaction.undo()
            if error:
                self.go_on(transaction)
                return
            turns = list(transaction.turns)
            transaction.turns.clear()
            del self._transactions[transaction.transactional_id]
            for turn in turns:
                self._has_waited(turn)
                self._submit(turn)

        self._writer.write(transaction.transactional_id, [(transaction.transactional_id, None)], written)

    # --- coming and going

    def loaded(
        self, partition: int, values: dict[str, TransactionValue | None], coordinator_epoch: int
    ) -> list[Transaction]:
        """-> the transactions of the partition, as its records say."""
        assert self.partitions is not None
        self._forget(partition)
        found = [Transaction(name, value) for name, value in values.items() if value is not None]
        for transaction in found:
            transaction.assume_granted()
            self.put(transaction)
        self.epochs[partition] = coordinator_epoch
        self.partitions[partition] = PartitionState.LOADED
        return found

    def failed(self, partition: int) -> None:
        assert self.partitions is not None
        self._forget(partition)
        self.partitions[partition] = PartitionState.OFFLINE

    def reopened(self, partition: int) -> bool:
        if self.partitions is None or self.partitions[partition] is not PartitionState.OFFLINE:
            return False
        self.partitions[partition] = PartitionState.LOADING
        return True

    def _forget(self, partition: int) -> None:
        """Of one that was not loaded nothing is known."""
        assert self.partitions is not None
        if self.partitions[partition] is not PartitionState.LOADED:
            return
        for transaction in list(self._transactions.values()):
            if self.partition_for(transaction.transactional_id) == partition:
                self._forget_one(transaction)

    def _forget_one(self, transaction: Transaction) -> None:
        del self._transactions[transaction.transactional_id]
        turns = list(transaction.turns)
        transaction.turns.clear()
        for turn in turns:
            self._has_waited(turn)
            turn.refuse(ErrorCode.NOT_COORDINATOR)

    def unload(self) -> None:
        for transaction in list(self._transactions.values()):
            self._forget_one(transaction)
        self.epochs.clear()
        self.partitions = None
