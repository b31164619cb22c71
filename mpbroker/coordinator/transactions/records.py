"""The records of `__transaction_state` in Kafka's format (TransactionLogKey, TransactionLogValue).

A key of version 0 is a transactional id; records with keys of other versions are skipped, as in Kafka. A null
value is a tombstone. Values are written in the flexible version 1, as Kafka with transaction.version 1 or 2
does. Version 0 is read as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from mpbroker.coordinator.runtime.log_records import (
    UnreadableRecord,
    decode_record,
    encode_key,
    encode_value,
)
from mpbroker.protocol.messages import TransactionLogKey, TransactionLogValue
from mpbroker.protocol.topic_names import TopicPartition
from mpbroker.records.batch import NO_PRODUCER_ID

KEY: Final = 0
VALUE_VERSION: Final = 1
NO_TIME: Final = -1
TV1: Final = 0
"""A client that does not bump its epoch at the end of each transaction. (Kafka writes 0 for it, too.)"""
TV2: Final = 2


class TransactionState(Enum):
    """The states of a transactional id, with Kafka's numbers and names (Kafka: TransactionState).

        Empty ──► Ongoing ──► PrepareCommit ──► CompleteCommit
          │          │
          └──────────┴──────► PrepareAbort ───► CompleteAbort

    CompleteCommit and CompleteAbort lead to the same states as Empty. Two states are never written: Dead,
    while a transactional id is being deleted, and PrepareEpochFence, in which Kafka bumps the epoch of an
    Ongoing transaction before it aborts the transaction. (This broker does both in one step.)
    """

    EMPTY = "Empty", 0
    ONGOING = "Ongoing", 1
    PREPARE_COMMIT = "PrepareCommit", 2
    PREPARE_ABORT = "PrepareAbort", 3
    COMPLETE_COMMIT = "CompleteCommit", 4
    COMPLETE_ABORT = "CompleteAbort", 5
    DEAD = "Dead", 6
    PREPARE_EPOCH_FENCE = "PrepareEpochFence", 7

    def __init__(self, label: str, number: int) -> None:
        self.label = label
        self.number = number

    @property
    def is_preparing(self) -> bool:
        """True if the end is decided and markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_over(self) -> bool:
        """True if no transaction is open, and the last one, if any, is complete."""
        return self in _OVER

    @property
    def is_commit(self) -> bool:
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)


_OVER: Final = frozenset(
    {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
)

BY_NUMBER: Final[Mapping[int, TransactionState]] = {state.number: state for state in TransactionState}
BY_LABEL: Final[Mapping[str, TransactionState]] = {state.label: state for state in TransactionState}

ALLOWED_FROM: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    TransactionState.EMPTY: _OVER,
    TransactionState.ONGOING: _OVER | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    TransactionState.PREPARE_ABORT: _OVER | {TransactionState.ONGOING},
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
    TransactionState.DEAD: _OVER,
}
"""For each state, the states that may precede it."""


class TransactionValue(NamedTuple):
    """The record of a transactional id. `start_ms` is NO_TIME before the first transaction.

    `next_producer_id`: the new producer id that the client uses after its transaction, if its epochs are used
    up; set while the markers are being written. `client_version`: TV2 if each transaction bumps the epoch.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    update_ms: int
    start_ms: int = NO_TIME
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = TV1


Entry: TypeAlias = tuple[str, TransactionValue | None]
"""A record before it is encoded: a transactional id and its value, None for a tombstone."""


def encode(entry: Entry) -> tuple[bytes, bytes | None]:
    """Return the encoded key and value of the record. The value of a tombstone is None."""
    transactional_id, value = entry
    key = encode_key(KEY, TransactionLogKey(transactional_id))
    if value is None:
        return key, None
    fields = TransactionLogValue(
        value.producer_id,
        value.previous_producer_id,
        value.next_producer_id,
        value.producer_epoch,
        value.timeout_ms,
        value.state.number,
        _by_topic(value),
        value.update_ms,
        value.start_ms,
        value.client_version,
    )
    return key, encode_value(KEY, VALUE_VERSION, fields)


def _by_topic(value: TransactionValue) -> list[TransactionLogValue.PartitionsSchema] | None:
    if value.state is TransactionState.EMPTY:
        return None
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(value.partitions):
        topics.setdefault(topic, []).append(partition)
    return [TransactionLogValue.PartitionsSchema(*one) for one in topics.items()]


def decode(key: bytes | None, value: bytes | None) -> Entry | None:
    """Return the decoded record, None if its kind is not known. Raises UnreadableRecord."""
    found = decode_record(key, value, {KEY: KEY})
    if found is None:
        return None
    name, fields = found
    return name.transactional_id, None if fields is None else _value(fields)


def _value(found: TransactionLogValue) -> TransactionValue:
    state = BY_NUMBER.get(found.transaction_status)
    if state in (None, TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE):
        raise UnreadableRecord(f"state {found.transaction_status} of a transaction, which is never written")
    assert state is not None
    topics = found.transaction_partitions or () if state is not TransactionState.EMPTY else ()
    return TransactionValue(
        found.producer_id,
        found.producer_epoch,
        found.transaction_timeout_ms,
        state,
        frozenset((one.topic, partition) for one in topics for partition in one.partition_ids),
        found.transaction_last_update_timestamp_ms,
        found.transaction_start_timestamp_ms,
        found.previous_producer_id,
        found.next_producer_id,
        found.client_transaction_version,
    )
