"""Records of Kafka's topic `__remote_log_metadata`: which segments an object store has (KIP-405).

Each segment has a record of what it is, written when its copy begins, and one for each state that follows.
(Kafka: RemoteLogMetadataSerde, RemoteLogMetadataTopicPartitioner, RemoteLogMetadataCache, as of 4.3.)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from itertools import accumulate
from typing import Final, NamedTuple

from mpbroker.protocol.metadata_records import FRAME_VERSION, read_frame
from mpbroker.protocol.wire import MalformedMessage, read_uvarint, uvarint
from mpbroker.records.encode import murmur2
from mpbroker.remote.layout.object_names import SegmentObjects
from mpbroker.remote.ledger.events import SegmentAdded

SEGMENTS_TOPIC: Final = "__remote_log_metadata"
PARTITIONS: Final = 50
"""The topic's partitions, by default (Kafka: remote.log.metadata.topic.num.partitions)."""

_SEGMENT: Final = 0
_UPDATE: Final = 1
_VERSION: Final = 0
# Structs end with a count of tagged fields, which is 0.
_IDS: Final = struct.Struct(">16six16sx")
_OFFSETS: Final = struct.Struct(">qqiqq")
_EPOCH: Final = struct.Struct(">iqx")
_SIZE: Final = struct.Struct(">i")
_WHEN: Final = struct.Struct(">iq")
_NO_CUSTOM_METADATA: Final = b"\0"
_NO_TAGS: Final = b"\0"
_TXN_INDEX_EMPTY: Final = b"\1\0\1\1"
"""One tagged field: tag 0, of one byte, true."""


class _State(IntEnum):
    """A segment's states, each after those before it (Kafka: RemoteLogSegmentState)."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


class CopiedSegment(NamedTuple):
    """A segment as its first record describes it. `size` is that of the segment's file."""

    objects: SegmentObjects
    end: int
    largest_ms: int
    epochs: tuple[tuple[int, int], ...]
    size: int


def metadata_partition(topic_id: bytes, partition: int, count: int) -> int:
    """Return the partition of the topic, of `count`, that has the records of a partition of another topic."""
    most, least = struct.unpack(">QQ", topic_id)
    hashes = [(one ^ one >> 32) & 0xFFFFFFFF for one in (least, most)]
    *_, total = accumulate([1, *hashes, partition], lambda so_far, one: (31 * so_far + one) & 0xFFFFFFFF)
    return (murmur2(struct.pack(">I", total)) & 0x7FFFFFFF) % count


def records_of(segment: SegmentAdded, broker_id: int, time_ms: int) -> tuple[bytes, bytes]:
    """Return the values of a segment's records: its copy has begun, and is finished."""
    ids = _text(segment.topic) + _IDS.pack(segment.topic_id, segment.partition, segment.segment_id)
    offsets = (segment.base, segment.end - 1, broker_id, segment.largest_ms, time_ms)
    epochs = b"".join(_EPOCH.pack(*one) for one in segment.epochs)
    return (
        _frame(_SEGMENT)
        + ids
        + _OFFSETS.pack(*offsets)
        + uvarint(len(segment.epochs) + 1)
        + epochs
        + _SIZE.pack(segment.size)
        + _NO_CUSTOM_METADATA
        + bytes([_State.COPY_SEGMENT_STARTED])
        + (_NO_TAGS if segment.has_aborted else _TXN_INDEX_EMPTY),
        _frame(_UPDATE)
        + ids
        + _WHEN.pack(broker_id, time_ms)
        + _NO_CUSTOM_METADATA
        + bytes([_State.COPY_SEGMENT_FINISHED])
        + _NO_TAGS,
    )


def finished_segments(values: Iterable[bytes]) -> Iterator[CopiedSegment]:
    """Yield the segments that can be read after these records, in the order in which they were copied.

    Raises MalformedMessage, also for a record that this version does not know.
    """
    there: dict[bytes, tuple[_State, CopiedSegment]] = {}
    for value in values:
        try:
            _apply(value, there)
        except (struct.error, IndexError, ValueError) as error:
            raise MalformedMessage(f"a record of {SEGMENTS_TOPIC} cannot be read: {error}") from error
    yield from (one for state, one in there.values() if state is _State.COPY_SEGMENT_FINISHED)


def _apply(value: bytes, there: dict[bytes, tuple[_State, CopiedSegment]]) -> None:
    kind, version, position = read_frame(value)
    if kind not in (_SEGMENT, _UPDATE) or version != _VERSION:
        raise ValueError(f"type {kind}, version {version}")
    size, position = read_uvarint(value, position)
    topic = value[position : position + size - 1].decode()
    position += size - 1
    topic_id, partition, segment_id = _IDS.unpack_from(value, position)
    position += _IDS.size
    if kind == _SEGMENT:
        base, last, _, largest_ms, _ = _OFFSETS.unpack_from(value, position)
        count, position = read_uvarint(value, position + _OFFSETS.size)
        epochs = [_EPOCH.unpack_from(value, position + at * _EPOCH.size) for at in range(count - 1)]
        position += len(epochs) * _EPOCH.size
        (segment_bytes,) = _SIZE.unpack_from(value, position)
        state = _state_after_custom_metadata(value, position + _SIZE.size)
        objects = SegmentObjects(topic, topic_id, partition, base, segment_id)
        segment = CopiedSegment(objects, last + 1, largest_ms, tuple(sorted(epochs)), segment_bytes)
        there.setdefault(segment_id, (state, segment))
        return
    state = _state_after_custom_metadata(value, position + _WHEN.size)
    # Kafka drops updates of segments that it no longer has, too.
    if segment_id in there and there[segment_id][0] < state:
        # Segments are in the order in which their copies were finished.
        _, segment = there.pop(segment_id)
        if state is not _State.DELETE_SEGMENT_FINISHED:
            there[segment_id] = state, segment


def _state_after_custom_metadata(value: bytes, position: int) -> _State:
    """Return the state, which follows the plug-in's own metadata."""
    size, position = read_uvarint(value, position)
    return _State(value[position + max(size - 1, 0)])


def in_offset_order(segments: Iterable[CopiedSegment]) -> list[CopiedSegment]:
    """Return a partition's segments by offset, without those that a later copy replaces.

    As in Kafka a later copy replaces those that lie within it. Raises ValueError if other ones overlap.
    """
    found: list[CopiedSegment] = []
    for one in segments:
        while found and one.objects.base <= found[-1].objects.base and found[-1].end <= one.end:
            found.pop()
        if found and one.objects.base < found[-1].end:
            raise ValueError(f"{found[-1].objects.log} and {one.objects.log} overlap")
        found.append(one)
    return found


def _frame(kind: int) -> bytes:
    return uvarint(FRAME_VERSION) + uvarint(kind) + uvarint(_VERSION)


def _text(text: str) -> bytes:
    return uvarint(len(text.encode()) + 1) + text.encode()
