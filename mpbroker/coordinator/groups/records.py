"""The records of `__consumer_offsets`, as Kafka's GroupCoordinatorRecordSerde writes and reads them.

A key begins with its type, a value with its version; a value that is null is a tombstone.

    key 0, 1   OffsetCommitKey    group, topic, partition
    key 2      GroupMetadataKey   group

Values are written in version 3, the last before the flexible ones, as Kafka 4.3 does; an offset with an
expiry of its own (OffsetCommit v2-4) in version 1. Versions 0-4 are read. Other types of keys belong to kinds
of groups that are not built; they are stepped over, as Kafka does with types it does not know.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, TypeAlias

from mpbroker.protocol.wire import MalformedMessage, read_uvarint, skip_tags

OFFSET_KEY: Final = 1
GROUP_KEY: Final = 2
VALUE_VERSION: Final = 3
EXPIRING_OFFSET_VERSION: Final = 1
FIRST_FLEXIBLE_VERSION: Final = 4
NO_EPOCH: Final = -1
NO_TIME: Final = -1

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")


class UnreadableRecord(Exception):
    """A record of `__consumer_offsets` is damaged, or of a version that is not known."""


class OffsetKey(NamedTuple):
    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    group: str


class OffsetValue(NamedTuple):
    """Times are of the wall clock; `expire_ms` is NO_TIME unless the client asked for a retention."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int = NO_TIME


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
"""A record before it is bytes."""


def encode(entry: Entry) -> tuple[bytes, bytes | None]:
    """-> key and value of the record."""
    key, value = entry
    if isinstance(key, OffsetKey):
        name = _SHORT.pack(OFFSET_KEY) + _string(key.group) + _string(key.topic) + _INT.pack(key.partition)
    else:
        name = _SHORT.pack(GROUP_KEY) + _string(key.group)
    if value is None:
        return name, None
    return name, _encode_offset(value) if isinstance(value, OffsetValue) else _encode_group(value)


def _encode_offset(value: OffsetValue) -> bytes:
    if value.expire_ms != NO_TIME:
        return b"".join(
            (
                _SHORT.pack(EXPIRING_OFFSET_VERSION),
                _LONG.pack(value.offset),
                _string(value.metadata),
                _LONG.pack(value.commit_ms),
                _LONG.pack(value.expire_ms),
            )
        )
    head = _SHORT.pack(VALUE_VERSION) + _LONG.pack(value.offset) + _INT.pack(value.leader_epoch)
    return head + _string(value.metadata) + _LONG.pack(value.commit_ms)


def _encode_group(value: GroupValue) -> bytes:
    pieces = [
        _SHORT.pack(VALUE_VERSION),
        _string(value.protocol_type),
        _INT.pack(value.generation),
        _string(value.protocol),
        _string(value.leader),
        _LONG.pack(value.state_ms),
        _INT.pack(len(value.members)),
    ]
    for member in value.members:
        pieces += [
            _string(member.member_id),
            _string(member.instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _INT.pack(member.rebalance_timeout_ms),
            _INT.pack(member.session_timeout_ms),
            _INT.pack(len(member.subscription)),
            member.subscription,
            _INT.pack(len(member.assignment)),
            member.assignment,
        ]
    return b"".join(pieces)


def _string(text: str | None) -> bytes:
    if text is None:
        return _SHORT.pack(-1)
    data = text.encode()
    return _SHORT.pack(len(data)) + data


def decode(key: bytes | None, value: bytes | None) -> Entry | None:
    """None for a record of a kind that is not known. Raises UnreadableRecord."""
    if key is None:
        raise UnreadableRecord("a record without a key")
    try:
        return _decode(key, value)
    except (struct.error, IndexError, UnicodeDecodeError, MalformedMessage) as error:
        raise UnreadableRecord(f"key {key[:64]!r}: {error}") from error


def _decode(key: bytes, value: bytes | None) -> Entry | None:
    reader = _Reader(key, flexible=False)
    kind = reader.version
    if kind in (0, OFFSET_KEY):
        offset_key = OffsetKey(reader.string(), reader.string(), reader.int32())
        return offset_key, None if value is None else _decode_offset(value)
    if kind == GROUP_KEY:
        return GroupKey(reader.string()), None if value is None else _decode_group(value)
    return None


def _decode_offset(data: bytes) -> OffsetValue:
    reader = _Reader.of_value(data)
    offset = reader.int64()
    leader_epoch = reader.int32() if reader.version >= 3 else NO_EPOCH
    metadata, commit_ms = reader.string(), reader.int64()
    expire_ms = reader.int64() if reader.version == EXPIRING_OFFSET_VERSION else NO_TIME
    return OffsetValue(offset, leader_epoch, metadata, commit_ms, expire_ms)


def _decode_group(data: bytes) -> GroupValue:
    reader = _Reader.of_value(data)
    protocol_type, generation = reader.string(), reader.int32()
    protocol, leader = reader.nullable_string(), reader.nullable_string()
    state_ms = reader.int64() if reader.version >= 2 else NO_TIME
    members = tuple(_decode_member(reader) for _ in range(reader.count()))
    return GroupValue(protocol_type, generation, protocol, leader, state_ms, members)


def _decode_member(reader: _Reader) -> MemberValue:
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


class _Reader:
    """Kafka's primitive types, one after the other; the first two bytes are the version."""

    def __init__(self, data: bytes, *, flexible: bool) -> None:
        self._data = data
        (self.version,) = _SHORT.unpack_from(data)
        self._at = 2
        self._flexible = flexible

    @classmethod
    def of_value(cls, data: bytes) -> _Reader:
        (version,) = _SHORT.unpack_from(data)
        if not 0 <= version <= FIRST_FLEXIBLE_VERSION:
            newest = FIRST_FLEXIBLE_VERSION
            raise UnreadableRecord(f"version {version} of a value, {newest} is the newest known")
        return cls(data, flexible=version >= FIRST_FLEXIBLE_VERSION)

    def int32(self) -> int:
        (number,) = _INT.unpack_from(self._data, self._at)
        self._at += 4
        return int(number)

    def int64(self) -> int:
        (number,) = _LONG.unpack_from(self._data, self._at)
        self._at += 8
        return int(number)

    def count(self) -> int:
        """The elements of an array."""
        if self._flexible:
            number, self._at = read_uvarint(self._data, self._at)
            return number - 1
        return self.int32()

    def octets(self) -> bytes:
        return self._take(self.count())

    def nullable_string(self) -> str | None:
        if self._flexible:
            length = self.count()
        else:
            (length,) = _SHORT.unpack_from(self._data, self._at)
            self._at += 2
        return None if length < 0 else self._take(length).decode()

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise MalformedMessage("a string is null")
        return text

    def tags(self) -> None:
        """Steps over the tagged fields of a struct: none of them is known."""
        if self._flexible:
            self._at = skip_tags(self._data, self._at + 1, self._data[self._at])

    def _take(self, length: int) -> bytes:
        piece = self._data[self._at : self._at + length]
        if len(piece) != length:
            raise MalformedMessage(f"{length} bytes are announced and {len(piece)} are left")
        self._at += length
        return piece
