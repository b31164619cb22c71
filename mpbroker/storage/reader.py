"""A reader of a partition's files, for processes other than the log process: handlers, and Spark.

A reader never reads a byte beyond its bound, which comes from the partition table. So it stays correct while
the log process appends and rolls. It reads sealed segments to their end, and the bound's segment to the
bound's position. If this segment's file may have been replaced, it reads up to the bound's offset instead.
(Kafka: LocalLog.read, LogSegment.read, UnifiedLog.fetchOffsetByTimestamp.)

Compaction puts another file under the name of a segment, and retention removes segments. Therefore facts
about a file are kept with the open file (`_OpenSegment`, `AbortedIndex`) and dropped when the file is closed:
its positions are wrong in any other file, and its inode number may be reused. Only the directory's
listing is kept independently of open files. The directory is listed again when the listing lacks a file.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from mpbroker.ipc.slots import file_generation
from mpbroker.records.batch import BATCH_HEADER_BYTES
from mpbroker.records.record_search import BEGUN_WITH_BYTES, RecordSearch
from mpbroker.records.validation import Pieces, at_once
from mpbroker.storage import index, names, scan, transaction_index
from mpbroker.storage.checkpoints import read_epochs
from mpbroker.storage.damage import Damage, damages_of
from mpbroker.storage.residency import resident
from mpbroker.storage.segments import offsets_of, segments_of
from mpbroker.storage.trusted_entries import (
    BEHIND_ALL,
    LATEST_TIME,
    NO_TIMESTAMP,
    position_before,
    time_before,
)

# The first read of a search for an offset in a segment.
LOOKED_AT_BYTES = 16384
NO_OFFSET = -1
# In each open segment.
REMEMBERED_POSITIONS = 64
REMEMBERED_SEARCHES = 64
OPEN_SEGMENTS = OPEN_ABORTED_INDEXES = 4


class OffsetOutOfRange(Exception):
    """Raised when an offset is below the log's first segment or beyond the bound."""


class SegmentGone(Exception):
    """Raised when a segment was deleted or replaced after it was listed. Read the partition table again."""


class NotResident(Exception):
    """Raised when a read of `length` bytes at `position` would wait for the disk."""

    def __init__(self, fd: int, position: int, length: int) -> None:
        super().__init__(f"{length} bytes at {position}")
        self.fd = fd
        self.position = position
        self.length = length


class RangeDamaged(Exception):
    """Raised when the scrubber has found damage in an offset's batch, or in its segment's `.txnindex`."""


class Bound(NamedTuple):
    """The first invisible offset (high watermark or last stable offset), its segment and its position."""

    offset: int
    segment_base: int
    position: int


class Slice(NamedTuple):
    """A range of bytes in the segment file `path`. It begins with a batch; its last batch may be cut off."""

    segment_base: int
    position: int
    length: int
    inode: int
    path: bytes


class FoundOffset(NamedTuple):
    """The timestamp and offset in an answer of ListOffsets. Both are -1 if no record was found."""

    timestamp: int
    offset: int


NOTHING_FOUND = FoundOffset(NO_TIMESTAMP, NO_OFFSET)


class TimedBatch(NamedTuple):
    """A batch that a search for a time has found. The bytes of its header identify the batch."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    header: bytes
    piece: Slice


@dataclass
class _OpenSegment:
    """The files of one segment, kept open for the next read, and facts that are true of these files only."""

    base: int
    fd: int
    index_fd: int
    inode: int
    path: bytes
    # By offsets that consumers will ask for: where to search for them. The last used come last.
    positions: OrderedDict[int, int] = field(default_factory=OrderedDict)
    # The last offset + 1, once that was asked for.
    _end: int | None = None
    # Whether there was no later segment when it was first asked for.
    was_last: bool | None = None
    # The last offset of a bound that was searched for here, and the position where it begins.
    found_bound: tuple[int, int] = (-1, 0)
    _has_its_indexes: bool = False

    @classmethod
    def open(cls, directory: Path, base: int) -> _OpenSegment:
        """Open a segment's `.log`, and its `.index` if there is one. Raises SegmentGone, OSError."""
        try:
            fd = os.open(directory / names.segment_name(base), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise SegmentGone(f"{directory / names.segment_name(base)} was deleted") from error
        try:
            index_fd = os.open(
                directory / names.segment_name(base, names.INDEX_SUFFIX), os.O_RDONLY | os.O_CLOEXEC
            )
        except FileNotFoundError:
            # A missing index is legal for readers: the whole segment is scanned.
            index_fd = -1
        except OSError:
            os.close(fd)
            raise
        path = (directory / names.segment_name(base)).absolute()
        segment = cls(base, fd, index_fd, file_generation(os.fstat(fd)), os.fsencode(path))
        if not segment.is_in_place():
            # It was just replaced by the cleaner: the index may belong to the new file.
            segment.close()
            raise SegmentGone(f"{path} is another file now")
        return segment

    def is_in_place(self) -> bool:
        try:
            return file_generation(Path(os.fsdecode(self.path)).stat()) == self.inode
        except FileNotFoundError:
            return False

    def has_its_indexes(self) -> bool:
        """Return whether the indexes belong to the open `.log`. Compaction replaces them after the `.log`."""
        if not self._has_its_indexes:
            path = Path(os.fsdecode(self.path))
            try:
                swapped = path.with_suffix(names.LOG_SUFFIX + names.SWAP_FILE_SUFFIX).stat()
            except FileNotFoundError:
                self._has_its_indexes = True
            else:
                self._has_its_indexes = file_generation(swapped) != self.inode or not any(
                    path.with_suffix(suffix + names.SWAP_FILE_SUFFIX).exists()
                    for suffix in names.INDEX_SUFFIXES
                )
        return self._has_its_indexes

    def remember(self, offset: int, position: int) -> None:
        """Remember the position of an offset, at which a sequential consumer's next fetch begins."""
        self.positions[offset] = position
        self.positions.move_to_end(offset)
        if len(self.positions) > REMEMBERED_POSITIONS:
            self.positions.popitem(last=False)

    def end(self) -> int:
        """Return the offset after the last record of a sealed segment. Raises OSError."""
        if self._end is None:
            position = position_before(self.fd, self.index_fd, self.base, BEHIND_ALL)
            last = scan.last_batch(self.fd, position, os.fstat(self.fd).st_size)
            self._end = last.last_offset + 1 if last is not None else self.base
        return self._end

    def is_deleted(self) -> bool:
        fds = (self.fd, self.index_fd) if self.index_fd >= 0 else (self.fd,)
        return any(os.fstat(fd).st_nlink == 0 for fd in fds)

    def close(self) -> None:
        os.close(self.fd)
        if self.index_fd >= 0:
            os.close(self.index_fd)


class PartitionReader:
    """A reader of one partition directory. Not thread-safe; keeps a few files open until `close`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # Segments as they were listed last, and those of them that have a `.txnindex`, once these are needed.
        self._bases: list[int] = []
        self._with_aborted: list[int] | None = None
        # The `aborted_end` that the listing is known to cover.
        self._aborted_end = 0
        self._open: OrderedDict[int, _OpenSegment] = OrderedDict()
        self._aborted: OrderedDict[int, transaction_index.AbortedIndex] = OrderedDict()
        # Searches for a time in a batch, of which some may be under way.
        self._searches: OrderedDict[tuple[bytes, int, int], RecordSearch] = OrderedDict()
        self._damages: list[Damage] = []
        self._damaged_indexes: dict[int, Damage] = {}
        self._damage_version = 0

    def load_damages(self, damage_version: int) -> None:
        """Load the damages again if `damage_version` has changed. Raises CheckpointCorrupt, OSError."""
        if damage_version != self._damage_version:
            found = damages_of(self.directory) if damage_version else []
            self._damages = [one for one in found if one.is_of_records]
            self._damaged_indexes = {one.base: one for one in found if not one.is_of_records}
            self._damage_version = damage_version

    def close(self) -> None:
        self._close_segments()
        for aborted in self._aborted.values():
            aborted.close()
        self._aborted.clear()

    def _close_segments(self) -> None:
        for segment in self._open.values():
            segment.close()
        self._open.clear()

    def has_deleted(self) -> bool:
        """Return whether an open file was deleted, so that its disk space is not free before `close`."""
        return any(segment.is_deleted() for segment in self._open.values()) or any(
            aborted.is_deleted() for aborted in self._aborted.values()
        )

    def segments(self) -> list[int]:
        """List the directory again; return the base offsets of all segments. Raises OSError.

        This closes all open segments: since a segment was opened, compaction may have merged later segments
        into it, and the open file lacks their offsets.
        """
        self._close_segments()
        self._bases, self._with_aborted = segments_of(self.directory), None
        return self._bases

    def _segment_gone(self, base: int, how: str) -> SegmentGone:
        """Forget the directory's listing; return the exception to raise, after which callers try again."""
        self._close_segments()
        self._bases = []
        return SegmentGone(f"{self.directory / names.segment_name(base)} {how}")

    def epochs(self) -> list[tuple[int, int]]:
        """Return the leader epochs as (epoch, start offset), ascending. Raises CheckpointCorrupt, OSError."""
        return read_epochs(self.directory)

    def locate(self, offset: int, bound: Bound) -> scan.BatchAt | None:
        """Return the batch that holds the offset, or the next batch if the offset is in a gap.

        Returns None at the bound. The batch's `position` is a position in its segment's file. Raises
        OffsetOutOfRange, RangeDamaged, CorruptBatch, SegmentGone, OSError.
        """
        found = self._locate(offset, bound)
        return found[1] if found else None

    def fetch_slice(
        self, offset: int, max_bytes: int, bound: Bound, min_one_batch: bool = True, *, wait: bool = True
    ) -> Slice | None:
        """Return a slice of at most `max_bytes`, from the offset's batch on, that ends before any damage.

        If the first batch is larger, the slice has all of it if `min_one_batch`, otherwise None is returned.
        Returns None at the bound. If `wait` is False, NotResident is raised instead of reading from the disk.
        Raises OffsetOutOfRange, RangeDamaged, CorruptBatch, SegmentGone, OSError.
        """
        found = self._locate(offset, bound, None if wait else max_bytes)
        if found is None:
            return None
        segment, batch = found
        limit = self._whole_until(segment, batch.position, self._limit(segment, bound))
        length = min(max_bytes, limit - batch.position)
        if length < batch.length:
            if not min_one_batch:
                return None
            length = batch.length
        if not wait:
            _check_resident(segment.fd, batch.position, length)
        if batch.position + length == limit and segment.base == bound.segment_base:
            segment.remember(bound.offset, limit)
        return Slice(segment.base, batch.position, length, segment.inode, segment.path)

    def aborted(
        self, offset: int, piece: Slice, bound: Bound, aborted_end: int
    ) -> list[transaction_index.AbortedTransaction]:
        """Return the aborted transactions that may have records in a slice, which was fetched from `offset`.

        They are in the order of their markers. All abort markers of the partition are below `aborted_end`.
        Raises SegmentGone, RangeDamaged, TransactionIndexCorrupt, OSError.
        """
        # With a damaged index `aborted_end` may be wrong as well.
        if offset >= aborted_end and not self._damaged_indexes:
            return []
        bases = self._bases_with_aborted(piece, bound, aborted_end)
        segment = self._of(piece)
        if not segment.has_its_indexes():
            raise self._segment_gone(segment.base, "is just being put in place")
        end = self._end_of(segment, piece, bound)
        found = list(
            transaction_index.aborted_between(map(self._aborted_in, bases), offset, end, segment.end)
        )
        if not segment.is_in_place():
            # The indexes may be of the file that took its place, and lack transactions.
            raise self._segment_gone(segment.base, "is another file now")
        return found

    def _bases_with_aborted(self, piece: Slice, bound: Bound, aborted_end: int) -> list[int]:
        """Return the base offsets of a slice's segment and of later segments that may have a `.txnindex`."""
        self._visible(bound, piece.segment_base)
        if aborted_end != self._aborted_end and not self._has_marker(aborted_end - 1):
            # It is in a segment that is newer than the listing, unless the cleaner has removed it.
            self.segments()
        self._aborted_end = aborted_end
        if self._with_aborted is None:
            # Listed after the segments, so that the indexes of segments sealed by then are complete.
            self._with_aborted = offsets_of(self.directory, names.TXN_INDEX_SUFFIX)
        # The last one was active when it was listed, and may have got its index since.
        later = {*self._with_aborted, *self._bases[-1:]}
        return [piece.segment_base, *sorted(base for base in later if base > piece.segment_base)]

    def _has_marker(self, offset: int) -> bool:
        """Return whether the last segment in `_bases` has an abort marker at or after the offset."""
        if not self._bases or self._bases[-1] in self._damaged_indexes:
            return False
        try:
            entries = self._aborted_in(self._bases[-1])
        except transaction_index.TransactionIndexCorrupt:
            # Only fetches that need its entries fail.
            return False
        return len(entries) > 0 and entries[len(entries) - 1].last_offset >= offset

    def _aborted_in(self, base: int) -> transaction_index.Entries:
        """Return the entries of a segment's `.txnindex`. If it is open already, check only new entries."""
        damage = self._damaged_indexes.get(base)
        if damage is not None and damage.is_there(self.directory.parent):
            raise RangeDamaged(str(damage))
        known = self._aborted.get(base)
        if known is not None and not known.read_on():
            self._aborted.pop(base).close()
            known = None
        if known is None:
            try:
                known = transaction_index.AbortedIndex(
                    self.directory / names.segment_name(base, names.TXN_INDEX_SUFFIX)
                )
            except FileNotFoundError:
                # The log file of a segment is removed before its indexes.
                if not (self.directory / names.segment_name(base)).exists():
                    raise self._segment_gone(base, "was deleted") from None
                return ()
            self._aborted[base] = known
            if len(self._aborted) > OPEN_ABORTED_INDEXES:
                self._aborted.popitem(last=False)[1].close()
        self._aborted.move_to_end(base)
        return known

    def _end_of(self, segment: _OpenSegment, piece: Slice, bound: Bound) -> int:
        """Return an offset after all offsets of the slice, as near to them as the `.index` allows."""
        if segment.index_fd >= 0:
            end = piece.position + piece.length
            offset = index.offset_ceiling(segment.index_fd, segment.base, end)
            if offset is not None:
                return offset
        return bound.offset if segment.base == bound.segment_base else min(segment.end(), bound.offset)

    def read(self, piece: Slice) -> bytes:
        """Read the bytes of a slice. Raises SegmentGone, OSError."""
        return os.pread(self._of(piece).fd, piece.length, piece.position)

    def _of(self, piece: Slice) -> _OpenSegment:
        """Open the segment of a slice. Raises SegmentGone if the file is not the slice's, OSError."""
        segment = self._segment(piece.segment_base)
        if segment.inode != piece.inode:
            raise SegmentGone(
                f"{self.directory / names.segment_name(piece.segment_base)} is another file now"
            )
        return segment

    # ---- searches for a time ----

    def find_timestamp(self, timestamp_ms: int, log_start: int, bound: Bound) -> FoundOffset:
        """Return what `offset_of_time` finds, without pauses."""
        return at_once(offset_of_time(lambda: self, timestamp_ms, log_start, bound))

    def max_timestamp(self, bound: Bound, log_start: int = 0) -> FoundOffset:
        """Return what `offset_of_largest_time` finds, without pauses."""
        return at_once(offset_of_largest_time(lambda: self, bound, log_start))

    def batch_of_time(self, timestamp_ms: int, from_offset: int, bound: Bound) -> TimedBatch | None:
        """Find the first batch with a record at `timestamp_ms` or later, and at `from_offset` or later.

        Raises CorruptBatch, SegmentGone, OSError.
        """
        for base in self._visible(bound, from_offset):
            segment = self._segment(base)
            limit = self._limit(segment, bound)
            at = self._time_start(segment, timestamp_ms, from_offset)
            batch = next(self._reaching(segment, at, limit, from_offset, timestamp_ms), None)
            if batch is not None:
                return _timed(segment, batch)
        return None

    def batch_of_largest_time(self, bound: Bound, log_start: int) -> TimedBatch | None:
        """Find the first batch that has the largest timestamp. Raises CorruptBatch, SegmentGone, OSError."""
        best: TimedBatch | None = None
        visible = self._visible(bound, log_start)
        for base in visible:
            segment = self._segment(base)
            limit = self._limit(segment, bound)
            below = bound.offset if base == visible[-1] else None
            found = self._largest_in(segment, limit, log_start, below)
            if found is not None and found.max_timestamp > (best.max_timestamp if best else NO_TIMESTAMP):
                best = _timed(self._segment(base), found)
        return best

    def search(
        self, batch: TimedBatch, timestamp_ms: int, from_offset: int
    ) -> Pieces[tuple[int, int] | None]:
        """Return the (timestamp, offset) that a `RecordSearch` in the batch finds; None if it finds none.

        Calls with equal arguments share one `RecordSearch`. The batch is read before the first pause. Raises
        CorruptBatch, SegmentGone, OSError.
        """
        key = _search_key(batch, timestamp_ms, from_offset)
        search = self._searches.get(key)
        if search is None:
            search = self._searches[key] = RecordSearch(self.read(batch.piece), timestamp_ms, from_offset)
            if len(self._searches) > REMEMBERED_SEARCHES:
                self._searches.popitem(last=False)
        search.askers += 1
        try:
            while not search.step():
                yield
        finally:
            search.askers -= 1
            if not (search.askers or search.is_over) and self._searches.get(key) is search:
                # The last asker has ended, and nothing else would free its memory.
                del self._searches[key]
        return search.found

    def begins_at_once(self, batch: TimedBatch, timestamp_ms: int, from_offset: int) -> bool:
        """Return whether `search` takes little time and memory before its first pause."""
        if batch.piece.length <= BEGUN_WITH_BYTES:
            return True
        return _search_key(batch, timestamp_ms, from_offset) in self._searches

    # ---- positions ----

    def _locate(
        self, offset: int, bound: Bound, unread: int | None = None
    ) -> tuple[_OpenSegment, scan.BatchAt] | None:
        """Return the segment and the batch for an offset, as `locate` finds it; None at the bound.

        `unread` is the number of bytes to be read next. If it is given, NotResident is raised instead of
        waiting for the disk.
        """
        if offset == bound.offset:
            return None
        if offset > bound.offset:
            raise OffsetOutOfRange(f"offset {offset} is beyond {bound.offset}")
        self._refuse_damaged(offset)
        segment, position = self._start_for(offset, bound, unread)
        while True:
            position = self._after_damage(segment.base, position, offset)
            limit = self._limit(segment, bound, unread)
            if unread is not None:
                _check_beginning(segment.fd, position, limit, unread)
            batch = scan.find_offset(segment.fd, position, limit, offset, strict=True)
            if batch is not None:
                segment.remember(batch.last_offset + 1, batch.position + batch.length)
                return segment, batch
            if segment.base < bound.segment_base and not segment.is_in_place():
                # The new file may hold the offsets of deleted segments.
                raise self._segment_gone(segment.base, "is another file now")
            later = [base for base in self._visible(bound, offset) if base > segment.base]
            if not later:
                return None
            segment, position = self._segment(later[0]), 0

    def _start_for(self, offset: int, bound: Bound, unread: int | None) -> tuple[_OpenSegment, int]:
        """Return the segment with the largest base up to the offset, and the position to search from."""
        bases = self._bases
        place = bisect_right(bases, offset)
        if place == 0 or (place == len(bases) and bases[-1] < bound.segment_base):
            # Since the listing the log has rolled, or may have lost its oldest segments.
            bases = self.segments()
            place = bisect_right(bases, offset)
        if place == 0:
            raise OffsetOutOfRange(f"offset {offset} is below the first segment of {self.directory}")
        segment = self._segment(bases[place - 1])
        position = segment.positions.get(offset)
        return segment, self._indexed(segment, offset, unread) if position is None else position

    def _indexed(self, segment: _OpenSegment, offset: int, unread: int | None = None) -> int:
        if unread is not None and segment.index_fd >= 0:
            _check_resident(segment.index_fd, 0, os.fstat(segment.index_fd).st_size)
            position = index.offset_floor(segment.index_fd, segment.base, offset)[1]
            _check_beginning(segment.fd, position, os.fstat(segment.fd).st_size, unread)
        return position_before(segment.fd, segment.index_fd, segment.base, offset)

    # ---- damage ----

    def _refuse_damaged(self, offset: int) -> None:
        """Raise RangeDamaged if the offset lies in a damaged range."""
        for one in self._damages:
            if one.first <= offset < one.end_offset and one.is_there(self.directory.parent):
                raise RangeDamaged(str(one))

    def _after_damage(self, base: int, position: int, offset: int) -> int:
        """Return where the last damage before `offset` in segment `base` ends, but at least `position`."""
        ends = [
            one.end
            for one in self._damages
            if one.base == base and one.end_offset <= offset and one.is_there(self.directory.parent)
        ]
        return max([position, *ends])

    def _whole_until(self, segment: _OpenSegment, position: int, limit: int) -> int:
        """Return the position of the first damage after `position`, or `limit` if that is smaller."""
        begins = [
            one.position
            for one in self._damages
            if one.base == segment.base and position < one.position and one.is_there(self.directory.parent)
        ]
        return min([limit, *begins])

    def _visible(self, bound: Bound, log_start: int) -> list[int]:
        """Return the base offsets of the segments that have offsets from `log_start` to the bound."""
        if not self._bases or self._bases[-1] < bound.segment_base:
            self.segments()
        visible = [base for base in self._bases if base <= bound.segment_base]
        return visible[max(bisect_right(visible, log_start) - 1, 0) :]

    def _limit(self, segment: _OpenSegment, bound: Bound, unread: int | None = None) -> int:
        """Return the position at which the visible bytes of a segment end.

        After the bound was read, its segment may have been sealed and compacted, or merged into an earlier
        segment. Then the bound's position is for the old file, and the bound's offset is searched for
        instead. The last segment is never compacted. `unread` is as in `_locate`.
        """
        if segment.base > bound.segment_base:
            return 0
        if segment.base == bound.segment_base:
            if segment.was_last is None:
                # Listed after the file was opened.
                segment.was_last = segments_of(self.directory)[-1:] == [segment.base]
            if segment.was_last:
                return bound.position
        place = bisect_right(self._bases, bound.segment_base)
        if segment.base < bound.segment_base and self._bases[place - 1 : place] != [segment.base]:
            return os.fstat(segment.fd).st_size
        if segment.found_bound[0] != bound.offset:
            segment.found_bound = bound.offset, self._position_of_bound(segment, bound.offset, unread)
        return segment.found_bound[1]

    def _position_of_bound(self, segment: _OpenSegment, offset: int, unread: int | None) -> int:
        """Return the position of a sealed segment's first batch with no offset below `offset`."""
        size = os.fstat(segment.fd).st_size
        position = self._after_damage(segment.base, self._indexed(segment, offset, unread), offset)
        if unread is not None:
            _check_beginning(segment.fd, position, size, unread)
        batch = scan.find_offset(segment.fd, position, size, offset, strict=True)
        if batch is None:
            return size
        # A batch that the bound cuts through is visible.
        return batch.position + (batch.length if batch.base_offset < offset else 0)

    def _segment(self, base: int) -> _OpenSegment:
        segment = self._open.get(base)
        if segment is None:
            try:
                segment = self._open[base] = _OpenSegment.open(self.directory, base)
            except SegmentGone:
                self._bases = []  # to be listed again
                raise
            if len(self._open) > OPEN_SEGMENTS:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(base)
        return segment

    # ---- times ----

    def _reaching(
        self, segment: _OpenSegment, at: int, limit: int, log_start: int, timestamp_ms: int
    ) -> Iterator[scan.BatchAt]:
        """Yield undamaged batches at positions [at, limit) with records at `timestamp_ms` or later."""
        for start, end in self._stretches(segment, at, limit):
            position = start
            while (
                batch := scan.find_timestamp(segment.fd, position, end, log_start, timestamp_ms, strict=True)
            ) is not None:
                yield batch
                position = batch.position + batch.length

    def _stretches(self, segment: _OpenSegment, at: int, limit: int) -> Iterator[tuple[int, int]]:
        damages = [one for one in self._damages if one.base == segment.base]
        for one in sorted(damages, key=lambda one: one.position):
            if at < one.end <= limit and one.is_there(self.directory.parent):
                if at < one.position:
                    yield at, one.position
                at = one.end
        yield at, limit

    def _time_start(self, segment: _OpenSegment, timestamp_ms: int, log_start: int) -> int:
        """Return a position before which all records are earlier than `timestamp_ms`."""
        return self._indexed(segment, max(self._time_floor(segment, timestamp_ms - 1)[1], log_start))

    def _time_floor(
        self, segment: _OpenSegment, timestamp_ms: int, below: int | None = None
    ) -> tuple[int, int]:
        """Return (timestamp, offset) of the last trusted time index entry at or before `timestamp_ms`.

        Entries whose offset is at least `below` are ignored. Returns (NO_TIMESTAMP, base) without entries.
        """
        base, name = segment.base, names.segment_name(segment.base, names.TIME_INDEX_SUFFIX)
        try:
            fd = os.open(self.directory / name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return NO_TIMESTAMP, base
        try:
            if below is not None:
                timestamp_ms = min(timestamp_ms, index.sound_times(fd, base, below - 1)[1])
            return time_before(segment.fd, segment.index_fd, fd, base, timestamp_ms)
        finally:
            os.close(fd)

    def _largest_in(
        self, segment: _OpenSegment, limit: int, log_start: int, below: int | None
    ) -> scan.BatchAt | None:
        """Find a segment's first batch with the largest timestamp.

        `below` is the first invisible offset of the segment. If it is None, the whole segment is visible, and
        the time index gives the largest timestamp.
        """
        timestamp, offset = self._time_floor(segment, LATEST_TIME, below)
        is_there = timestamp >= 0 and offset >= log_start
        at = self._indexed(segment, offset if is_there else max(log_start, segment.base))
        if is_there and below is None:
            return next(self._reaching(segment, at, limit, segment.base, timestamp), None)
        best = None
        for batch in self._reaching(segment, at, limit, log_start, 0):
            if best is None or batch.max_timestamp > best.max_timestamp:
                best = batch
        return best


def _check_resident(fd: int, position: int, length: int) -> None:
    """Raise NotResident if a part of a file cannot be read without waiting for the disk."""
    if not resident(fd, position, length):
        raise NotResident(fd, position, length)


def _check_beginning(fd: int, position: int, end: int, unread: int) -> None:
    """Raise NotResident if the first read of a search would wait for the disk.

    The exception has the range to load: `unread` bytes, at least LOOKED_AT_BYTES, but not beyond `end`.
    """
    left = max(end - position, 0)
    if not resident(fd, position, min(LOOKED_AT_BYTES, left)):
        raise NotResident(fd, position, min(max(unread, LOOKED_AT_BYTES), left))


def segment_bytes(directory: Path) -> int:
    """Return the size in bytes of all `.log` files of a partition. Raises OSError."""
    total = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            if names.parse_segment(entry.name, names.LOG_SUFFIX) is not None:
                with suppress(FileNotFoundError):
                    total += entry.stat().st_size
    return total


def _timed(segment: _OpenSegment, batch: scan.BatchAt) -> TimedBatch:
    header = os.pread(segment.fd, BATCH_HEADER_BYTES, batch.position)
    piece = Slice(segment.base, batch.position, batch.length, segment.inode, segment.path)
    return TimedBatch(batch.base_offset, batch.last_offset, batch.max_timestamp, header, piece)


def _search_key(batch: TimedBatch, timestamp_ms: int, from_offset: int) -> tuple[bytes, int, int]:
    return batch.header, timestamp_ms, max(from_offset, batch.base_offset)


def offset_of_time(
    reader: Callable[[], PartitionReader], timestamp_ms: int, log_start: int, bound: Bound
) -> Pieces[FoundOffset]:
    """Find the first visible record from `log_start` whose timestamp is at least `timestamp_ms`.

    `reader` is called after each pause, since the reader may have been replaced during the pause. Raises
    CorruptBatch, SegmentGone, OSError.
    """
    while (batch := reader().batch_of_time(timestamp_ms, log_start, bound)) is not None:
        if not reader().begins_at_once(batch, timestamp_ms, log_start):
            yield
            batch = reader().batch_of_time(timestamp_ms, log_start, bound) or batch
        found = yield from reader().search(batch, timestamp_ms, log_start)
        if found is not None and found[0] >= timestamp_ms:
            return FoundOffset(*found) if found[1] < bound.offset else NOTHING_FOUND
        # Its late records lie before the log start, or its header is wrong.
        log_start = batch.last_offset + 1
    return NOTHING_FOUND


def offset_of_largest_time(
    reader: Callable[[], PartitionReader], bound: Bound, log_start: int
) -> Pieces[FoundOffset]:
    """Find the first record with the largest timestamp; see `offset_of_time`."""
    batch = reader().batch_of_largest_time(bound, log_start)
    if batch is not None and not reader().begins_at_once(batch, batch.max_timestamp, log_start):
        yield
        batch = reader().batch_of_largest_time(bound, log_start)
    if batch is None:
        return NOTHING_FOUND
    found = yield from reader().search(batch, batch.max_timestamp, log_start)
    return FoundOffset(*found) if found is not None else NOTHING_FOUND
