"""What is known of a transactional id, and the steps that it can take. No clock, no I/O.

(Kafka: TransactionMetadata, and the rules of TransactionCoordinator that need nothing else.) A step is what
the next record will say; it counts when that is durable. One step is under way at a time.

Producers are told apart by (producer id, epoch). TV1: the epoch is bumped by InitProducerId, and when a
transaction is aborted behind its producer's back. TV2 (KIP-890): with each end of a transaction as well, in
the record that decides it, so that whatever comes late has an old epoch. Nobody is ever told the epoch 32767:
it is the one that fences the last that somebody was told.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from mpbroker.coordinator.runtime.batches import Marker, Producer
from mpbroker.coordinator.transactions.queue import Turn
from mpbroker.coordinator.transactions.records import (
    NO_TIME,
    TV1,
    TV2,
    TopicPartition,
    TransactionValue,
)
from mpbroker.coordinator.transactions.states import ALLOWED_FROM, TransactionState
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

LAST_EPOCH: Final = 32767
EXHAUSTED_FROM: Final = LAST_EPOCH - 1


class Step(NamedTuple):
    """`last_epoch`: the one that whoever asks again for the epoch of `value` still has; no record has it."""

    value: TransactionValue
    last_epoch: int


@dataclass(eq=False)
class Transaction:
    """`value`: what is durable, None before the first record; `pending`: the state it is about to enter.

    `takes_id`: a producer id for it is on its way. `is_held`: its markers wait for batches. `bumps`: its
    producer is known to end transactions as TV2 does. `is_granted`: handlers let batches of this epoch pass
    without asking, so that nothing but another one keeps them out of the next transaction. `turns`: who waits
    for the end of what is under way.
    """

    transactional_id: str
    value: TransactionValue | None = None
    last_epoch: int = NO_PRODUCER_EPOCH
    pending: TransactionState | None = None
    takes_id: bool = False
    is_held: bool = False
    bumps: bool = False
    is_granted: bool = False
    turns: deque[Turn] = field(default_factory=deque)

    @property
    def is_changing(self) -> bool:
        """Whether `value` may be another one soon."""
        return self.pending is not None or self.takes_id

    @property
    def is_busy(self) -> bool:
        """Whether the next step has to wait."""
        return self.is_changing or (self.value is not None and self.value.state.is_preparing)

    @property
    def is_ending(self) -> bool:
        """Whether its end is decided, or about to be."""
        if self.pending is not None and self.pending.is_preparing:
            return True
        return self.value is not None and self.value.state.is_preparing

    def assume_granted(self) -> None:
        """Handlers may have been told so by an earlier coordinator."""
        value = self.value
        assert value is not None
        self.is_granted = value.state is TransactionState.ONGOING and value.client_version == TV2

    def begin(self, state: TransactionState) -> None:
        assert self.pending is None, f"{self.transactional_id}: {self.pending} is under way, not {state}"
        before = TransactionState.EMPTY if self.value is None else self.value.state
        assert before in ALLOWED_FROM[state], f"{self.transactional_id}: from {before} to {state}"
        self.pending = state

    def done(self, step: Step) -> None:
        self.pending = None
        if self.value is not None and self.value.producer_epoch != step.value.producer_epoch:
            self.is_granted = False
        self.value, self.last_epoch = step

    def undo(self) -> None:
        self.pending = None


def is_exhausted(epoch: int) -> bool:
    return epoch >= EXHAUSTED_FROM


def check_producer(value: TransactionValue, producer: Producer) -> None:
    """Raises ApiError unless the producer is the one that is known, and has been told so.

    A client whose epochs are used up has been told its next id while the old one's markers are on their way.
    """
    if value.next_producer_id != NO_PRODUCER_ID and producer == (value.next_producer_id, 0):
        return
    if producer.producer_id != value.producer_id:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if producer.epoch != value.producer_epoch or producer.epoch == LAST_EPOCH:
        raise ApiError(ErrorCode.PRODUCER_FENCED)


# --- InitProducerId


class Bump(Enum):
    """What becomes of the epoch when a producer begins anew."""

    NEXT = 0
    SAME = 1  # the answer to an earlier request was lost
    NEW_ID = 2


def new_producer(producer_id: int, timeout_ms: int, now_ms: int) -> Step:
    value = TransactionValue(producer_id, 0, timeout_ms, TransactionState.EMPTY, frozenset(), now_ms)
    return Step(value, NO_PRODUCER_EPOCH)


def bump_for(value: TransactionValue, last_epoch: int, expected: Producer | None) -> Bump:
    """Raises ApiError if `expected`, what the producer believes itself to be, is not what it is."""
    epoch = value.producer_epoch
    if expected is None or expected == (value.producer_id, epoch):
        return Bump.NEW_ID if is_exhausted(epoch) else Bump.NEXT
    is_ours = expected.producer_id == value.producer_id
    is_rotated = expected.producer_id == value.previous_producer_id and is_exhausted(expected.epoch)
    if (is_ours or is_rotated) and last_epoch != NO_PRODUCER_EPOCH and expected.epoch == last_epoch:
        return Bump.NEW_ID if epoch == LAST_EPOCH else Bump.SAME
    raise ApiError(ErrorCode.PRODUCER_FENCED)


def begin_anew(transaction: Transaction, timeout_ms: int, expected: Producer | None, now_ms: int) -> Step:
    """The same producer id, with the next epoch. Raises ApiError."""
    value = transaction.value
    assert value is not None
    is_retry = bump_for(value, transaction.last_epoch, expected) is Bump.SAME
    last_epoch = NO_PRODUCER_EPOCH if expected is None else expected.epoch
    epoch = value.producer_epoch if is_retry else value.producer_epoch + 1
    return Step(_emptied(value, timeout_ms, now_ms)._replace(producer_epoch=epoch), last_epoch)


def rotate(
    value: TransactionValue, producer_id: int, timeout_ms: int, expected: Producer | None, now_ms: int
) -> Step:
    """Another producer id: the epochs of this one are used up."""
    emptied = _emptied(value, timeout_ms, now_ms)
    return Step(
        emptied._replace(producer_id=producer_id, producer_epoch=0, previous_producer_id=value.producer_id),
        NO_PRODUCER_EPOCH if expected is None else expected.epoch,
    )


def _emptied(value: TransactionValue, timeout_ms: int, now_ms: int) -> TransactionValue:
    return value._replace(
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        partitions=frozenset(),
        update_ms=now_ms,
        start_ms=NO_TIME,
    )


# --- partitions


def add(
    transaction: Transaction, partitions: frozenset[TopicPartition], client_version: int, now_ms: int
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
            # Of all that was added: once a part of it was added as TV2 it may be granted.
            client_version=max(value.client_version, client_version) if is_open else client_version,
        ),
        transaction.last_epoch,
    )


# --- the end


class Verdict(Enum):
    """What an EndTxn comes to."""

    END = 0
    WAIT = 1
    RETRY = 2  # it was done: the answer was lost


def judge_end(value: TransactionValue, producer: Producer, is_commit: bool, client_version: int) -> Verdict:
    """Raises ApiError."""
    return (_judge_end_v2 if client_version == TV2 else _judge_end_v1)(value, producer, is_commit)


def _judge_end_v1(value: TransactionValue, producer: Producer, is_commit: bool) -> Verdict:
    check_producer(value, producer)
    state = value.state
    if state is TransactionState.ONGOING:
        return Verdict.END
    if state is TransactionState.EMPTY or state.is_commit != is_commit:
        raise ApiError(ErrorCode.INVALID_TXN_STATE)
    return Verdict.WAIT if state.is_preparing else Verdict.RETRY


def _judge_end_v2(value: TransactionValue, producer: Producer, is_commit: bool) -> Verdict:
    """An ABORT of nothing is allowed: the client may not know whether what it sent came to something."""
    state = value.state
    if _is_retry(value, producer):
        if state.is_commit != is_commit:
            raise ApiError(ErrorCode.INVALID_TXN_STATE)
        return Verdict.WAIT if state.is_preparing else Verdict.RETRY
    check_producer(value, producer)
    if state.is_preparing:
        return Verdict.WAIT
    if is_commit and state is not TransactionState.ONGOING:
        raise ApiError(ErrorCode.INVALID_TXN_STATE)
    return Verdict.END


def _is_retry(value: TransactionValue, producer: Producer) -> bool:
    """Whether it has the epoch that its EndTxn v5 has left behind. Nobody has the one that a fence did."""
    if value.client_version != TV2 or value.state in (TransactionState.EMPTY, TransactionState.ONGOING):
        return False
    if producer == (value.producer_id, value.producer_epoch - 1):
        return True
    overflowed = not value.state.is_preparing and value.producer_epoch == 0
    return overflowed and producer == (value.previous_producer_id, EXHAUSTED_FROM)


def needs_next_id(value: TransactionValue, client_version: int) -> bool:
    return client_version == TV2 and is_exhausted(value.producer_epoch)


def prepare(
    transaction: Transaction, is_commit: bool, client_version: int, next_producer_id: int, now_ms: int
) -> Step:
    """The decision; `next_producer_id` if the epochs are used up."""
    value = transaction.value
    assert value is not None
    is_open = value.state is TransactionState.ONGOING
    bumps = client_version == TV2
    return Step(
        value._replace(
            producer_epoch=value.producer_epoch + bumps,
            state=TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT,
            update_ms=now_ms,
            start_ms=value.start_ms if is_open else now_ms,
            next_producer_id=next_producer_id,
            client_version=client_version,
        ),
        value.producer_epoch if bumps else transaction.last_epoch,
    )


def fence(value: TransactionValue, expected: Producer | None, now_ms: int) -> Step:
    """An abort without the producer: its epoch is no longer valid. (Kafka: PrepareEpochFence.)

    `expected`: who asks for that knows the epoch, and may ask for its successor. The record is one of TV1:
    else the fenced producer's EndTxn would look like a retry of the request that has bumped its epoch.
    """
    assert value.state is TransactionState.ONGOING
    return Step(
        value._replace(
            producer_epoch=min(value.producer_epoch + 1, LAST_EPOCH),
            state=TransactionState.PREPARE_ABORT,
            update_ms=now_ms,
            client_version=TV1,
        ),
        NO_PRODUCER_EPOCH if expected is None else expected.epoch,
    )


def complete(transaction: Transaction, now_ms: int) -> Step:
    """All markers are written."""
    value = transaction.value
    assert value is not None
    assert value.state.is_preparing
    is_commit = value.state.is_commit
    done = value._replace(
        state=TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
        partitions=frozenset(),
        update_ms=now_ms,
    )
    if value.next_producer_id == NO_PRODUCER_ID:
        return Step(done, transaction.last_epoch)
    return Step(
        done._replace(
            producer_id=value.next_producer_id,
            producer_epoch=0,
            previous_producer_id=value.producer_id,
            next_producer_id=NO_PRODUCER_ID,
        ),
        transaction.last_epoch,
    )


def marker_for(value: TransactionValue, coordinator_epoch: int) -> Marker:
    return Marker(value.producer_id, value.producer_epoch, coordinator_epoch, value.state.is_commit)


def told(value: TransactionValue) -> Producer:
    """What a client that has ended its transaction is from then on."""
    if value.next_producer_id != NO_PRODUCER_ID:
        return Producer(value.next_producer_id, 0)
    return Producer(value.producer_id, value.producer_epoch)
