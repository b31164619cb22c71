"""Reads from the store what a window needs: a segment's indexes, its first offset, its batches.

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
from mpbroker.remote.ledger.events import SegmentAdded
from mpbroker.remote.store.object_store import ObjectStore, StoreError
from mpbroker.remote.tier.cache import PartitionKey, WindowKey
from mpbroker.remote.tier.windows import WINDOW_BYTES, ByteRange, SegmentWindows, aborted_of_window
from mpbroker.storage import names
from mpbroker.storage.segments import segments_of
from mpbroker.storage.transaction_index import AbortedTransaction, aborted_in, packed, read_aborted

# Bytes of a request: a window that is not larger is one request.
REQUEST_BYTES: Final = WINDOW_BYTES
_OFFSET_BYTES: Final = 8


class StoredPartition(NamedTuple):
    """What the object store has of a partition, and the partition's directory, with the later segments.

    `name` is for people. The segments are in the order of their offsets; each begins where the one before
    ends. More may be added meanwhile.
    """

    key: PartitionKey
    name: str
    directory: Path
    segments: Sequence[SegmentAdded]

    def find(self, offset: int) -> SegmentAdded | None:
        """Return the segment of an offset, or the next one if compaction has left no record in that one."""
        place = bisect_right(self.segments, offset, key=lambda one: one.base) - 1
        if place < 0:
            return None
        return next((one for one in self.segments[place:] if one.size and offset < one.end), None)


class Window(NamedTuple):
    """Window `number` of a segment, whose windows are `windows`."""

    partition: StoredPartition
    segment: SegmentAdded
    windows: SegmentWindows
    number: int

    @property
    def range(self) -> ByteRange:
        return self.windows.byte_range(self.number)

    @property
    def key(self) -> WindowKey:
        return WindowKey(*key_of(self.partition, self.segment), self.range.position)


def key_of(partition: StoredPartition, segment: SegmentAdded) -> tuple[PartitionKey, int, bytes]:
    """Return what tells a segment from all others."""
    return partition.key, segment.base, segment.segment_id


def read_indexes(store: ObjectStore, segment: SegmentAdded, path: Path) -> bytes:
    """Download the indexes of a segment, also to a file at `path`. Raises StoreError, OSError."""
    name = segment.objects.indexes
    indexes = _get(store, name, 0, sum(segment.index_sizes))
    if checksum(indexes) != segment.indexes_crc:
        raise StoreError(f"{name} is damaged: its checksum is not the ledger's")
    path.write_bytes(indexes)
    return indexes


def read_first(store: ObjectStore, window: Window) -> int:
    """Return the base offset of a window's first batch. Raises StoreError."""
    name, position = window.segment.objects.log, window.range.position
    return int.from_bytes(_get(store, name, position, _OFFSET_BYTES), "big")


def read_window(store: ObjectStore, window: Window, path: Path) -> tuple[int, int]:
    """Download a window into a new directory at `path`; return its offsets (base, end).

    Raises StoreError, CorruptBatch, TransactionIndexCorrupt, OSError.
    """
    if path.exists():
        shutil.rmtree(path)
    path.mkdir()
    partition, segment, windows, number = window
    checked = _CheckedBatches(segment)
    position, end = window.range
    log = path / names.LOG_SUFFIX
    with log.open("wb") as file:
        while position < end:
            data = _get(store, segment.objects.log, position, min(REQUEST_BYTES, end - position))
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
    store: ObjectStore, partition: StoredPartition, segment: SegmentAdded
) -> Iterator[list[AbortedTransaction]]:
    """Yield the aborted transactions of this segment and each later one, of the store and then of the disk.

    A transaction may end in a later segment than it began. All that have records in an uploaded segment have
    ended before the upload, so what is found never grows.
    """
    place = bisect_right(partition.segments, segment.base, key=lambda one: one.base) - 1
    stored = partition.segments[place:]
    for one in stored:
        if size := one.index_sizes.transactions:
            name = one.objects.indexes
            yield aborted_in(_get(store, name, one.index_sizes.positions.transactions, size), name)
    remote_end = stored[-1].end
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

    def __init__(self, segment: SegmentAdded) -> None:
        self._name = segment.objects.log
        self._end = segment.end
        self._rest = b""
        self._first = -1
        self._last = segment.base - 1

    def feed(self, data: bytes) -> None:
        """Check more bytes. Raises CorruptBatch, StoreError."""
        data, position = self._rest + data, 0
        while (frame := frame_at(data, position)) is not None:
            last = frame.base_offset + frame.last_offset_delta
            if not (self._last < frame.base_offset <= last < self._end):
                raise StoreError(f"{self._name} has offsets {frame.base_offset} to {last} after {self._last}")
            if self._first < 0:
                self._first = frame.base_offset
            self._last = last
            position += frame.length
        self._rest = data[position:]

    def finish(self) -> tuple[int, int]:
        """Return the first and the last offset. Raises StoreError."""
        if self._rest or self._first < 0:
            raise StoreError(f"a window of {self._name} does not end with a batch")
        return self._first, self._last
