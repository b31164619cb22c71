"""Messages of magic 0 and 1, as brokers before 0.11 wrote them: read, and made into batches of today's magic.

(Kafka: LegacyRecord, AbstractLegacyRecordBatch, RecordsUtil.) An entry is its offset (i64), its size (i32),

    crc u32 | magic i8 | attributes i8 | timestamp i64, if the magic is 1
    key length i32 | key | value length i32 | value

The CRC, of the older polynomial, covers all from the magic on. A compressed entry has entries for its value,
and the offset of the last one of them; theirs are absolute in magic 0, and count from 0 in magic 1.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from mpbroker.records.batch import (
    BATCH_HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
)
from mpbroker.records.builder import with_records
from mpbroker.records.compression import DEFAULT_LIMIT_BYTES, Codec, compress, decompress
from mpbroker.records.errors import CompressionError, CorruptBatch
from mpbroker.records.record import CREATE_TIME, LOG_APPEND_TIME, NewRecord, Record
from mpbroker.records.stream import RecordWriter, seal

MAGIC_ENDS_AT: Final = 17
_ENTRY: Final = struct.Struct(">qi")
_HEAD: Final = struct.Struct(">Ibb")
_LENGTH: Final = struct.Struct(">i")
_TIMESTAMP: Final = struct.Struct(">q")
# Of magic 0, without key and value.
_SMALLEST: Final = 14
_CODEC_MASK: Final = 0x07
_TIMESTAMP_TYPE_BIT: Final = 0x08
# gzip packs so many bytes into one at most, the others fewer; in no case are more than these unpacked.
_MOST_TIMES: Final = 1032
_MOST_BYTES: Final = 1 << 30
LARGEST_DELTA: Final = 0x7FFFFFFF
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"


class Entry(NamedTuple):
    """One entry of a message set, and its records: of a compressed one all that it holds."""

    length: int
    codec: Codec
    timestamp_type: int
    records: list[Record]


class _Message(NamedTuple):
    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def is_old(data: memoryview, position: int) -> bool:
    """Whether what begins there is of magic 0 or 1, if it is anything."""
    return len(data) - position >= MAGIC_ENDS_AT and data[position + MAGIC_ENDS_AT - 1] in (0, 1)


def entry_at(data: memoryview, position: int) -> Entry:
    """Raises CorruptBatch, also where it is cut off."""
    length, message = _message_at(data, position)
    codec, kind = _codec_of(message, position), _type_of(message)
    if codec is Codec.NONE:
        return Entry(length, codec, kind, [_record(message, message.offset, message.timestamp, kind)])
    if message.value is None:
        raise CorruptBatch(position, "a compressed message has no value")
    value = message.value
    if codec is Codec.LZ4 and message.magic == 0:
        value = with_right_checksum(value)
    try:
        inner = memoryview(decompress(codec, value, _limit_of(value)))
    except CompressionError as error:
        raise CorruptBatch(position, str(error)) from error
    messages = list(_messages(inner))
    if not messages or any(one.attributes & _CODEC_MASK or one.magic != message.magic for one in messages):
        raise CorruptBatch(position, "a compressed message holds none, or such as it cannot hold")
    span = messages[-1].offset - messages[0].offset
    if span > LARGEST_DELTA or any(after.offset < before.offset for before, after in pairwise(messages)):
        raise CorruptBatch(position, "the offsets in a compressed message are out of order")
    first = message.offset - messages[-1].offset if message.magic else 0
    appended = message.timestamp if kind == LOG_APPEND_TIME else None
    records = [
        _record(one, first + one.offset, one.timestamp if appended is None else appended, kind)
        for one in messages
    ]
    return Entry(length, codec, kind, records)


def _limit_of(value: bytes) -> int:
    """What is in a log has been acknowledged, however large it becomes."""
    return max(DEFAULT_LIMIT_BYTES, min(_MOST_TIMES * len(value), _MOST_BYTES))


def _messages(data: memoryview) -> Iterator[_Message]:
    position = 0
    while position < len(data):
        length, message = _message_at(data, position)
        yield message
        position += length


def _message_at(data: memoryview, position: int) -> tuple[int, _Message]:
    if len(data) - position < _ENTRY.size + _SMALLEST:
        raise CorruptBatch(position, "it is cut off")
    offset, size = _ENTRY.unpack_from(data, position)
    message = data[position + _ENTRY.size : position + _ENTRY.size + size] if size >= _SMALLEST else b""
    if size < _SMALLEST or len(message) < size:
        raise CorruptBatch(position, "its size is impossible" if size < _SMALLEST else "it is cut off")
    crc, magic, attributes = _HEAD.unpack_from(message)
    if magic not in (0, 1) or zlib.crc32(message[4:]) != crc:
        raise CorruptBatch(position, "the CRC does not match")
    at, timestamp = _HEAD.size, NO_TIMESTAMP
    if magic and size >= _HEAD.size + _TIMESTAMP.size:
        (timestamp,) = _TIMESTAMP.unpack_from(message, at)
        at += _TIMESTAMP.size
    at, key = _field(message, at, position)
    at, value = _field(message, at, position)
    if at != size:
        raise CorruptBatch(position, "it does not end with its value")
    return _ENTRY.size + size, _Message(offset, magic, attributes, timestamp, key, value)


def _field(message: memoryview | bytes, at: int, position: int) -> tuple[int, bytes | None]:
    if len(message) - at < _LENGTH.size:
        raise CorruptBatch(position, "it is too short for its fields")
    (length,) = _LENGTH.unpack_from(message, at)
    at += _LENGTH.size
    if length < 0:
        return at, None
    if len(message) - at < length:
        raise CorruptBatch(position, "it is too short for its fields")
    return at + length, bytes(message[at : at + length])


def _codec_of(message: _Message, position: int) -> Codec:
    number = message.attributes & _CODEC_MASK
    if number > Codec.LZ4:
        raise CorruptBatch(position, f"the compression codec is {number}")
    return Codec(number)


def _type_of(message: _Message) -> int:
    is_append_time = message.magic == 1 and message.attributes & _TIMESTAMP_TYPE_BIT
    return LOG_APPEND_TIME if is_append_time else CREATE_TIME


def _record(message: _Message, offset: int, timestamp: int, kind: int) -> Record:
    return Record(offset, timestamp, kind, message.key, message.value)


# ---- as batches ----


def batch_of(records: Sequence[Record], codec: Codec) -> bytearray:
    """One batch, with their offsets as they are. Those of LogAppendTime have all the same time."""
    first, last = records[0], records[-1]
    writer = RecordWriter(first.timestamp)
    for record in records:
        writer.add(NewRecord(record.value, record.key, record.timestamp), record.offset - first.offset)
    count, max_timestamp = writer.count, writer.max_timestamp
    batch = writer.finish()
    if codec is not Codec.NONE:
        batch = with_records(compress(codec, memoryview(batch)[BATCH_HEADER_BYTES:]))
    seal(
        batch,
        base_offset=first.offset,
        leader_epoch=-1,
        attributes=codec | (LOG_APPEND_TIME_BIT if first.timestamp_type == LOG_APPEND_TIME else 0),
        last_offset_delta=last.offset - first.offset,
        base_timestamp=first.timestamp,
        max_timestamp=max_timestamp,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        count=count,
    )
    return batch


# ---- LZ4 frames of magic 0 ----

_PRIMES: Final = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)
_WORD: Final = 0xFFFFFFFF


def with_right_checksum(frame: bytes) -> bytes:
    """Writers of magic 0 took the frame's magic into the checksum of its descriptor."""
    if frame[:4] != _LZ4_MAGIC or len(frame) < 7:
        return frame
    ends = 6 + (8 if frame[4] & 0x08 else 0)
    return frame[:ends] + bytes([_short_hash(frame[4:ends]) >> 8 & 0xFF]) + frame[ends + 1 :]


def _short_hash(data: bytes) -> int:
    """xxHash32 of less than 16 bytes."""
    one, two, three, four, five = _PRIMES
    value = (five + len(data)) & _WORD
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        value = (value + int.from_bytes(data[at : at + 4], "little") * three) & _WORD
        value = (_rotated(value, 17) * four) & _WORD
    for byte in data[whole:]:
        value = (value + byte * five) & _WORD
        value = (_rotated(value, 11) * one) & _WORD
    value = ((value ^ value >> 15) * two) & _WORD
    value = ((value ^ value >> 13) * three) & _WORD
    return value ^ value >> 16


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> 32 - by) & _WORD
