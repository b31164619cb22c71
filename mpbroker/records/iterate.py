"""Iterates over the record batches in a buffer: a part of a segment, or the records of a Fetch response.

A batch that is cut off at the end of the buffer ends the iteration without an error, as in Kafka: the byte
limit of a Fetch response may cut a batch (Kafka: ByteBufferLogInputStream, DefaultRecordBatch).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from mpbroker.records.batch import (
    BATCH_HEADER_BYTES,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    BatchFrame,
    frame_at,
)
from mpbroker.records.compression import DEFAULT_LIMIT_BYTES, Codec, decompress
from mpbroker.records.errors import CompressionError, CorruptBatch
from mpbroker.records.record import Record
from mpbroker.records.stream import read_records

if TYPE_CHECKING:
    from typing_extensions import Buffer

PIECE_RECORDS: Final = 1024
_LENGTH_SHIFT_MAX: Final = 63


class Batch:
    """One batch in a buffer: its parsed header, and methods that decode its records."""

    __slots__ = ("_data", "header")

    def __init__(self, data: memoryview, header: BatchFrame) -> None:
        self._data = data
        self.header = header

    @property
    def bytes(self) -> memoryview:
        """Return the whole batch as a view of the buffer."""
        return self._data[self.header.position : self.header.position + self.header.length]

    @property
    def codec(self) -> Codec:
        if self.header.codec > Codec.ZSTD:
            raise self._corrupt(f"the compression codec is {self.header.codec}")
        return Codec(self.header.codec)

    @property
    def is_control(self) -> bool:
        return bool(self.header.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.header.attributes & TRANSACTIONAL_BIT)

    @property
    def last_offset(self) -> int:
        return self.header.base_offset + self.header.last_offset_delta

    @property
    def append_time(self) -> int | None:
        """Return the timestamp (ms) of all records if the timestamp type is LogAppendTime, else None."""
        return self.header.max_timestamp if self.header.attributes & LOG_APPEND_TIME_BIT else None

    @property
    def delete_horizon_ms(self) -> int | None:
        """Return the time (ms) from which the batch's tombstones or marker may be removed (KIP-534).

        Returns None until the log cleaner has set this time.
        """
        return self.header.base_timestamp if self.header.attributes & DELETE_HORIZON_BIT else None

    def stream(self, limit: int = DEFAULT_LIMIT_BYTES) -> Buffer:
        """Return the encoded records as uncompressed bytes.

        Raises CorruptBatch if the stream is malformed or decompresses to more than `limit` bytes.
        """
        stream = self.bytes[BATCH_HEADER_BYTES:]
        if self.codec is Codec.NONE:
            return stream
        try:
            return decompress(self.codec, stream, limit)
        except CompressionError as error:
            raise self._corrupt(str(error)) from error

    def records(self, limit: int = DEFAULT_LIMIT_BYTES) -> list[Record]:
        """Return all records of the batch, also of a control batch. Raises CorruptBatch, as `stream` does."""
        header = self.header
        if header.record_count == 0:
            return []
        try:
            return read_records(
                self.stream(limit),
                header.record_count,
                header.base_offset,
                header.base_timestamp,
                self.append_time,
            )
        except CorruptBatch as error:
            raise self._corrupt(error.reason) from error

    def _corrupt(self, reason: str) -> CorruptBatch:
        return CorruptBatch(self.header.position, reason, _offsets_of(self.header))

    def pieces(self, stream: Buffer, position: int = 0) -> Iterator[list[Record]]:
        """Yield the batch's records in lists of at most PIECE_RECORDS; `stream` is the result of `stream()`.

        A batch of a megabyte may have millions of records, which take gigabytes as objects. A list may be
        left out if all its records are below `position`, a Kafka offset. Raises CorruptBatch.
        """
        header, view, at = self.header, memoryview(stream).cast("B"), 0
        has_gaps = header.record_count <= header.last_offset_delta
        for first in range(0, header.record_count, PIECE_RECORDS):
            count = min(PIECE_RECORDS, header.record_count - first)
            is_last = first + count == header.record_count
            end = len(view) if is_last else _end_of_records(view, at, count)
            start, at = at, end
            if not (has_gaps or is_last) and header.base_offset + first + count <= position:
                continue
            try:
                yield read_records(
                    view[start:end], count, header.base_offset, header.base_timestamp, self.append_time
                )
            except CorruptBatch as error:
                where = f"after the first {first} records: " if first else ""
                raise self._corrupt(f"{where}{error.reason}") from error


def _end_of_records(stream: memoryview, start: int, count: int) -> int:
    """Return the position after the next `count` records, by their lengths (zigzag varints).

    If a length is invalid, return the end of the stream, and `read_records` will report the fault.
    """
    at, end = start, len(stream)
    for _ in range(count):
        size, shift, byte = 0, 0, 0x80
        while byte & 0x80:
            if at >= end or shift > _LENGTH_SHIFT_MAX:
                return end
            byte = stream[at]
            size |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
        at += (size >> 1) ^ -(size & 1)
        if not start < at <= end:
            return end
    return at


def iterate_batches(data: Buffer, start: int = 0, *, check_crc: bool = True) -> Iterator[Batch]:
    """Yield the whole batches from position `start` on. Raises CorruptBatch for bytes that are no batch."""
    view = memoryview(data).cast("B")
    position = start
    while (header := _frame_at(view, position, check_crc)) is not None:
        yield Batch(view, header)
        position += header.length


def _frame_at(view: memoryview, position: int, check_crc: bool) -> BatchFrame | None:
    try:
        return frame_at(view, position, check_crc)
    except CorruptBatch as error:
        error.offsets = _offsets_beside_crc(view, position)
        raise


def _offsets_beside_crc(view: memoryview, position: int) -> range | None:
    """Return the offsets of a batch whose CRC is wrong; None if the header is invalid, too."""
    try:
        header = frame_at(view, position, False)
    except CorruptBatch:
        return None
    return _offsets_of(header) if header is not None else None


def _offsets_of(header: BatchFrame) -> range | None:
    # A compacted batch has fewer records than offsets, none has more.
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        return None
    return range(header.base_offset, header.base_offset + header.last_offset_delta + 1)
