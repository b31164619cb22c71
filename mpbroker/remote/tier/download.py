"""What a thread downloads: the indexes of a segment, the first offset of a window, a window with its indexes.

All of it is checked before anybody may read it: indexes against the checksum in the ledger, batches against
their own checksums, positions in the segment and neighbours' offsets.
"""

from __future__ import annotations

import shutil
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from mpbroker.records.batch import checksum, frame_at
from mpbroker.remote.store.object_store import ObjectStore, StoreError
from mpbroker.remote.tier.cache import PartitionKey
from mpbroker.remote.tier.windows import WINDOW_BYTES, SegmentWindows, aborted_of_window
from mpbroker.storage import names
from mpbroker.storage.segments import segments_of
from mpbroker.storage.transaction_index import AbortedTransaction, aborted_in, packed, read_aborted

# Bytes of a request: a window that is not larger is one request.
REQUEST_BYTES: Final = WINDOW_BYTES
_OFFSET_BYTES: Final = 8


class Parts(NamedTuple):
    """The parts of a segment's `.indexes` that readers need."""

    offset: bytes
    time: bytes
    aborted: bytes


class IndexSizes(NamedTuple):
    """The sizes of the parts of a segment's `.indexes`, in their order."""

    offset: int
    time: int
    snapshot: int
    epochs: int
    aborted: int

    @property
    def total(self) -> int:
        return sum(self)

    def split(self, indexes: bytes) -> Parts:
        times = self.offset + self.time
        return Parts(
            indexes[: self.offset], indexes[self.offset : times], indexes[self.total - self.aborted :]
        )


class StoredSegment(NamedTuple):
    """A segment in the object store, with offsets [base, end) and `size` bytes; the names of its objects."""

    base: int
    end: int
    size: int
    segment_id: bytes
    log_name: str
    indexes_name: str
    sizes: IndexSizes
    indexes_checksum: int


class StoredPartition(NamedTuple):
    """What the object store has of a partition, and the partition's directory, with the later segments.

    `name` is for people. The segments are in the order of their offsets; each begins where the one before
    ends.
    """

    key: PartitionKey
    name: str
    directory: Path
    segments: Sequence[StoredSegment]

    def find(self, offset: int) -> StoredSegment | None:
        """Return the segment of an offset, or the next one if compaction has left no record in that one."""
        place = bisect_right(self.segments, offset, key=lambda one: one.base) - 1
        if place < 0:
            return None
        return next((one for one in self.segments[place:] if one.size and offset < one.end), None)


def read_indexes(store: ObjectStore, segment: StoredSegment, path: Path) -> bytes:
    """Download the indexes of a segment, also to a file at `path`. Raises StoreError, OSError."""
    indexes = _get(store, segment.indexes_name, 0, segment.sizes.total)
    if checksum(indexes) != segment.indexes_checksum:
        raise StoreError(f"{segment.indexes_name} is damaged: its checksum is not the ledger's")
    path.write_bytes(indexes)
    return indexes


def read_first(store: ObjectStore, segment: StoredSegment, position: int) -> int:
    """Return the base offset of the batch at a position. Raises StoreError."""
    return int.from_bytes(_get(store, segment.log_name, position, _OFFSET_BYTES), "big")


def read_window(
    store: ObjectStore,
    partition: StoredPartition,
    segment: StoredSegment,
    windows: SegmentWindows,
    number: int,
    path: Path,
) -> tuple[int, int]:
    """Download a window into a new directory at `path`; return its offsets (base, end).

    Raises StoreError, CorruptBatch, TransactionIndexCorrupt, OSError.
    """
    if path.exists():
        shutil.rmtree(path)
    path.mkdir()
    checked = _CheckedBatches(segment)
    position, end = windows.byte_range(number)
    log = path / names.LOG_SUFFIX
    with log.open("wb") as file:
        while position < end:
            data = _get(store, segment.log_name, position, min(REQUEST_BYTES, end - position))
            checked.feed(data)
            file.write(data)
            position += len(data)
    first, last = checked.finish()
    known = windows.first(number)
    base = first if known is None else known
    end = segment.end if number + 1 == len(windows) else last + 1
    log.rename(path / names.segment_name(base))
    for suffix, content in (
        (names.INDEX_SUFFIX, windows.offset_index(number, base)),
        (names.TIME_INDEX_SUFFIX, windows.time_index(base, end)),
        (names.TXN_INDEX_SUFFIX, packed(aborted_of_window(_aborted(store, partition, segment), base, end))),
    ):
        if content:
            (path / names.segment_name(base, suffix)).write_bytes(content)
    return base, end


def _get(store: ObjectStore, name: str, position: int, length: int) -> bytes:
    """Return all bytes of a range. Raises StoreError."""
    data = store.get(name, position, length) if length else b""
    if len(data) != length:
        raise StoreError(f"{name} has {len(data)} bytes at {position} where {length} were written")
    return data


def _aborted(
    store: ObjectStore, partition: StoredPartition, segment: StoredSegment
) -> Iterator[list[AbortedTransaction]]:
    """Yield the aborted transactions of this segment and each later one, of the store and then of the disk.

    A transaction may end in a later segment than it began. All that have records in an uploaded segment have
    ended before the upload, so what is found never grows.
    """
    place = bisect_right(partition.segments, segment.base, key=lambda one: one.base) - 1
    for one in partition.segments[place:]:
        if one.sizes.aborted:
            data = _get(store, one.indexes_name, one.sizes.total - one.sizes.aborted, one.sizes.aborted)
            yield aborted_in(data, one.indexes_name)
    remote_end = partition.segments[-1].end
    local = segments_of(partition.directory)
    if not local or local[0] > remote_end:
        raise FileNotFoundError(
            f"{partition.directory} has no segment from offset {remote_end} on, where the remote ones end"
        )
    for base in local:
        if base >= remote_end:
            yield _aborted_here(partition.directory, base)


def _aborted_here(directory: Path, base: int) -> list[AbortedTransaction]:
    """Return the aborted transactions of a local segment. Raises FileNotFoundError if it was deleted."""
    try:
        return read_aborted(directory / names.segment_name(base, names.TXN_INDEX_SUFFIX), may_grow=True)
    except FileNotFoundError:
        # A segment without aborted transactions has no such file. Of one that is deleted the log goes first.
        (directory / names.segment_name(base)).stat()
        return []


class _CheckedBatches:
    """Checks the bytes of a window, as they come: whole batches whose offsets ascend within the segment."""

    def __init__(self, segment: StoredSegment) -> None:
        self._segment = segment
        self._rest = b""
        self._first = -1
        self._last = segment.base - 1

    def feed(self, data: bytes) -> None:
        """Check more bytes. Raises CorruptBatch, StoreError."""
        data, position = self._rest + data, 0
        while (frame := frame_at(data, position)) is not None:
            last = frame.base_offset + frame.last_offset_delta
            if not (self._last < frame.base_offset <= last < self._segment.end):
                raise StoreError(
                    f"{self._segment.log_name} has offsets {frame.base_offset} to {last} after {self._last}"
                )
            if self._first < 0:
                self._first = frame.base_offset
            self._last = last
            position += frame.length
        self._rest = data[position:]

    def finish(self) -> tuple[int, int]:
        """Return the first and the last offset. Raises StoreError."""
        if self._rest or self._first < 0:
            raise StoreError(f"a window of {self._segment.log_name} does not end with a batch")
        return self._first, self._last
