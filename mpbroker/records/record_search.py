"""Searches for a timestamp in one batch, a piece of its records at a time, or in its header alone.

(Kafka: FileRecords.searchForTimestamp, RecordBatch.offsetOfMaxTimestamp.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mpbroker.records.batch import BATCH_HEADER_BYTES, BatchFrame
from mpbroker.records.compression import DEFAULT_LIMIT_BYTES, Codec
from mpbroker.records.errors import CompressionError, CorruptBatch
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.stream import TimeSearch
from mpbroker.records.unpack import LIBRARIES, Unpacking

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Bytes of the first piece, which may be kept for long before the next one, and of any other.
BEGUN_WITH_BYTES: Final = 64 << 10
SEARCHED_AT_ONCE_BYTES: Final = 1 << 20


class RecordSearch:
    """The search in a batch for the first record at `timestamp_ms` or later, from `from_offset` on.

    After `step` has returned True, `found` is the record's (timestamp, offset). If all records are earlier,
    `found` is the first record with the largest timestamp; None if no record has `from_offset` or a later
    offset. Several callers may share one search and call `step` in turn.
    """

    def __init__(self, data: Buffer, timestamp_ms: int, from_offset: int) -> None:
        """Begin the search. Raises CorruptBatch."""
        self.found: tuple[int, int] | None = None
        # How many take steps in turn.
        self.askers = 0
        self._error: CorruptBatch | None = None
        self._search: TimeSearch | None = None
        batch = next(iterate_batches(data), None)
        if batch is None or batch.header.record_count == 0:
            return
        self._batch, header = batch, batch.header
        self.found = told_by_header(header, batch.append_time, from_offset)
        if self.found is not None:
            return
        self._search = TimeSearch(
            header.record_count,
            header.base_offset,
            header.base_timestamp,
            batch.append_time,
            wanted=timestamp_ms,
            from_offset=from_offset,
        )
        self._most_bytes = BEGUN_WITH_BYTES
        self._unpacking: Unpacking | None = None
        self._stream: Buffer | None = None

    @property
    def is_over(self) -> bool:
        return self._search is None

    def step(self) -> bool:
        """Search the next piece; return whether the search has ended. Raises CorruptBatch for bad records."""
        if self._error is not None:
            raise self._error
        if self._search is None:
            return True
        try:
            is_over = self._step(self._search)
        except CompressionError as error:
            self._end(self._corrupt(str(error)))
        except CorruptBatch as error:
            self._end(self._corrupt(error.reason))
        else:
            if is_over:
                self._end(None)
        return self.step() if self._search is None else False

    def _step(self, search: TimeSearch) -> bool:
        most_bytes, self._most_bytes = self._most_bytes, SEARCHED_AT_ONCE_BYTES
        if self._stream is None:
            self._begin(self._batch.codec)
        is_whole = self._unpacking is None or self._unpacking.step(most_bytes)
        stream = self._stream if self._unpacking is None else self._unpacking.stream
        assert stream is not None
        return search.step(stream, most_bytes, is_whole)

    def _begin(self, codec: Codec) -> None:
        packed = self._batch.bytes[BATCH_HEADER_BYTES:]
        if codec is Codec.NONE or not LIBRARIES.has(codec):
            self._stream = self._batch.stream()
        else:
            self._unpacking = Unpacking(codec, packed, DEFAULT_LIMIT_BYTES)
            self._stream = packed

    def _corrupt(self, reason: str) -> CorruptBatch:
        return CorruptBatch(self._batch.header.position, reason)

    def _end(self, error: CorruptBatch | None) -> None:
        """Keep only the result or error, and release the batch and other memory."""
        assert self._search is not None
        if error is None and self._search.offset >= 0:
            self.found = self._search.timestamp, self._search.offset
        self._error, self._search, self._unpacking, self._stream = error, None, None, None
        del self._batch


def told_by_header(header: BatchFrame, append_time: int | None, from_offset: int) -> tuple[int, int] | None:
    """Return (timestamp, offset) of the first record with the largest timestamp, from `from_offset` on.

    Return None if the header does not determine that record, because records may have different timestamps
    or compaction removed some. Return None also if the batch ends before `from_offset`.
    """
    is_whole = header.record_count == header.last_offset_delta + 1
    offset = max(header.base_offset, from_offset)
    if not is_whole or (append_time is None and header.record_count > 1):
        return None
    if offset > header.base_offset + header.last_offset_delta:
        return None
    return header.max_timestamp, offset
