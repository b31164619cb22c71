"""The records of `__consumer_offsets` in the format of Kafka's GroupCoordinatorRecordSerde.

A key begins with its type, a value with its version; a null value is a tombstone.

    key 0, 1   OffsetCommitKey    group, topic, partition
    key 2      GroupMetadataKey   group

Values are written in the versions of Kafka 4.3: offsets in version 4, with the topic id, or in version 1 with
an expiry of their own (OffsetCommit v2-4); groups in version 3. Versions 0-4 are read. Records with other
keys belong to kinds of groups that this broker does not have; they are skipped, as Kafka skips unknown ones.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from mpbroker.coordinator.runtime.field_reader import (
    INT,
    LONG,
    SHORT,
    UNREADABLE,
    FieldReader,
    UnreadableRecord,
)
from mpbroker.protocol.messages import ZERO_UUID
from mpbroker.protocol.wire import MalformedMessage, uvarint

OFFSET_KEY: Final = 1
GROUP_KEY: Final = 2
OFFSET_VERSION: Final = 4
EXPIRING_OFFSET_VERSION: Final = 1
GROUP_VERSION: Final = 3
FIRST_FLEXIBLE_VERSION: Final = 4
TOPIC_ID_TAG: Final = 0
NO_EPOCH: Final = -1
NO_TIME: Final = -1


class OffsetKey(NamedTuple):
    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    group: str


class OffsetValue(NamedTuple):
    """A committed offset. `expire_ms` is NO_TIME unless the client asked for a retention.

    Times are milliseconds since 1970. `topic_id` is ZERO_UUID where the record has none.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int = NO_TIME
    topic_id: bytes = ZERO_UUID


class MemberValue(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupValue(NamedTuple):
    """A generation with its assignment. `protocol_type` is empty for a group that never had members."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_ms: int
    members: tuple[MemberValue, ...]


Key: TypeAlias = OffsetKey | GroupKey
Value: TypeAlias = OffsetValue | GroupValue
Entry: TypeAlias = tuple[Key, Value | None]
"""A record before it is encoded, None for the value of a tombstone."""


def encode(entry: Entry) -> tuple[bytes, bytes | None]:
    """Return key and value of the record."""
    key, value = entry
    if isinstance(key, OffsetKey):
        name = SHORT.pack(OFFSET_KEY) + _string(key.group) + _string(key.topic) + INT.pack(key.partition)
    else:
        name = SHORT.pack(GROUP_KEY) + _string(key.group)
    if value is None:
        return name, None
    return name, _encode_offset(value) if isinstance(value, OffsetValue) else _encode_group(value)


def _encode_offset(value: OffsetValue) -> bytes:
    if value.expire_ms != NO_TIME:
        return b"".join(
            (
                SHORT.pack(EXPIRING_OFFSET_VERSION),
                LONG.pack(value.offset),
                _string(value.metadata),
                LONG.pack(value.commit_ms),
                LONG.pack(value.expire_ms),
            )
        )
    metadata = value.metadata.encode()
    has_id = value.topic_id != ZERO_UUID
    return b"".join(
        (
            SHORT.pack(OFFSET_VERSION),
            LONG.pack(value.offset),
            INT.pack(value.leader_epoch),
            uvarint(len(metadata) + 1),
            metadata,
            LONG.pack(value.commit_ms),
            bytes((1, TOPIC_ID_TAG, len(value.topic_id))) + value.topic_id if has_id else b"\0",
        )
    )


def _encode_group(value: GroupValue) -> bytes:
    pieces = [
        SHORT.pack(GROUP_VERSION),
        _string(value.protocol_type),
        INT.pack(value.generation),
        _string(value.protocol),
        _string(value.leader),
        LONG.pack(value.state_ms),
        INT.pack(len(value.members)),
    ]
    for member in value.members:
        pieces += [
            _string(member.member_id),
            _string(member.instance_id),
            _string(member.client_id),
            _string(member.client_host),
            INT.pack(member.rebalance_timeout_ms),
            INT.pack(member.session_timeout_ms),
            INT.pack(len(member.subscription)),
            member.subscription,
            INT.pack(len(member.assignment)),
            member.assignment,
        ]
    return b"".join(pieces)


def _string(text: str | None) -> bytes:
    if text is None:
        return SHORT.pack(-1)
    data = text.encode()
    return SHORT.pack(len(data)) + data


def decode(key: bytes | None, value: bytes | None) -> Entry | None:
    """Decode a record. Returns None if its kind is not known. Raises UnreadableRecord."""
    if key is None:
        raise UnreadableRecord("a record without a key")
    try:
        return _decode(key, value)
    except UNREADABLE as error:
        raise UnreadableRecord(f"key {key[:64]!r}: {error}") from error


def _decode(key: bytes, value: bytes | None) -> Entry | None:
    reader = FieldReader(key, flexible=False)
    kind = reader.version
    if kind in (0, OFFSET_KEY):
        offset_key = OffsetKey(reader.string(), reader.string(), reader.int32())
        return offset_key, None if value is None else _decode_offset(value)
    if kind == GROUP_KEY:
        return GroupKey(reader.string()), None if value is None else _decode_group(value)
    return None


def _decode_offset(data: bytes) -> OffsetValue:
    reader = FieldReader.of_value(data, FIRST_FLEXIBLE_VERSION, FIRST_FLEXIBLE_VERSION)
    offset = reader.int64()
    leader_epoch = reader.int32() if reader.version >= 3 else NO_EPOCH
    metadata, commit_ms = reader.string(), reader.int64()
    expire_ms = reader.int64() if reader.version == EXPIRING_OFFSET_VERSION else NO_TIME
    topic_id = reader.tags().get(TOPIC_ID_TAG, ZERO_UUID)
    if len(topic_id) != len(ZERO_UUID):
        raise MalformedMessage(f"a topic id of {len(topic_id)} bytes")
    return OffsetValue(offset, leader_epoch, metadata, commit_ms, expire_ms, _shared(topic_id))


@lru_cache(maxsize=1024)
def _shared(topic_id: bytes) -> bytes:
    """Return one object for equal ids: there may be very many offsets of a topic."""
    return topic_id


def _decode_group(data: bytes) -> GroupValue:
    reader = FieldReader.of_value(data, FIRST_FLEXIBLE_VERSION, FIRST_FLEXIBLE_VERSION)
    protocol_type, generation = reader.string(), reader.int32()
    protocol, leader = reader.nullable_string(), reader.nullable_string()
    state_ms = reader.int64() if reader.version >= 2 else NO_TIME
    members = tuple(_decode_member(reader) for _ in range(reader.count()))
    return GroupValue(protocol_type, generation, protocol, leader, state_ms, members)


def _decode_member(reader: FieldReader) -> MemberValue:
    member_id = reader.string()
    instance_id = reader.nullable_string() if reader.version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout_ms = reader.int32() if reader.version >= 1 else -1
    session_timeout_ms = reader.int32()
    subscription, assignment = reader.octets(), reader.octets()
    reader.tags()
    if rebalance_timeout_ms == -1:
        rebalance_timeout_ms = session_timeout_ms
    return MemberValue(
        member_id,
        instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )
