"""Reads a task's range from the objects of a bucket, without a broker.

A segment is downloaded in windows of its bytes, some ahead of the one that is decoded. A window ends
anywhere: what is left of its last batch goes before the next one.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from mpbroker.reading.bucket_store import BUCKET, open_bucket, read_stored
from mpbroker.reading.columns import Columns
from mpbroker.reading.errors import CorruptLog, SourceUnavailable
from mpbroker.reading.plan import BucketFiles, StoredSegment, TaskRange, report_loss
from mpbroker.records.aborted import AbortedRanges
from mpbroker.records.batch import CURRENT_MAGIC, LENGTH_COUNTS_FROM, SMALLEST_BATCH_LENGTH
from mpbroker.records.errors import CorruptBatch
from mpbroker.remote.cuts.manifest import BUNDLES
from mpbroker.remote.store.object_store import ObjectMissing, ObjectStore, StoreError

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

WINDOW_BYTES: Final = 16 << 20
WINDOWS_AHEAD: Final = 2
# Of a batch: base offset, length, magic, last offset delta. (Kafka: DefaultRecordBatch.)
_HEAD: Final = struct.Struct(">qi4xb6xi")
# Of an offset index: the last offset of a batch, relative to the segment's base, and the batch's position.
_ENTRY_BYTES: Final = 8


def read_bucket(
    task: TaskRange,
    files: BucketFiles,
    columns: Columns,
    *,
    fail_on_data_loss: bool,
    read_committed: bool,
    window_bytes: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of the range. Raises DataLoss, CorruptLog, SourceUnavailable, OptionError."""
    store = open_bucket(files.url)
    aborted = AbortedRanges(files.aborted, complete=True) if read_committed else AbortedRanges()
    at = task.start
    for segment in files.segments:
        start, end = max(at, segment.base), min(task.end, segment.end)
        if start >= end:
            continue
        _report_gap(task, at, start, fail_on_data_loss=fail_on_data_loss)
        at = end
        place = f"offsets {start} to {end - 1} of {task}"
        try:
            for data, whole in _windows(store, segment, start, end, window_bytes or WINDOW_BYTES):
                yield from columns.decode(data, 0, whole, start, end, aborted)
        except ObjectMissing as error:
            if segment.log[0].name.startswith(BUNDLES):
                # The records are in a later cut, or in a segment.
                raise SourceUnavailable(
                    f"{error}: the cut that {place} were planned with is no longer kept. Run the query again"
                ) from error
            report_loss(fail_on_data_loss, f"Cannot read {place}: {error}.")
        except StoreError as error:
            raise SourceUnavailable(f"{BUCKET}: {error}, reading {place}") from error
        except CorruptBatch as error:
            raise CorruptLog(f"{_name(segment)} is damaged: {error.reason}, in {place}") from error
    _report_gap(task, at, task.end, fail_on_data_loss=fail_on_data_loss)


def _report_gap(task: TaskRange, start: int, end: int, *, fail_on_data_loss: bool) -> None:
    if start < end:
        report_loss(
            fail_on_data_loss, f"Cannot read offsets {start} to {end - 1} of {task}: no object has them."
        )


def _name(segment: StoredSegment) -> str:
    return " and ".join(dict.fromkeys(one.name for one in segment.log))


class _Bytes(NamedTuple):
    """The bytes [start, end) of a segment's file."""

    start: int
    end: int


def _windows(
    store: ObjectStore, segment: StoredSegment, start: int, end: int, window_bytes: int
) -> Iterator[tuple[bytes, int]]:
    """Yield (bytes, length of the whole batches in them), until offset `end` is reached.

    Raises ObjectMissing, StoreError, CorruptLog, CorruptBatch.
    """
    size = segment.size
    begin, likely_end = _place(store, segment, start, end)
    pool = ThreadPoolExecutor(WINDOWS_AHEAD + 1)
    try:
        rest, at = b"", begin
        # What lies behind the likely end is downloaded only if the range does not end there.
        for low, high in (_Bytes(begin, likely_end), _Bytes(likely_end, size)):
            parts = (_Bytes(one, min(one + window_bytes, high)) for one in range(low, high, window_bytes))
            for data in _ahead(lambda part: pool.submit(read_stored, store, segment.log, *part), parts):
                data = rest + data if rest else data
                whole, is_last = _whole_batches(data, end, size - at)
                yield data, whole
                if is_last:
                    return
                rest, at = data[whole:], at + whole
        if rest:
            raise CorruptLog(f"{_name(segment)} ends within a batch, before offset {end}")
    finally:
        pool.shutdown(cancel_futures=True)


def _ahead(ask: Callable[[_Bytes], Future[bytes]], parts: Iterator[_Bytes]) -> Iterator[bytes]:
    """Yield what is read of each part, in order; WINDOWS_AHEAD others are on their way meanwhile."""
    asked = deque(map(ask, islice(parts, WINDOWS_AHEAD + 1)))
    while asked:
        yield asked.popleft().result()
        asked.extend(map(ask, islice(parts, 1)))


def _whole_batches(data: bytes, end_offset: int, left: int) -> tuple[int, bool]:
    """Return the length of the batches that are whole, and whether they reach `end_offset`.

    A batch at or above `end_offset` is not counted. `left` is how many bytes the segment has from here on.
    Raises CorruptBatch.
    """
    position = 0
    while position + _HEAD.size <= len(data):
        base, length, magic, last_delta = _HEAD.unpack_from(data, position)
        if base >= end_offset:
            return position, True
        after = position + LENGTH_COUNTS_FROM + length
        if magic != CURRENT_MAGIC or length < SMALLEST_BATCH_LENGTH or after > left:
            raise CorruptBatch(
                position, f"no batch of {length} bytes and format {magic} can be at offset {base}"
            )
        if after > len(data):
            break
        position = after
        if base + last_delta >= end_offset - 1:
            return position, True
    return position, False


def _place(store: ObjectStore, segment: StoredSegment, start: int, end: int) -> _Bytes:
    """Return where the offsets [start, end) begin in the segment's file, or before, and where they may end.

    An index has no checksum. Where no batch is at the position of an entry, or the index is missing, the
    segment is read from its beginning. Raises ObjectMissing, StoreError, CorruptLog.
    """
    whole = _Bytes(0, segment.size)
    if not segment.offset_index or (start <= segment.base and end >= segment.end):
        return whole
    entries = sum(one.length for one in segment.offset_index) // _ENTRY_BYTES
    try:
        numbers = array("i", read_stored(store, segment.offset_index, 0, entries * _ENTRY_BYTES))
    except ObjectMissing:
        # Only the object of the records tells whether they are gone.
        return whole
    numbers.byteswap()
    offsets, positions = numbers[0::2], numbers[1::2]
    found = bisect_right(offsets, start - segment.base) - 1
    begin = 0
    if found >= 0 and offsets[found] <= start - segment.base:
        head = read_stored(store, segment.log, positions[found], positions[found] + _HEAD.size)
        if len(head) == _HEAD.size:
            base, _, magic, _ = _HEAD.unpack(head)
            if magic == CURRENT_MAGIC and 0 <= base - segment.base <= offsets[found]:
                begin = positions[found]
    last = bisect_left(offsets, end - 1 - segment.base) + 1
    likely_end = positions[last] if last < len(positions) else whole.end
    return _Bytes(begin, likely_end if begin < likely_end < whole.end else whole.end)
