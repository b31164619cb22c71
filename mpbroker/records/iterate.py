"""Reading record batches from a buffer: a piece of a segment, or the records of a fetch response.

A batch that is cut off at the end of the buffer ends the iteration silently, as it does in Kafka: a fetch
response ends where its byte limit was (Kafka: ByteBufferLogInputStream, DefaultRecordBatch).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

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


class Batch:
    """One batch in a buffer: its header, and its records on demand."""

    __slots__ = ("_data", "header")

    def __init__(self, data: memoryview, header: BatchFrame) -> None:
        self._data = data
        self.header = header

    @property
    def bytes(self) -> memoryview:
        """The whole batch, a view of the buffer."""
        return self._data[self.header.position : self.header.position + self.header.length]

    @property
    def codec(self) -> Codec:
        if self.header.codec > Codec.ZSTD:
            raise CorruptBatch(self.header.position, f"the compression codec is {self.header.codec}")
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
        """The timestamp of all records if the batch is of LogAppendTime, else None."""
        return self.header.max_timestamp if self.header.attributes & LOG_APPEND_TIME_BIT else None

    @property
    def delete_horizon_ms(self) -> int | None:
        """When its tombstones, or its marker, may go; None until the cleaner has set it (KIP-534)."""
        return self.header.base_timestamp if self.header.attributes & DELETE_HORIZON_BIT else None

    def stream(self, limit: int = DEFAULT_LIMIT_BYTES) -> Buffer:
        """The records as bytes, decompressed if need be but never to more than the limit."""
        stream = self.bytes[BATCH_HEADER_BYTES:]
        if self.codec is Codec.NONE:
            return stream
        try:
            return decompress(self.codec, stream, limit)
        except CompressionError as error:
            raise CorruptBatch(self.header.position, str(error)) from error

    def records(self, limit: int = DEFAULT_LIMIT_BYTES) -> list[Record]:
        """All records of the batch, those of a control batch too."""
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
            raise CorruptBatch(header.position, error.reason) from error


def iterate_batches(data: Buffer, start: int = 0, *, check_crc: bool = True) -> Iterator[Batch]:
    """The whole batches from the start on; CorruptBatch at the first that is none."""
    view = memoryview(data).cast("B")
    position = start
    while (header := frame_at(view, position, check_crc)) is not None:
        yield Batch(view, header)
        position += header.length
