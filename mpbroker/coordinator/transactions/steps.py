"""The state of a transactional id, and its steps. No clock, no I/O.

A step is the content of the next record. It is applied when the record is durable. One step is under way at a
time. (Kafka: TransactionMetadata, and those rules of TransactionCoordinator that need no other state.)

A producer is identified by (producer id, epoch). In transaction version 1 (TV1) only InitProducerId bumps the
epoch. In TV2 (KIP-890) each end of a transaction also bumps it, in the record that decides the end, so that a
late batch has an old epoch. An abort that the producer did not request bumps the epoch in TV1, too. No
producer gets the epoch 32767, which only fences the epoch 32766.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from mpbroker.coordinator.runtime.requests import Then, Waiter
from mpbroker.coordinator.runtime.write_queue import Marker, Producer
from mpbroker.coordinator.transactions.records import (
    ALLOWED_FROM,
    NO_TIME,
    TV2,
    TransactionState,
    TransactionValue,
)
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.topic_names import TopicPartition
from mpbroker.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

LAST_EPOCH: Final = 32767
EXHAUSTED_FROM: Final = LAST_EPOCH - 1


# As long as a Kafka broker retries for its clients (add.partitions.to.txn.retry.backoff.max.ms).
PATIENCE_MS: Final = 100

Action: TypeAlias = Callable[[], None]


@dataclass(eq=False)
class PendingStep:
    """A request's step. It may have to wait until an earlier step of the same transactional id has ended.

    Kafka answers CONCURRENT_TRANSACTIONS at once, and its clients retry after 20 to 100 ms. A step usually
    takes less time, so here requests wait in their order, and are refused after PATIENCE_MS.

    `attempt` returns the action that serves the request, or None if the step has to wait. If it raises,
    `refuse` is called. Either the action or `refuse` answers the request. `waiter` is None for a step that
    serves no client.
    """

    transactional_id: str
    attempt: Callable[[], Action | None]
    refuse: Then
    waiter: Waiter | None
    deadline_ms: int | None = None


class Step(NamedTuple):
    """The next value of a transactional id. (Kafka: TxnTransitMetadata.)

    `last_epoch`: the previous epoch. A client that did not get the last answer retries with this epoch.
    Records do not contain it.
    """

    value: TransactionValue
    last_epoch: int


@dataclass(eq=False)
class TransactionMetadata:
    """A transactional id. `value` is durable, None before the first record.

    `pending_state`: the state after the step under way; None if no step is under way.
    `takes_id`: a producer id for the next step is being allocated.
    `is_held`: the markers wait until batches in flight are in the log.
    `bumps`: the producer is known to bump its epoch at each end of a transaction (TV2).
    `is_epoch_verified`: handlers accept batches of this epoch without asking the coordinator, so the next
    transaction needs another epoch.
    `pending_steps`: steps that wait until the step under way has ended.
    """

    transactional_id: str
    value: TransactionValue | None = None
    last_epoch: int = NO_PRODUCER_EPOCH
    pending_state: TransactionState | None = None
    takes_id: bool = False
    is_held: bool = False
    bumps: bool = False
    is_epoch_verified: bool = False
    pending_steps: deque[PendingStep] = field(default_factory=deque)

    @property
    def is_changing(self) -> bool:
        """True if a step is under way, which may replace `value`."""
        return self.pending_state is not None or self.takes_id

    @property
    def is_busy(self) -> bool:
        """True if the next step has to wait: a step is under way, or markers are being written."""
        return self.is_changing or (self.value is not None and self.value.state.is_preparing)

    @property
    def is_ending(self) -> bool:
        """True if the end of the transaction is being decided, or is decided and not complete."""
        if self.pending_state is not None and self.pending_state.is_preparing:
            return True
        return self.value is not None and self.value.state.is_preparing

    def assume_verified(self) -> None:
        """Set `is_epoch_verified` after loading: True if handlers may have verified the epoch already."""
        value = self.value
        assert value is not None
        self.is_epoch_verified = value.state is TransactionState.ONGOING and value.client_version == TV2

    def begin(self, state: TransactionState) -> None:
        assert self.pending_state is None, (
            f"{self.transactional_id}: {self.pending_state} is under way, not {state}"
        )
        before = TransactionState.EMPTY if self.value is None else self.value.state
        assert before in ALLOWED_FROM[state], f"{self.transactional_id}: from {before} to {state}"
        self.pending_state = state

    def done(self, step: Step) -> None:
        self.pending_state = None
        if self.value is not None and self.value.producer_epoch != step.value.producer_epoch:
            self.is_epoch_verified = False
        self.value, self.last_epoch = step

    def undo(self) -> None:
        self.pending_state = None


def is_exhausted(epoch: int) -> bool:
    return epoch >= EXHAUSTED_FROM


def check_producer(value: TransactionValue, producer: Producer) -> None:
    """Raise ApiError unless `producer` is the transactional id's producer with its current epoch.

    If the epochs are used up, the client may use `next_producer_id` already while markers are being written.
    """
    if value.next_producer_id != NO_PRODUCER_ID and producer == (value.next_producer_id, 0):
        return
    if producer.producer_id != value.producer_id:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if producer.epoch != value.producer_epoch or producer.epoch == LAST_EPOCH:
        raise ApiError(ErrorCode.PRODUCER_FENCED)


# --- InitProducerId


class Bump(Enum):
    """What InitProducerId does with the epoch: increase it, keep it, or start again with a new id."""

    NEXT = 0
    SAME = 1  # The answer to an earlier request was lost.
    NEW_ID = 2


def new_producer(producer_id: int, timeout_ms: int, now_ms: int) -> Step:
    value = TransactionValue(
        producer_id,
        0,
        timeout_ms,
        TransactionState.EMPTY,
        frozenset(),
        now_ms,
        previous_producer_id=producer_id,
    )
    return Step(value, NO_PRODUCER_EPOCH)


def bump_for(value: TransactionValue, last_epoch: int, expected: Producer | None) -> Bump:
    """Return what InitProducerId does with the epoch. Raises ApiError if `expected` is an old producer."""
    epoch = value.producer_epoch
    if expected is not None:
        is_ours = expected.producer_id == value.producer_id
        is_rotated = expected.producer_id == value.previous_producer_id and is_exhausted(expected.epoch)
        if not (is_ours or is_rotated) or expected.epoch not in (epoch, last_epoch):
            raise ApiError(ErrorCode.PRODUCER_FENCED)
        if expected.epoch != epoch:
            return Bump.SAME
    return Bump.NEW_ID if is_exhausted(epoch) else Bump.NEXT


def check_may_abort(transaction: TransactionMetadata, expected: Producer | None, now_ms: int) -> None:
    """Raise ApiError if InitProducerId would be refused even after the open transaction was aborted.

    (Kafka checks the epoch only after the abort, so in Kafka a late copy of a request aborts the transaction
    of the next producer.)
    """
    aborted = prepare(transaction, False, TV2, now_ms, NO_PRODUCER_ID)
    bump_for(aborted.value, aborted.last_epoch, expected)


def begin_next_epoch(
    transaction: TransactionMetadata, timeout_ms: int, expected: Producer | None, now_ms: int
) -> Step:
    """Return a step that keeps the producer id and, except for a retry, bumps the epoch. Raises ApiError."""
    value = transaction.value
    assert value is not None
    is_retry = bump_for(value, transaction.last_epoch, expected) is Bump.SAME
    last_epoch = NO_PRODUCER_EPOCH if expected is None else expected.epoch
    epoch = value.producer_epoch if is_retry else value.producer_epoch + 1
    return Step(_emptied(value, timeout_ms, now_ms)._replace(producer_epoch=epoch), last_epoch)


def rotate(
    value: TransactionValue, producer_id: int, timeout_ms: int, expected: Producer | None, now_ms: int
) -> Step:
    """Return the step of an InitProducerId that replaces the producer id, because its epochs are used up."""
    emptied = _emptied(value, timeout_ms, now_ms)
    return Step(
        emptied._replace(producer_id=producer_id, producer_epoch=0),
        NO_PRODUCER_EPOCH if expected is None else expected.epoch,
    )


def _emptied(value: TransactionValue, timeout_ms: int, now_ms: int) -> TransactionValue:
    return value._replace(
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        partitions=frozenset(),
        update_ms=now_ms,
        start_ms=NO_TIME,
        previous_producer_id=value.producer_id,
    )


# --- partitions


def add(
    transaction: TransactionMetadata, partitions: frozenset[TopicPartition], client_version: int, now_ms: int
) -> Step:
    value = transaction.value
    assert value is not None
    is_open = value.state is TransactionState.ONGOING
    return Step(
        value._replace(
            state=TransactionState.ONGOING,
            partitions=value.partitions | partitions if is_open else partitions,
            update_ms=now_ms,
            start_ms=value.start_ms if is_open else now_ms,
            previous_producer_id=value.producer_id,
            # Once one partition was added as TV2, handlers may have verified the epoch.
            client_version=max(value.client_version, client_version) if is_open else client_version,
        ),
        transaction.last_epoch,
    )


# --- the end


class Verdict(Enum):
    """What to do with an EndTxn request."""

    END = 0
    WAIT = 1
    RETRY = 2  # It was done: the answer was lost.


def judge_end(value: TransactionValue, producer: Producer, is_commit: bool, client_version: int) -> Verdict:
    """Return what to do with an EndTxn. Raises ApiError if the request must be refused."""
    return (_judge_end_v2 if client_version == TV2 else _judge_end_v1)(value, producer, is_commit)


def _judge_end_v1(value: TransactionValue, producer: Producer, is_commit: bool) -> Verdict:
    check_producer(value, producer)
    if value.state.is_preparing:
        return Verdict.WAIT
    if value.state is TransactionState.ONGOING:
        return Verdict.END
    return _judge_retry(value, is_commit)


def _judge_end_v2(value: TransactionValue, producer: Producer, is_commit: bool) -> Verdict:
    """Judge a TV2 client's EndTxn. The client may send an abort even if no transaction is open."""
    if value.state.is_preparing:
        return Verdict.WAIT
    if _has_bumped_epoch(value, producer):
        if value.state in (TransactionState.EMPTY, TransactionState.ONGOING):
            raise ApiError(ErrorCode.PRODUCER_FENCED)
        return _judge_retry(value, is_commit)
    check_producer(value, producer)
    if is_commit and value.state is not TransactionState.ONGOING:
        raise ApiError(ErrorCode.INVALID_TXN_STATE)
    return Verdict.END


def _judge_retry(value: TransactionValue, is_commit: bool) -> Verdict:
    if value.state is TransactionState.EMPTY or value.state.is_commit != is_commit:
        raise ApiError(ErrorCode.INVALID_TXN_STATE)
    return Verdict.RETRY


def _has_bumped_epoch(value: TransactionValue, producer: Producer) -> bool:
    """Return whether `producer` is one epoch behind, because of a lost answer or a timeout."""
    if producer == (value.producer_id, value.producer_epoch - 1):
        return True
    return value.producer_epoch == 0 and producer == (value.previous_producer_id, EXHAUSTED_FROM)


def needs_next_id(value: TransactionValue, client_version: int) -> bool:
    return client_version == TV2 and is_exhausted(value.producer_epoch)


def prepare(
    transaction: TransactionMetadata, is_commit: bool, client_version: int, now_ms: int, next_producer_id: int
) -> Step:
    """Return the step that decides the end. `next_producer_id`: the client's next id, if one is needed."""
    value = transaction.value
    assert value is not None
    is_open = value.state is TransactionState.ONGOING
    bumps = client_version == TV2
    return Step(
        value._replace(
            producer_epoch=min(value.producer_epoch + bumps, LAST_EPOCH),
            state=TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT,
            update_ms=now_ms,
            start_ms=value.start_ms if is_open else now_ms,
            previous_producer_id=value.producer_id,
            next_producer_id=next_producer_id,
            client_version=client_version,
        ),
        value.producer_epoch if bumps else transaction.last_epoch,
    )


def complete(transaction: TransactionMetadata, now_ms: int) -> Step:
    """Return the step that completes the transaction, after all markers are durable."""
    value = transaction.value
    assert value is not None
    assert value.state.is_preparing
    is_commit = value.state.is_commit
    done = value._replace(
        state=TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
        partitions=frozenset(),
        update_ms=now_ms,
        previous_producer_id=value.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )
    if value.next_producer_id != NO_PRODUCER_ID:
        done = done._replace(producer_id=value.next_producer_id, producer_epoch=0)
    return Step(done, transaction.last_epoch)


def marker_for(value: TransactionValue, coordinator_epoch: int) -> Marker:
    return Marker(value.producer_id, value.producer_epoch, coordinator_epoch, value.state.is_commit)


def producer_after_end(value: TransactionValue) -> Producer:
    """Return the client's producer id and epoch after the end of its transaction."""
    if value.next_producer_id != NO_PRODUCER_ID:
        return Producer(value.next_producer_id, 0)
    return Producer(value.producer_id, value.producer_epoch)
