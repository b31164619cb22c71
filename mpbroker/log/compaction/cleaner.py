"""Clean one partition: map the keys of its dirty part to their last offsets, then rewrite its segments.

(Kafka: Cleaner.) Existing files are only read. New ones get the suffix `.cleaned` and have no effect until
the log process swaps them in (`mpbroker.log.partition.segment_swap`). A new segment has the name of the first
segment that it replaces.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from mpbroker.ipc.calls import ToClean
from mpbroker.log.compaction.clean_batches import BatchWalk, Filter, Stop, Verdict, map_one, map_plain
from mpbroker.log.compaction.cleanable import Source, groups
from mpbroker.log.compaction.cleaned_transactions import CleanedTransactions
from mpbroker.log.compaction.offset_map import SLOT_BYTES, OffsetMap
from mpbroker.log.io.background_io import PIECE_BYTES, SYNC_EVERY_BYTES, no_read_ahead, read, sync, write
from mpbroker.log.io.pace import PieceSize
from mpbroker.log.partition.state import PartitionState
from mpbroker.records.compression import compress
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.iterate import Batch, iterate_batches
from mpbroker.storage import names, transaction_index
from mpbroker.storage.checkpoints import opened, write_all
from mpbroker.storage.producer_state import Producers
from mpbroker.storage.segments import offsets_of, segments_of

_WRITE = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
_FILES = (names.LOG_SUFFIX, names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX, names.TXN_INDEX_SUFFIX)
READ_BYTES_LEAST = 4096
_ADVICE = (
    "Stop the broker and delete this .txnindex and the .index of its segment: the next start rebuilds both"
)
Result = TypeVar("Result")


class CleaningFailed(Exception):
    """Raised when the partition cannot be cleaned, because of its files or the settings."""


@dataclass(frozen=True)
class Buffers:
    """The sizes of the cleaner's buffers.

    They are set by log.cleaner.dedupe.buffer.size, log.cleaner.io.buffer.load.factor and
    log.cleaner.io.buffer.size.
    """

    dedupe_bytes: int = 128 << 20
    load_factor: float = 0.9
    io_bytes: int = 512 << 10


class Cleaned(NamedTuple):
    """A new segment, which replaces the segments with the base offsets `bases`."""

    bases: list[int]
    size: int
    largest_ms: int
    first_ms: int


@dataclass
class Statistics:
    """Counts of one cleaning (Kafka: CleanerStats)."""

    bytes_read: int = 0  # without reads for the offset map
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    buffer_utilization: float = 0.0


class Disk(Protocol):
    """A function such as `at_once`: it calls `do` and returns the result. `do` changes files."""

    def __call__(self, do: Callable[[], Result], /) -> Result: ...


def at_once(do: Callable[[], Result], /) -> Result:
    return do()


@dataclass
class Cleaner:
    """The cleaning of one partition.

    `pace` is called with the bytes read or written and the seconds that the disk took; between two pieces
    also with (0, 0.0). `pace` may wait, and may raise an exception to end the cleaning. `disk` calls
    functions that change files. A thread of very low priority passes a `disk` that calls them in another
    thread, since it may itself be suspended at any point, also while it has locks in the kernel.
    """

    task: ToClean
    buffers: Buffers
    pace: Callable[[int, float], None] = lambda _count, _disk_s: None
    disk: Disk = at_once
    statistics: Statistics = field(default_factory=Statistics)
    end: int = -1  # offsets below are clean when all is done
    _written: int = 0  # bytes of the new segment
    _piece: PieceSize = field(init=False)

    def __post_init__(self) -> None:
        self._directory = Path(self.task.directory)
        self._piece = PieceSize(PIECE_BYTES, max(PIECE_BYTES, self._room))

    def run(self) -> Iterator[Cleaned]:
        """Yield each new segment when it is on disk. Raises CleaningFailed, CorruptBatch, OSError."""
        task = self.task
        self.disk(partial(remove_cleaned, self._directory))
        ends = [*task.bases[1:], task.end]
        sources = [self._source(base, end) for base, end in zip(task.bases, ends, strict=True)]
        aborted = self._aborted()
        offsets = self._map(sources, CleanedTransactions(aborted))
        if offsets.latest < task.first_dirty:
            raise CleaningFailed(
                f"the buffer of {len(offsets)} keys is too small for one batch: "
                "set a larger log.cleaner.dedupe.buffer.size"
            )
        self.end = offsets.latest + 1
        self.statistics.bytes_read = 0
        self.statistics.buffer_utilization = offsets.utilization
        concerned = [one for one in sources if one.base < self.end]
        producers = Producers()
        if task.producers:
            producers.load(task.producers)
        keep = Filter(offsets, producers, task.now_ms, task.delete_retention_ms, task.end)
        transactions = CleanedTransactions(aborted)
        for group in groups(concerned, task.segment_bytes, task.index_bytes):
            yield self._clean(group, keep, transactions)
        self.statistics.records_read = keep.records_read
        self.statistics.records_kept = keep.records_kept

    def _path(self, base: int, suffix: str = names.LOG_SUFFIX) -> Path:
        return self._directory / names.segment_name(base, suffix)

    def _source(self, base: int, end: int) -> Source:
        sizes = [
            path.stat().st_size if (path := self._path(base, suffix)).exists() else 0
            for suffix in (names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX)
        ]
        return Source(base, end, self._path(base).stat().st_size, *sizes)

    def _aborted(self) -> list[transaction_index.AbortedTransaction]:
        """Read the aborted transactions that can have records in the segments.

        (Kafka: UnifiedLog.collectAbortedTransactions.) Raises CleaningFailed, OSError; FileNotFoundError if
        retention removes an index meanwhile.
        """
        directory, first = self._directory, self.task.bases[0]
        bases = [base for base in offsets_of(directory, names.TXN_INDEX_SUFFIX) if base >= first]
        # Listed afterwards, so that no later segment's index is read as one that may grow.
        active = segments_of(directory)[-1]
        indexes = (
            transaction_index.read_aborted(self._path(base, names.TXN_INDEX_SUFFIX), may_grow=base == active)
            for base in bases
        )
        try:
            return list(transaction_index.aborted_between(indexes, first, self.task.end))
        except transaction_index.TransactionIndexCorrupt as error:
            # Aborted records would be taken for the latest values of their keys.
            raise CleaningFailed(f"{error}. {_ADVICE}") from error

    # ---- the offset map ----

    def _map(self, sources: list[Source], transactions: CleanedTransactions) -> OffsetMap:
        task = self.task
        dirty = [one for one in sources if one.end > task.first_dirty]
        expected = task.end - task.first_dirty
        offsets = OffsetMap(max(self.buffers.dedupe_bytes, SLOT_BYTES), self.buffers.load_factor, expected)
        for one in dirty:
            if self._each_piece(one.base, partial(self._map_piece, offsets, transactions)) == Stop.FULL:
                return offsets
            # Offsets after the segment's last batch have no records.
            offsets.latest = max(offsets.latest, one.end - 1)
        return offsets

    def _map_piece(self, offsets: OffsetMap, transactions: CleanedTransactions, walk: BatchWalk) -> int:
        start = self.task.first_dirty
        while (stop := map_plain(walk, offsets, start)) == Stop.FOR_PYTHON:
            batch = _batch_at(walk)
            counts = False
            if batch.is_control:
                transactions.marks_nothing(batch)
            else:
                counts = not transactions.discards(batch) and batch.header.record_count > 0
            stop = map_one(walk, offsets, start, batch.stream() if counts else b"")
            if stop == Stop.FULL:
                return stop
            self.pace(0, 0.0)
        return stop

    # ---- the new segments ----

    def _clean(self, group: list[Source], keep: Filter, transactions: CleanedTransactions) -> Cleaned:
        task = self.task
        base = group[0].base
        fds = self.disk(partial(self._create, base))
        self._written = 0
        try:
            segment = PartitionState()
            index_interval, index_bytes = task.index_interval_bytes, task.index_bytes
            segment.configure(task.segment_bytes, (1 << 63) - 1, index_interval, index_bytes, False)
            segment.open_segment(base, fds[0], fds[1], fds[2], task.now_ms)
            keep.into(segment)
            for one in group:
                self._each_piece(one.base, partial(self._filter_piece, fds[0], keep, transactions))
            last = self._path(group[-1].base).stat()
            self.disk(partial(self._finish, segment, fds, transactions, last))
        finally:
            for fd in fds:
                os.close(fd)
        largest_ms = segment.max_timestamp if segment.max_timestamp >= 0 else last.st_mtime_ns // 1_000_000
        return Cleaned([one.base for one in group], segment.size, largest_ms, segment.first_timestamp)

    def _filter_piece(self, fd: int, keep: Filter, transactions: CleanedTransactions, walk: BatchWalk) -> int:
        while keep.plain(walk) == Stop.FOR_PYTHON:
            batch = _batch_at(walk)
            horizon_ms = batch.delete_horizon_ms
            if batch.is_control:
                ends_nothing = transactions.marks_nothing(batch)
                discards = ends_nothing and horizon_ms is not None and horizon_ms <= self.task.now_ms
            else:
                ends_nothing, discards = False, transactions.discards(batch)
            stream = batch.stream() if batch.header.record_count else b""
            if keep.judge_one(walk, stream, discards, ends_nothing) == Verdict.REBUILT and batch.codec:
                records = keep.rebuilt(walk, stream, ends_nothing)
                keep.put(walk, compress(batch.codec, records), ends_nothing)
            self.pace(0, 0.0)
        self._write(fd, memoryview(keep.take()))
        return Stop.END

    def _write(self, fd: int, data: memoryview) -> None:
        start = 0
        while start < len(data):
            piece = data[start : start + self._piece.bytes]
            start += len(piece)
            took_s = self.disk(partial(write, fd, piece, self._written))
            self._piece.took(len(piece), took_s)
            self._written += len(piece)
            self.statistics.bytes_written += len(piece)
            if self._written // SYNC_EVERY_BYTES > (self._written - len(piece)) // SYNC_EVERY_BYTES:
                took_s += self.disk(partial(sync, fd))
            self.pace(len(piece), took_s)

    # ---- what changes files ----

    def _create(self, base: int) -> list[int]:
        return [os.open(self._cleaned(base, suffix), _WRITE, 0o644) for suffix in _FILES[:3]]

    def _finish(
        self, segment: PartitionState, fds: list[int], transactions: CleanedTransactions, last: os.stat_result
    ) -> None:
        """Finish the new segment, with the file times of its last source (`last`), and sync its files."""
        segment.finish_segment()
        self._write_aborted(segment.segment_base, transactions)
        for fd in fds:
            os.utime(fd, ns=(last.st_atime_ns, last.st_mtime_ns))
            os.fsync(fd)

    def _write_aborted(self, base: int, transactions: CleanedTransactions) -> None:
        if not transactions.kept:
            return
        with opened(self._cleaned(base, names.TXN_INDEX_SUFFIX), _WRITE) as fd:
            write_all(fd, transaction_index.packed(transactions.kept))
            os.fsync(fd)
        transactions.kept.clear()

    def _cleaned(self, base: int, suffix: str) -> Path:
        return self._path(base, suffix + names.CLEANED_FILE_SUFFIX)

    # ---- reading ----

    @property
    def _room(self) -> int:
        """Return a buffer's size in bytes: half of log.cleaner.io.buffer.size, at least READ_BYTES_LEAST."""
        return max(self.buffers.io_bytes // 2, READ_BYTES_LEAST)

    def _each_piece(self, base: int, do: Callable[[BatchWalk], int]) -> int:
        """Call `do` for each piece of a segment until it returns FULL. Raises CleaningFailed, OSError."""
        path = self._path(base)
        with opened(path) as fd:
            no_read_ahead(fd)
            size = os.fstat(fd).st_size
            position, room = 0, self._room
            while position < size:
                data, took_s = read(fd, min(room, size - position), position)
                self.pace(len(data), took_s)
                walk = BatchWalk(data)
                try:
                    stop = do(walk)
                except transaction_index.TransactionIndexCorrupt as error:
                    raise CleaningFailed(f"{path}: {error}. {_ADVICE}") from error
                except CorruptBatch as error:
                    where = position + error.position
                    raise CleaningFailed(f"{path} is damaged at byte {where}: {error.reason}") from error
                if stop == Stop.FULL:
                    return stop
                if walk.at == 0 and room >= size - position:
                    raise CleaningFailed(f"{path} is damaged at byte {position}: it is cut off")
                self.statistics.bytes_read += walk.at
                room = self._room if walk.at else room * 2
                position += walk.at
        return Stop.END


def _batch_at(walk: BatchWalk) -> Batch:
    """Return the batch where the walk stopped, whose CRC the walk has checked."""
    return next(iterate_batches(walk.piece, walk.at, check_crc=False))


def remove_cleaned(directory: Path) -> None:
    """Remove the files that an unfinished cleaning left."""
    for entry in list(directory.iterdir()):
        if entry.name.endswith(names.CLEANED_FILE_SUFFIX):
            entry.unlink(missing_ok=True)
