"""Copying a partition's files into its future replica, in a thread, while the log worker appends to them.

(Kafka: ReplicaAlterLogDirsThread, which fetches and appends records; here files are copied as bytes.) A pass
copies what the log worker says is there: bytes below the end that it names are final. Every batch is checked
on its way, since a copy of damage would pass for sound. What is copied is on disk when a pass ends.

A copy that an earlier life of the process has begun goes on: what is there and the same is not written again.
Whatever is read or written here leaves the page cache as it was, as far as that can be said.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mpbroker.log.checkpoints import fsync_directory, write_epochs, write_whole
from mpbroker.log.disk_errors import NO_ROOM
from mpbroker.log.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    MOVED,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_name,
)
from mpbroker.log.pace import Pace
from mpbroker.log.partition_log import SEGMENT_FILES, offsets_of, segments_of
from mpbroker.log.walk import Walk

PIECE_BYTES = 1 << 20
# So that a large file's sync at the end of a pass has little to do.
SYNC_EVERY_BYTES = 64 << 20
# A segment is not begun if it would leave less than this on the disk: others append there. Of a small disk
# its twentieth is enough.
SPARE_BYTES, SPARE_PART = 64 << 20, 20
# While it waits for its rate a thread looks so often whether it is wanted any more.
LOOK_EVERY_S = 0.1
NICENESS = 10
INDEXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
_log = logging.getLogger("mpbroker")


class Abandoned(Exception):
    """The copy is not wanted any more."""


class SourceChanged(Exception):
    """A segment went while it was copied: the next pass knows better."""


class SourceDamaged(Exception):
    """What is there cannot be copied; the text says what and what to do."""


class TargetFailed(Exception):
    """Writing failed; `error` says how."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True)
class Wanted:
    """What the future replica is to have. `size`: of the active segment, as far as it counts. Nothing is
    written to the current one during the last pass, which makes the other the same in every file.
    """

    sealed: list[int]
    active: int
    size: int
    end: int
    epochs: list[tuple[int, int]] = field(default_factory=list)
    is_last: bool = False


@dataclass
class _Segment:
    """How far a segment is copied; `is_whole`: sealed, and with its indexes."""

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
    """One partition's. `run` is called by one thread at a time; everybody may read `end`, `cancel` it."""

    def __init__(self, source: Path, future: Path, pace: Pace) -> None:
        self.source = source
        self.future = future
        # The offset up to which the future replica has everything; -1: none yet.
        self.end = -1
        self.bytes_written = 0
        self._pace = pace
        self._segments: dict[int, _Segment] = {}
        self._is_cancelled = False
        self._is_begun = False
        self._is_hurried = False
        self._epochs: list[tuple[int, int]] = []

    def cancel(self) -> None:
        self._is_cancelled = True

    def run(self, wanted: Wanted) -> None:
        """One pass. Raises Abandoned, SourceChanged, SourceDamaged, TargetFailed, OSError of the source."""
        if not self._is_begun:
            self._begin()
        # Producers wait for the last pass.
        self._is_hurried = wanted.is_last
        bases = [*wanted.sealed, wanted.active]
        with _writing():
            self._drop_others(bases)
        for base in bases:
            self._follow(base, wanted)
        self._copy_snapshots(wanted)
        with _writing():
            if wanted.epochs != self._epochs:
                write_epochs(self.future, wanted.epochs)
                self._epochs = wanted.epochs
            fsync_directory(self.future)
        self.end = wanted.end

    def _begin(self) -> None:
        """Of what an earlier life has left only segments are compared; the rest may be anything."""
        with _writing():
            for suffix in (*INDEXES, SNAPSHOT_SUFFIX):
                for offset in offsets_of(self.future, suffix):
                    (self.future / segment_name(offset, suffix)).unlink()
            # It means something only when the directory has lost its suffix.
            write_whole(self.future / MOVED, os.fsencode(self.source) + b"\n")
        self._is_begun = True

    def _drop_others(self, bases: list[int]) -> None:
        """Of segments that the current replica has no more."""
        wanted = set(bases)
        for base in segments_of(self.future):
            if base not in wanted:
                for suffix in SEGMENT_FILES:
                    (self.future / segment_name(base, suffix)).unlink(missing_ok=True)
                self._segments.pop(base, None)

    # ---- segments ----

    def _follow(self, base: int, wanted: Wanted) -> None:
        segment = self._segments.setdefault(base, _Segment(next_offset=base))
        if segment.is_whole:
            return
        is_sealed = base != wanted.active
        source = self._open_source(base, LOG_SUFFIX)
        try:
            size = os.fstat(source).st_size if is_sealed else wanted.size
            self._check_room(size - segment.position)
            self._copy_log(source, base, size, segment)
        finally:
            os.close(source)
        for suffix in INDEXES:
            self._copy_index(base, suffix, segment)
        segment.is_whole = is_sealed

    def _open_source(self, base: int, suffix: str) -> int:
        try:
            return os.open(self.source / segment_name(base, suffix), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise SourceChanged(str(error)) from error

    def _check_room(self, count: int) -> None:
        with _writing():
            system = os.statvfs(self.future)
            spare = min(SPARE_BYTES, system.f_blocks * system.f_frsize // SPARE_PART)
            if count > 0 and system.f_bavail * system.f_frsize < count + spare:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.future))

    def _copy_log(self, source: int, base: int, size: int, segment: _Segment) -> None:
        with _writing():
            target = self._open_target(base, LOG_SUFFIX)
            there = os.fstat(target).st_size
        try:
            walk, unsynced, begun_at = Walk(base, segment.position, segment.next_offset), 0, segment.position
            data, read_to = b"", segment.position
            while walk.position < size:
                count = min(max(PIECE_BYTES, walk.need), size - read_to)
                self._give_way(count)
                more = _read(source, read_to, count)
                data, read_to = data + more, read_to + len(more)
                before = walk.position
                reason = walk.feed(data, size)
                if reason:
                    raise SourceDamaged(self._damaged(base, walk, reason))
                whole, data = data[: walk.position - before], data[walk.position - before :]
                with _writing():
                    unsynced += self._put(target, before, whole, there)
                    if unsynced >= SYNC_EVERY_BYTES:
                        _sync(target)
                        unsynced = 0
                segment.position, segment.next_offset = walk.position, walk.next_offset
                self.end = max(self.end, walk.next_offset)
            with _writing():
                if os.fstat(target).st_size > size:
                    os.ftruncate(target, size)
                if segment.position > begun_at or size == 0:
                    _sync(target)
                if not self._is_hurried:
                    # What is about to be read by those at the end of the log stays.
                    os.posix_fadvise(target, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(target)

    def _damaged(self, base: int, walk: Walk, reason: str) -> str:
        path = self.source / segment_name(base)
        return (
            f"{path} is damaged at byte {walk.position} (offset {walk.next_offset}): {reason}. Restore the "
            f"file, or stop the broker and keep what is whole with mpbroker log repair {self.source}"
        )

    def _put(self, target: int, position: int, data: bytes, there: int) -> int:
        """-> how much of it was written: what an earlier life has written already is not."""
        if position + len(data) <= there and os.pread(target, len(data), position) == data:
            return 0
        _write(target, data, position)
        self.bytes_written += len(data)
        return len(data)

    def _copy_index(self, base: int, suffix: str, segment: _Segment) -> None:
        """It only ever grows."""
        try:
            source = os.open(self.source / segment_name(base, suffix), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            position, size = segment.indexes.get(suffix, 0), os.fstat(source).st_size
            if size == position and suffix in segment.indexes:
                return
            self._give_way(size - position)
            data = _read(source, position, size - position)
        finally:
            os.close(source)
        with _writing():
            target = self._open_target(base, suffix)
            try:
                _write(target, data, position)
                _sync(target)
            finally:
                os.close(target)
        segment.indexes[suffix] = size

    def _open_target(self, base: int, suffix: str) -> int:
        return os.open(self.future / segment_name(base, suffix), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    # ---- snapshots ----

    def _copy_snapshots(self, wanted: Wanted) -> None:
        """Before the last pass those of sealed segments: a newer one may just be written."""
        found = offsets_of(self.source, SNAPSHOT_SUFFIX)
        there = offsets_of(self.future, SNAPSHOT_SUFFIX)
        for offset in found:
            if offset not in there and (wanted.is_last or offset < wanted.active):
                name = segment_name(offset, SNAPSHOT_SUFFIX)
                try:
                    data = (self.source / name).read_bytes()
                except FileNotFoundError:
                    continue
                with _writing():
                    write_whole(self.future / name, data)
        if wanted.is_last:
            with _writing():
                for offset in set(there) - set(found):
                    (self.future / segment_name(offset, SNAPSHOT_SUFFIX)).unlink()

    # ---- its pace ----

    def _give_way(self, count: int) -> None:
        """Waits until so many bytes may be copied. Raises Abandoned."""
        mark = 0.0 if self._is_hurried else self._pace.take(count)
        while True:
            if self._is_cancelled:
                raise Abandoned
            left_s = self._pace.left_s(mark) if mark else 0.0
            if left_s <= 0:
                return
            time.sleep(min(left_s, LOOK_EVERY_S))


def _read(fd: int, position: int, count: int) -> bytes:
    """Without bringing more into the page cache than was there. Raises SourceChanged, OSError."""
    data = bytearray(count)
    view, at = memoryview(data), 0
    cold_from = -1
    while at < count:
        try:
            got = os.preadv(fd, [view[at:]], position + at, os.RWF_NOWAIT if cold_from < 0 else 0)
        except OSError as error:
            if cold_from >= 0 or error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP):
                raise
            cold_from = at
            continue
        if got == 0:
            raise SourceChanged("a file has become shorter")
        at += got
    if cold_from >= 0:
        os.posix_fadvise(fd, position + cold_from, count - cold_from, os.POSIX_FADV_DONTNEED)
    return bytes(data)


def _write(fd: int, data: bytes, position: int) -> None:
    at = 0
    while at < len(data):
        at += os.pwrite(fd, data[at:], position + at)


def _sync(fd: int) -> None:
    """A failed one is final, unless the disk is full: the next would say that all is well."""
    try:
        os.fdatasync(fd)
    except OSError as error:
        code = error.errno if error.errno in NO_ROOM else errno.EIO
        raise OSError(code, f"a sync failed: {error.strerror}") from error
