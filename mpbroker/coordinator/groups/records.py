"""The records of `__consumer_offsets` in the format of Kafka's GroupCoordinatorRecordSerde.

A key begins with its type, a value with its version; a null value is a tombstone.

    key 0, 1       OffsetCommitKey    group, topic, partition
    key 2          GroupMetadataKey   group of the classic protocol
    key 3-8, 16    groups of the consumer protocol: `consumer/records.py`

Values are written in the versions of Kafka 4.3. Classic groups have version 3. Offsets have version 4, with
the topic id, or version 1 if the client set their expiry (OffsetCommit v2-4). Versions 0-4 are read. Records
with other keys belong to kinds of groups that this broker does not have, and are skipped, as in Kafka.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from msgspec.structs import astuple

from mpbroker.coordinator.groups.consumer import records as consumer
from mpbroker.coordinator.runtime.log_records import decode_record, encode_key, encode_value
from mpbroker.protocol.messages import (
    ZERO_UUID,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)

OFFSET_KEY: Final = 1
GROUP_KEY: Final = 2
OFFSET_VERSION: Final = 4
EXPIRING_OFFSET_VERSION: Final = 1
GROUP_VERSION: Final = 3
KINDS: Final = {
    0: OFFSET_KEY,
    OFFSET_KEY: OFFSET_KEY,
    GROUP_KEY: GROUP_KEY,
    **{number: number for number in consumer.KIND_OF_NUMBER},
}
_KIND_OF_MESSAGE: Final = {kind.key_message: kind for kind in consumer.KINDS}
NO_EPOCH: Final = -1
NO_TIME: Final = -1


class OffsetKey(NamedTuple):
    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    group: str


class OffsetValue(NamedTuple):
    """A committed offset. `expire_ms` is NO_TIME if the client did not set a retention.

    Times are milliseconds since 1970. `topic_id` is ZERO_UUID if the record has no topic id.
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
    """The value of a classic group's record. `protocol_type` is "" if the group never had members."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_ms: int
    members: tuple[MemberValue, ...]


Key: TypeAlias = OffsetKey | GroupKey | consumer.ConsumerKey
Value: TypeAlias = OffsetValue | GroupValue | consumer.ConsumerValue
Entry: TypeAlias = tuple[Key, Value | None]
"""A record before it is encoded, None for the value of a tombstone."""


def encode(entry: Entry) -> tuple[bytes, bytes | None]:
    """Return the encoded key and value of the record. The value of a tombstone is None."""
    key, value = entry
    if isinstance(key, OffsetKey):
        name = encode_key(OFFSET_KEY, OffsetCommitKey(*key))
    elif isinstance(key, GroupKey):
        name = encode_key(GROUP_KEY, GroupMetadataKey(*key))
    else:
        return consumer.encode(key, value)
    if value is None:
        return name, None
    if isinstance(value, OffsetValue):
        version = OFFSET_VERSION if value.expire_ms == NO_TIME else EXPIRING_OFFSET_VERSION
        return name, encode_value(OFFSET_KEY, version, OffsetCommitValue(*value))
    assert isinstance(value, GroupValue)
    members = [GroupMetadataValue.MemberMetadata(*member) for member in value.members]
    return name, encode_value(GROUP_KEY, GROUP_VERSION, GroupMetadataValue(*value[:-1], members))


def decode(key: bytes | None, value: bytes | None) -> Entry | None:
    """Return the decoded record, None if its kind is not known. Raises UnreadableRecord."""
    found = decode_record(key, value, KINDS)
    if found is None:
        return None
    name, fields = found
    kind = _KIND_OF_MESSAGE.get(type(name))
    if kind is not None:
        return kind.key(*astuple(name)), None if fields is None else kind.from_message(fields)
    if isinstance(name, OffsetCommitKey):
        return OffsetKey(name.group, name.topic, name.partition), None if fields is None else _offset(fields)
    return GroupKey(name.group), None if fields is None else _group(fields)


def _offset(found: OffsetCommitValue) -> OffsetValue:
    return OffsetValue(
        found.offset,
        found.leader_epoch,
        found.metadata,
        found.commit_timestamp,
        found.expire_timestamp,
        _shared(found.topic_id),
    )


@lru_cache(maxsize=1024)
def _shared(topic_id: bytes) -> bytes:
    """Return one shared object for equal ids, to save memory: very many offsets may have the same topic."""
    return topic_id


def _group(found: GroupMetadataValue) -> GroupValue:
    for member in found.members:
        if member.rebalance_timeout == -1:
            member.rebalance_timeout = member.session_timeout
    members = tuple(MemberValue(*astuple(member)) for member in found.members)
    return GroupValue(
        found.protocol_type,
        found.generation,
        found.protocol,
        found.leader,
        found.current_state_timestamp,
        members,
    )
