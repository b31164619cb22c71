"""What a sealed segment's `.indexes` object is made of: the files beside its `.log`.

They are read as they are. A file that is missing is rebuilt in memory from the records, as a start of the
broker would rebuild it on disk. So is an offset index with an entry that is wrong: local readers find their
way without it, but windows of the remote segment begin at its entries.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

from mpbroker.log.partition.batch_checker import check_batches
from mpbroker.log.partition.batch_walker import header_of
from mpbroker.log.partition.state import PartitionState
from mpbroker.records.batch import BATCH_HEADER_BYTES
from mpbroker.remote.layout.indexes import SegmentIndexes, epochs_within, leader_epochs_below
from mpbroker.storage import scan
from mpbroker.storage.checkpoints import read_epochs, read_whole
from mpbroker.storage.names import (
    INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_name,
)
from mpbroker.storage.producer_state import Producers
from mpbroker.storage.transaction_index import AbortedTransaction, packed, read_aborted

# Kafka's default of index.interval.bytes.
INTERVAL_BYTES: Final = 4096
NO_TIMESTAMP: Final = -1
_REPLAYED_BYTES: Final = 1 << 20
_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")


class SegmentDamaged(Exception):
    """Raised for a segment whose bytes may not be uploaded; the message says where they are wrong."""


class LocalIndexes(NamedTuple):
    """The indexes of a segment. `largest_ms` is its records' largest timestamp, or when the `.log` was last
    written if none has one; `epochs` are their epochs."""

    parts: SegmentIndexes
    largest_ms: int
    epochs: tuple[tuple[int, int], ...]


class IndexEntries:
    """Compares the offset index of the segment of `base` with the segment's batches, as they are read.

    `are_right` until an entry does not have a batch's position and last offset.
    """

    def __init__(self, index: bytes, base: int) -> None:
        self._base = base
        whole = len(index) // _OFFSET_ENTRY.size * _OFFSET_ENTRY.size
        self._entries = _OFFSET_ENTRY.iter_unpack(index[:whole])
        self._next = next(self._entries, None)
        self._before = 0
        self.are_right = len(index) == whole

    def feed(self, batches: memoryview, position: int) -> None:
        """Compare entries with the next whole batches of the segment, which begin at `position`."""
        end = position + len(batches)
        while self.are_right and self._next is not None and self._next[1] < end:
            relative, at = self._next
            header = batches[at - position :][:BATCH_HEADER_BYTES] if at > self._before else b""
            self.are_right = (
                len(header) == BATCH_HEADER_BYTES and header_of(header)[0] == self._base + relative
            )
            self._before, self._next = at, next(self._entries, None)

    def finish(self) -> bool:
        """Return whether all entries were right. All batches were fed."""
        return self.are_right and self._next is None


def read_indexes(
    directory: Path, base: int, end: int, fd: int, *, rebuilds_offset: bool = False
) -> LocalIndexes:
    """Read the indexes of the segment of `base`, whose `.log` is open as `fd`.

    `end` is the next segment's base. `rebuilds_offset`: the offset index is wrong. Raises SegmentDamaged,
    CheckpointCorrupt, TransactionIndexCorrupt, OSError.
    """
    offset = _read(directory, base, INDEX_SUFFIX)
    time = _read(directory, base, TIME_INDEX_SUFFIX)
    aborted = _read(directory, base, TXN_INDEX_SUFFIX)
    snapshot = _read(directory, end, SNAPSHOT_SUFFIX)
    lacks_index = offset is None or time is None
    if snapshot is None or (aborted is None and lacks_index):
        replayed = _replayed(directory, base, end, fd)
        snapshot = replayed.snapshot if snapshot is None else snapshot
        aborted = replayed.aborted if aborted is None and lacks_index else aborted
    if offset is None or time is None or rebuilds_offset:
        offset, time = rebuilt(fd, base)
    if aborted:
        # An entry that is wrong would hide records, or show aborted ones.
        read_aborted(directory / segment_name(base, TXN_INDEX_SUFFIX))
    epochs = read_epochs(directory)
    return LocalIndexes(
        SegmentIndexes(offset, time, snapshot, leader_epochs_below(epochs, end), aborted or b""),
        _largest_ms(time, fd),
        epochs_within(epochs, base, end),
    )


def _largest_ms(time_index: bytes, fd: int) -> int:
    largest_ms: int = NO_TIMESTAMP
    if time_index:
        (largest_ms, _) = _TIME_ENTRY.unpack_from(time_index, len(time_index) - _TIME_ENTRY.size)
    return largest_ms if largest_ms >= 0 else os.fstat(fd).st_mtime_ns // 1_000_000


def rebuilt(fd: int, base: int) -> tuple[bytes, bytes]:
    """Return the offset index and the time index that an append of the same batches makes. Raises OSError."""
    offsets, times = bytearray(), bytearray()
    unindexed = 0
    largest_ms, largest_at, indexed_ms = NO_TIMESTAMP, base, NO_TIMESTAMP
    for batch in scan.batches(fd, 0, os.fstat(fd).st_size):
        if batch.max_timestamp > largest_ms:
            largest_ms, largest_at = batch.max_timestamp, batch.last_offset
        if unindexed > INTERVAL_BYTES:
            offsets += _OFFSET_ENTRY.pack(batch.last_offset - base, batch.position)
            if largest_ms > indexed_ms:
                times += _TIME_ENTRY.pack(largest_ms, largest_at - base)
                indexed_ms = largest_ms
            unindexed = 0
        unindexed += batch.length
    if largest_ms > indexed_ms:
        times += _TIME_ENTRY.pack(largest_ms, largest_at - base)
    return bytes(offsets), bytes(times)


class _Replayed(NamedTuple):
    snapshot: bytes
    aborted: bytes


def _replayed(directory: Path, base: int, end: int, fd: int) -> _Replayed:
    """Return the producer snapshot after the segment and its aborted transactions, from its records.

    Producers are known as far as the snapshot before the segment, or the segment itself, has them.
    """
    producers = Producers()
    if before := _read(directory, base, SNAPSHOT_SUFFIX):
        producers.load(before)
    state = PartitionState()
    state.open_segment(base, fd, -1, -1, 0)
    state.replace_producers(producers)
    aborted: list[AbortedTransaction] = []
    position, next_offset, size = 0, base, os.fstat(fd).st_size
    while position < size:
        checked = check_batches(fd, position, size, next_offset, state, False, base, _REPLAYED_BYTES)
        if checked.reason or checked.next_offset > end:
            reason = checked.reason or f"its offsets reach beyond {end}"
            raise SegmentDamaged(f"at byte {checked.valid_bytes} a batch is bad: {reason}")
        aborted += [AbortedTransaction(*entry) for entry in checked.aborted]
        position, next_offset = checked.valid_bytes, checked.next_offset
    return _Replayed(state.producers.snapshot(), packed(aborted))


def _read(directory: Path, offset: int, suffix: str) -> bytes | None:
    try:
        return read_whole(directory / segment_name(offset, suffix))
    except FileNotFoundError:
        return None
