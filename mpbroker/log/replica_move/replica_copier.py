"""Copy a partition's files into its future replica, in a thread, while the log worker appends to them.

(Kafka: ReplicaAlterLogDirsThread, which fetches and appends records; here files are copied as bytes.) A pass
copies up to the end that the log worker names: bytes below it are final. Every batch is checked, so that
damage is not copied. When a pass ends, its bytes are on disk.

A pass continues a copy that an earlier process began: equal bytes are not written again. For the comparison
the copy is read from the disk, because after a failed write the page cache still has bytes that it
lacks. Reads and writes leave the page cache unchanged, as far as possible.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mpbroker.log.io import background_io
from mpbroker.log.io.background_io import PIECE_BYTES, SYNC_EVERY_BYTES
from mpbroker.log.io.pace import Pace, PieceSize
from mpbroker.log.partition.batch_walker import Walk
from mpbroker.log.partition.durable_reads import reread
from mpbroker.log.partition.partition_log import SEGMENT_FILES
from mpbroker.storage import names
from mpbroker.storage.checkpoints import fsync_directory, write_epochs, write_whole
from mpbroker.storage.disk_errors import NO_ROOM
from mpbroker.storage.segments import offsets_of, segments_of

# The first read's size; later sizes adapt to the disk.
READ_BYTES = 128 << 10
# The piece size of a copy that does not rest for others.
HURRIED_BYTES = 1 << 20
# A segment is not begun if it would leave less room than this: others append there. On a small disk a
# twentieth of its size is enough.
SPARE_BYTES, SPARE_PART = 64 << 20, 20
# A thread that waits for its rate checks this often whether the copy was cancelled.
CHECK_EVERY_S = 0.1
NICENESS = 10
_log = logging.getLogger("mpbroker.log.replica_move")


class Abandoned(Exception):
    """Raised when the copy was cancelled."""


class SourceChanged(Exception):
    """Raised when a segment was deleted or replaced during its copy. The next pass gets the new segments."""


class SourceDamaged(Exception):
    """Raised when the source is damaged. The text names the place and gives advice."""


class TargetFailed(Exception):
    """Raised when a write to the target failed with `error`."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True)
class Wanted:
    """The content of the future replica after a pass.

    `size`: the bytes to copy of the active segment. `is_last`: nothing is written to the current replica
    during this pass, so that both replicas become equal in every file.
    """

    sealed: list[int]
    active: int
    size: int
    end: int
    epochs: list[tuple[int, int]] = field(default_factory=list)
    is_last: bool = False


@dataclass
class _Segment:
    """The part of a segment whose copy is on disk. `is_whole`: sealed, and copied with its indexes."""

    position: int = 0
    next_offset: int = 0
    is_whole: bool = False
    indexes: dict[str, int] = field(default_factory=dict)


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TargetFailed(error) from error


class Copy:
    """The copy of one partition.

    One thread at a time calls `run`. Any thread may read `end` and `bytes_written`, set `is_late`, and call
    `cancel`.
    """

    def __init__(self, source: Path, future: Path, pace: Pace) -> None:
        self.source = source
        self.future = future
        # The offset up to which the future replica has everything; -1: none yet.
        self.end = -1
        self.bytes_written = 0
        self._pace = pace
        self._reads = PieceSize(READ_BYTES, HURRIED_BYTES)
        self._writes = PieceSize(PIECE_BYTES, HURRIED_BYTES)
        self._segments: dict[int, _Segment] = {}
        self._is_cancelled = False
        self._is_begun = False
        self._is_last = False
        # Set when the log grows about as fast as a copy that leaves the disk to others.
        self.is_late = False
        self._epochs: list[tuple[int, int]] = []

    def cancel(self) -> None:
        self._is_cancelled = True

    def run(self, wanted: Wanted) -> None:
        """Do one pass. Raises Abandoned, SourceChanged, SourceDamaged, TargetFailed, OSError (of reads)."""
        if not self._is_begun:
            self._begin()
        # The last pass does not wait for its rate or rest: producers wait for it.
        self._is_last = wanted.is_last
        bases = [*wanted.sealed, wanted.active]
        with _writing():
            self._drop_others(bases)
        for base in bases:
            self._follow(base, wanted)
        self._copy_snapshots(wanted)
        if wanted.is_last:
            self._copy_remote()
        with _writing():
            if wanted.epochs != self._epochs:
                write_epochs(self.future, wanted.epochs)
                self._epochs = wanted.epochs
            fsync_directory(self.future)
        self.end = wanted.end

    def _begin(self) -> None:
        """Prepare the future replica. Keep segments of an earlier copy, to compare; remove other files."""
        with _writing():
            for suffix in (*names.INDEX_SUFFIXES, names.SNAPSHOT_SUFFIX):
                for offset in offsets_of(self.future, suffix):
                    (self.future / names.segment_name(offset, suffix)).unlink()
            # The mark counts only once the directory has lost its suffix.
            write_whole(self.future / names.MOVED, os.fsencode(self.source) + b"\n")
        self._is_begun = True

    def _drop_others(self, bases: list[int]) -> None:
        """Remove the files of segments that the current replica no longer has."""
        wanted = set(bases)
        for base in segments_of(self.future):
            if base not in wanted:
                for suffix in SEGMENT_FILES:
                    (self.future / names.segment_name(base, suffix)).unlink(missing_ok=True)
                self._segments.pop(base, None)

    # ---- segments ----

    def _follow(self, base: int, wanted: Wanted) -> None:
        segment = self._segments.setdefault(base, _Segment(next_offset=base))
        if segment.is_whole:
            return
        is_sealed = base != wanted.active
        source = self._open_source(base, names.LOG_SUFFIX)
        try:
            size = os.fstat(source).st_size if is_sealed else wanted.size
            self._check_room(size - max(segment.position, self._bytes_there(base)))
            self._copy_log(source, base, size, segment)
        finally:
            os.close(source)
        for suffix in names.INDEX_SUFFIXES:
            self._copy_index(base, suffix, segment)
        segment.is_whole = is_sealed

    def _open_source(self, base: int, suffix: str) -> int:
        try:
            return os.open(self.source / names.segment_name(base, suffix), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise SourceChanged(str(error)) from error

    def _bytes_there(self, base: int) -> int:
        """Return the size of the segment in the future replica, whatever its content; 0 if it is missing."""
        with _writing():
            try:
                return (self.future / names.segment_name(base)).stat().st_size
            except FileNotFoundError:
                return 0

    def _check_room(self, count: int) -> None:
        with _writing():
            system = os.statvfs(self.future)
            spare = min(SPARE_BYTES, system.f_blocks * system.f_frsize // SPARE_PART)
            if count > 0 and system.f_bavail * system.f_frsize < count + spare:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.future))

    def _copy_log(self, source: int, base: int, size: int, segment: _Segment) -> None:
        with _writing():
            target = self._open_target(base, names.LOG_SUFFIX)
            there = os.fstat(target).st_size
        try:
            for fd in source, target:
                background_io.no_read_ahead(fd)
            if there > segment.position:
                reread(target, segment.position)
            walk = Walk(base, segment.position, segment.next_offset)
            data, read_to = b"", segment.position
            while walk.position < size:
                count = max(self._at_a_time(self._reads), walk.need)
                more = self._read(source, min(count, size - read_to), read_to)
                data, read_to = data + more, read_to + len(more)
                before = walk.position
                reason = walk.feed(data, size)
                if reason:
                    raise SourceDamaged(self._damaged(base, walk, reason))
                whole, data = data[: walk.position - before], data[walk.position - before :]
                self._put(target, before, whole, there)
                if walk.position - segment.position >= SYNC_EVERY_BYTES:
                    self._rest(_settle(target, walk, segment))
                self.end = max(self.end, walk.next_offset)
            with _writing():
                if os.fstat(target).st_size > size:
                    os.ftruncate(target, size)
            if walk.position > segment.position or size == 0:
                _settle(target, walk, segment)
            with _writing():
                if not self._is_last:
                    # After the last pass the bytes stay cached: consumers at the log end read them next.
                    background_io.leave_cache(target)
        except TargetFailed:
            _take_back(target, segment.position)
            raise
        finally:
            os.close(target)

    def _damaged(self, base: int, walk: Walk, reason: str) -> str:
        path = self.source / names.segment_name(base)
        return (
            f"{path} is damaged at byte {walk.position} (offset {walk.next_offset}): {reason}. Restore the "
            f"file, or stop the broker and keep what is whole with mpbroker log repair {self.source}"
        )

    def _put(self, target: int, position: int, data: bytes, there: int) -> None:
        """Write `data`, unless the file already has these bytes. `there`: the file's size before the pass."""
        if position + len(data) <= there:
            with _writing():
                found, disk_s = background_io.read(target, len(data), position, leaves_cache=True)
            self._rest(disk_s)
            if found == data:
                return
        self._write(target, data, position)

    def _write(self, target: int, data: bytes, position: int) -> None:
        start = 0
        while start < len(data):
            piece = memoryview(data)[start : start + self._at_a_time(self._writes)]
            with _writing():
                disk_s = background_io.write(target, piece, position + start)
            start += len(piece)
            self._writes.took(len(piece), disk_s)
            self.bytes_written += len(piece)
            self._rest(disk_s)

    def _copy_index(self, base: int, suffix: str, segment: _Segment) -> None:
        """Copy the entries appended to an index since the last pass."""
        try:
            source = os.open(self.source / names.segment_name(base, suffix), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            position, size = segment.indexes.get(suffix, 0), os.fstat(source).st_size
            if size == position and suffix in segment.indexes:
                return
            data = self._read(source, size - position, position)
        finally:
            os.close(source)
        with _writing():
            target = self._open_target(base, suffix)
        try:
            self._write(target, data, position)
            with _writing():
                _sync(target)
        finally:
            os.close(target)
        segment.indexes[suffix] = size

    def _open_target(self, base: int, suffix: str) -> int:
        return os.open(
            self.future / names.segment_name(base, suffix), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
        )

    # ---- snapshots ----

    def _copy_snapshots(self, wanted: Wanted) -> None:
        """Copy producer snapshots. Leave recent snapshots, which may be half written, to the last pass."""
        found = offsets_of(self.source, names.SNAPSHOT_SUFFIX)
        there = offsets_of(self.future, names.SNAPSHOT_SUFFIX)
        for offset in found:
            if offset not in there and (wanted.is_last or offset < wanted.active):
                name = names.segment_name(offset, names.SNAPSHOT_SUFFIX)
                try:
                    data = (self.source / name).read_bytes()
                except FileNotFoundError:
                    continue
                with _writing():
                    write_whole(self.future / name, data)
        if wanted.is_last:
            with _writing():
                for offset in set(there) - set(found):
                    (self.future / names.segment_name(offset, names.SNAPSHOT_SUFFIX)).unlink()

    def _copy_remote(self) -> None:
        """Copy the file of remote segments. If the tier replaces it just then, it writes the new one, too."""
        try:
            data = (self.source / names.REMOTE_SEGMENTS).read_bytes()
        except FileNotFoundError:
            with _writing():
                (self.future / names.REMOTE_SEGMENTS).unlink(missing_ok=True)
            return
        with _writing():
            write_whole(self.future / names.REMOTE_SEGMENTS, data)

    # ---- its pace ----

    @property
    def _is_hurried(self) -> bool:
        return self._is_last or self.is_late

    def _at_a_time(self, size: PieceSize) -> int:
        return HURRIED_BYTES if self._is_hurried else size.bytes

    def _read(self, source: int, count: int, position: int) -> bytes:
        """Read bytes at the copy's rate. Raises Abandoned, OSError, or SourceChanged at the file's end."""
        if not self._is_last:
            mark = self._pace.take(count)
            self._wait(lambda: self._pace.left_s(mark))
        data, disk_s = background_io.read(source, count, position, leaves_cache=True)
        if len(data) < count:
            raise SourceChanged("a file has become shorter")
        self._reads.took(count, disk_s)
        self._rest(disk_s)
        return data

    def _rest(self, disk_s: float) -> None:
        """Leave the disk idle for as long as it was busy. Raises Abandoned if cancelled."""
        until = time.monotonic() + (0 if self._is_hurried else disk_s)
        self._wait(lambda: until - time.monotonic())

    def _wait(self, left_s: Callable[[], float]) -> None:
        while True:
            if self._is_cancelled:
                raise Abandoned
            if (left := left_s()) <= 0:
                return
            time.sleep(min(left, CHECK_EVERY_S))


def _settle(target: int, walk: Walk, segment: _Segment) -> float:
    """Sync the target, then advance `segment` to `walk`. Return the sync's seconds. Raises TargetFailed."""
    with _writing():
        took_s = _sync(target)
    segment.position, segment.next_offset = walk.position, walk.next_offset
    return took_s


def _sync(fd: int) -> float:
    """Sync the file; return the sync's seconds. Raises OSError: EIO for all errors but a full disk."""
    try:
        return background_io.sync(fd)
    except OSError as error:
        code = error.errno if error.errno in NO_ROOM else errno.EIO
        raise OSError(code, f"a sync failed: {error.strerror}") from error


def _take_back(fd: int, position: int) -> None:
    """Truncate the file to `position`: later bytes may be in the page cache alone. Raises TargetFailed."""
    try:
        os.ftruncate(fd, position)
    except OSError as error:
        text = f"records that may not be on disk cannot be rolled back: {error.strerror}"
        raise TargetFailed(OSError(errno.EIO, text)) from error
