"""The records of `__transaction_state` in Kafka's format (TransactionLogKey, TransactionLogValue).

A key of version 0 is a transactional id; records with keys of other versions are skipped, as Kafka does. A
null value is a tombstone. Values are written in version 1, the flexible one, as a Kafka with
transaction.version 1 or 2 does; version 0 is read as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from mpbroker.coordinator.runtime import field_reader
from mpbroker.protocol.wire import uvarint
from mpbroker.records.batch import NO_PRODUCER_ID

KEY_VERSION: Final = 0
VALUE_VERSION: Final = 1
FIRST_FLEXIBLE_VERSION: Final = 1
PREVIOUS_PRODUCER_ID_TAG: Final = 0
NEXT_PRODUCER_ID_TAG: Final = 1
CLIENT_VERSION_TAG: Final = 2
NO_TIME: Final = -1
TV1: Final = 0
"""A client of the generation before KIP-890's second part; Kafka writes 0 for it, too."""
TV2: Final = 2

_NO_TAGS: Final = b"\0"

TopicPartition: TypeAlias = tuple[str, int]


class TransactionState(Enum):
    """The states of a transactional id, with Kafka's numbers and names (Kafka: TransactionState).

        Empty ──► Ongoing ──► PrepareCommit ──► CompleteCommit
          │          │
          └──────────┴──────► PrepareAbort ───► CompleteAbort

    CompleteCommit and CompleteAbort lead to the same states as Empty. Dead, before the deletion, is not
    written, nor is PrepareEpochFence, in which Kafka bumps the epoch of an Ongoing transaction before it
    aborts that: here both are one step.
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
        """True if no transaction is open."""
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
"""The states from which each state can be entered."""


class TransactionValue(NamedTuple):
    """The record of a transactional id. `start_ms` is NO_TIME before the first transaction.

    `next_producer_id`: the client's next id while the markers of the old one are being written.
    `client_version`: TV2 if the client of the record has its epoch bumped with each transaction.
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
    """Return key and value of the record."""
    transactional_id, value = entry
    name = transactional_id.encode()
    key = field_reader.SHORT.pack(KEY_VERSION) + field_reader.SHORT.pack(len(name)) + name
    return key, None if value is None else _encode_value(value)


def _encode_value(value: TransactionValue) -> bytes:
    return b"".join(
        (
            field_reader.SHORT.pack(VALUE_VERSION),
            field_reader.LONG.pack(value.producer_id),
            field_reader.SHORT.pack(value.producer_epoch),
            field_reader.INT.pack(value.timeout_ms),
            field_reader.BYTE.pack(value.state.number),
            _encode_partitions(value),
            field_reader.LONG.pack(value.update_ms),
            field_reader.LONG.pack(value.start_ms),
            _encode_tags(value),
        )
    )


def _encode_partitions(value: TransactionValue) -> bytes:
    if value.state is TransactionState.EMPTY:
        return uvarint(0)
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(value.partitions):
        topics.setdefault(topic, []).append(partition)
    pieces = [uvarint(len(topics) + 1)]
    for topic, partitions in topics.items():
        name = topic.encode()
        pieces += [uvarint(len(name) + 1), name, uvarint(len(partitions) + 1)]
        pieces += map(field_reader.INT.pack, partitions)
        pieces.append(_NO_TAGS)
    return b"".join(pieces)


def _encode_tags(value: TransactionValue) -> bytes:
    """Encode the tagged fields that do not have their default."""
    tags: list[tuple[int, bytes]] = []
    if value.previous_producer_id != NO_PRODUCER_ID:
        tags.append((PREVIOUS_PRODUCER_ID_TAG, field_reader.LONG.pack(value.previous_producer_id)))
    if value.next_producer_id != NO_PRODUCER_ID:
        tags.append((NEXT_PRODUCER_ID_TAG, field_reader.LONG.pack(value.next_producer_id)))
    if value.client_version != TV1:
        tags.append((CLIENT_VERSION_TAG, field_reader.SHORT.pack(value.client_version)))
    pieces = [uvarint(len(tags))]
    for tag, data in tags:
        pieces += [uvarint(tag), uvarint(len(data)), data]
    return b"".join(pieces)


def decode(key: bytes | None, value: bytes | None) -> Entry | None:
    """Decode a record. Returns None if its kind is not known. Raises UnreadableRecord."""
    if key is None:
        raise field_reader.UnreadableRecord("a record without a key")
    try:
        reader = field_reader.FieldReader(key, flexible=False)
        if reader.version != KEY_VERSION:
            return None
        return reader.string(), None if value is None else _decode_value(value)
    except field_reader.UNREADABLE as error:
        raise field_reader.UnreadableRecord(f"key {key[:64]!r}: {error}") from error


def _decode_value(data: bytes) -> TransactionValue:
    reader = field_reader.FieldReader.of_value(data, VALUE_VERSION, FIRST_FLEXIBLE_VERSION)
    producer_id, producer_epoch, timeout_ms = reader.int64(), reader.int16(), reader.int32()
    state = _state(reader.int8())
    partitions = _decode_partitions(reader)
    update_ms, start_ms = reader.int64(), reader.int64()
    tags = reader.tags()
    return TransactionValue(
        producer_id,
        producer_epoch,
        timeout_ms,
        state,
        frozenset() if state is TransactionState.EMPTY else partitions,
        update_ms,
        start_ms,
        _producer_id(tags.get(PREVIOUS_PRODUCER_ID_TAG)),
        _producer_id(tags.get(NEXT_PRODUCER_ID_TAG)),
        _client_version(tags.get(CLIENT_VERSION_TAG)),
    )


def _state(number: int) -> TransactionState:
    state = BY_NUMBER.get(number)
    if state in (None, TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE):
        raise field_reader.UnreadableRecord(f"state {number} of a transaction, which is never written")
    assert state is not None
    return state


def _decode_partitions(reader: field_reader.FieldReader) -> frozenset[TopicPartition]:
    found: set[TopicPartition] = set()
    for _ in range(reader.count()):
        topic = reader.string()
        found.update((topic, reader.int32()) for _ in range(reader.count()))
        reader.tags()
    return frozenset(found)


def _producer_id(data: bytes | None) -> int:
    return NO_PRODUCER_ID if data is None else int(field_reader.LONG.unpack(data)[0])


def _client_version(data: bytes | None) -> int:
    return TV1 if data is None else int(field_reader.SHORT.unpack(data)[0])
