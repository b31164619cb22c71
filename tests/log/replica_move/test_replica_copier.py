"""A copy of a partition leaves the disk to others, as long as it can, and is on disk when it says so."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mpbroker.log.io import background_io
from mpbroker.log.io.pace import Pace, PieceSize
from mpbroker.log.replica_move import replica_copier
from mpbroker.log.replica_move.replica_copier import Abandoned, Copy, TargetFailed, Wanted
from mpbroker.log.replica_move.replica_mover import give_way_to_all
from tests.support.compacted_segments import Segments
from tests.support.full_disk import failing_with

DISK_S = 0.25


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept_s: list[float] = []
        self.after_sleep: Callable[[], None] = lambda: None
        # Bytes of each write.
        self.pieces: list[int] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds
        self.after_sleep()


@pytest.fixture(name="clock")
def _clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Have each read of a file and each write keep the disk busy for a quarter of a second."""
    clock = Clock()
    read, write = background_io.read, background_io.write

    def slow_read(fd: int, count: int, position: int, *, leaves_cache: bool = False) -> tuple[bytes, float]:
        return read(fd, count, position, leaves_cache=leaves_cache)[0], DISK_S

    def slow_write(fd: int, piece: memoryview, position: int) -> float:
        write(fd, piece, position)
        clock.pieces.append(len(piece))
        return DISK_S

    monkeypatch.setattr(background_io, "read", slow_read)
    monkeypatch.setattr(background_io, "write", slow_write)
    monkeypatch.setattr(replica_copier, "time", clock)
    monkeypatch.setattr(replica_copier, "READ_BYTES", 1 << 20)
    return clock


class NoLimit(Pace):
    def __init__(self) -> None:
        super().__init__(lambda: 1.0)

    def left_s(self, _mark: float) -> float:
        return 0.0


@pytest.fixture(name="log")
def _log(tmp_path: Path) -> Segments:
    (tmp_path / "source").mkdir()
    log = Segments(tmp_path / "source")
    log.append([(b"a", b"x" * (background_io.PIECE_BYTES * 2))])
    return log


@pytest.fixture(name="copy")
def _copy(tmp_path: Path, log: Segments) -> Copy:
    (tmp_path / "future").mkdir()
    return Copy(log.directory, tmp_path / "future", NoLimit())


def wanted(log: Segments, *, is_last: bool = False) -> Wanted:
    return Wanted([], 0, log.path(0).stat().st_size, 1, is_last=is_last)


def copied(log: Segments, copy: Copy) -> Path:
    return copy.future / log.path(0).name


def test_it_rests_as_long_as_the_disk_was_at_work(clock: Clock, log: Segments, copy: Copy) -> None:
    copy.run(wanted(log))
    assert (copy.future / log.path(0).name).read_bytes() == log.path(0).read_bytes()
    pieces = -(-log.path(0).stat().st_size // background_io.PIECE_BYTES)
    reads = 1 + sum(1 for _ in copy.future.glob("*index"))
    assert sum(clock.slept_s) == pytest.approx((pieces + reads) * DISK_S)
    assert max(clock.slept_s) <= replica_copier.CHECK_EVERY_S


def test_a_disk_that_is_slow_to_begin_is_given_more_at_a_time(
    clock: Clock, log: Segments, copy: Copy
) -> None:
    """Check that pieces grow if the disk takes the same time for any size."""
    for _ in range(16):
        log.append([(b"a", b"x" * (1 << 20))])
    copy.run(Wanted([], 0, log.path(0).stat().st_size, 17))
    assert copied(log, copy).read_bytes() == log.path(0).read_bytes()
    assert clock.pieces[0] == background_io.PIECE_BYTES
    assert max(clock.pieces) >= 8 * background_io.PIECE_BYTES


def test_what_an_earlier_life_has_written_is_compared_at_the_same_pace(
    clock: Clock, log: Segments, copy: Copy, tmp_path: Path
) -> None:
    copy.run(wanted(log))
    written = copy.bytes_written
    again = Copy(log.directory, tmp_path / "future", NoLimit())
    before = len(clock.slept_s)
    again.run(wanted(log))
    assert (written > 0, again.bytes_written) == (True, 0)
    reads = 2 + sum(1 for _ in copy.future.glob("*index"))
    assert sum(clock.slept_s[before:]) == pytest.approx(reads * DISK_S)


def test_the_last_pass_does_not_rest(clock: Clock, log: Segments, copy: Copy) -> None:
    copy.run(wanted(log, is_last=True))
    assert (copy.future / log.path(0).name).read_bytes() == log.path(0).read_bytes()
    assert clock.slept_s == []


def test_one_that_is_late_does_not_rest_and_keeps_to_its_rate(
    clock: Clock, log: Segments, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NoLimit, "left_s", lambda _, _mark: 7.0 - sum(clock.slept_s))
    copy.is_late = True
    copy.run(wanted(log))
    assert copied(log, copy).read_bytes() == log.path(0).read_bytes()
    assert clock.pieces == [log.path(0).stat().st_size], "and takes all at once"
    assert sum(clock.slept_s) == pytest.approx(7.0)


def test_who_rests_can_be_cancelled(clock: Clock, log: Segments, copy: Copy) -> None:
    clock.after_sleep = copy.cancel
    with pytest.raises(Abandoned):
        copy.run(wanted(log))
    assert clock.slept_s == [replica_copier.CHECK_EVERY_S]


@pytest.mark.parametrize(("own", "then"), [(0, 10), (10, 10), (19, 19)])
def test_a_copier_is_never_less_nice_than_its_broker(
    monkeypatch: pytest.MonkeyPatch, own: int, then: int
) -> None:
    """Check the nice value: without root a lower one is refused, and the move would fail."""
    now = [own]

    def setpriority(_which: int, _who: int, niceness: int) -> None:
        if niceness < now[0]:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        now[0] = niceness

    monkeypatch.setattr(os, "getpriority", lambda _which, _who: now[0])
    monkeypatch.setattr(os, "setpriority", setpriority)
    give_way_to_all()
    assert now == [then]


class PageCache:
    """What was written is read from it, also where the disk did not take it. `lost`: from where to where."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.fails_at = ""
        self.lost = (0, 0)
        self._synced = 0
        self._write, self._sync, self._advise = background_io.write, replica_copier._sync, os.posix_fadvise
        patch.setattr(background_io, "write", self.write)
        patch.setattr(replica_copier, "_sync", self.sync)
        patch.setattr(os, "posix_fadvise", self.advise)

    def write(self, fd: int, piece: memoryview, position: int) -> float:
        took_s = self._write(fd, piece, position)
        if position <= self.lost[0]:
            self.lost = min(max(self.lost[0], position + len(piece)), self.lost[1]), self.lost[1]
        if len(piece) < background_io.PIECE_BYTES and self.fails_at == "write-back":
            self._fail(position, position + len(piece))
        return took_s

    def sync(self, fd: int) -> float:
        took_s = self._sync(fd)
        if self.fails_at == "sync":
            self._fail(self._synced, os.fstat(fd).st_size)
        if self.fails_at == "second sync":
            self.fails_at, self._synced = "sync", os.fstat(fd).st_size
        return took_s

    @property
    def has_all(self) -> bool:
        """Whatever is in the page cache."""
        return self.lost[0] == self.lost[1]

    def _fail(self, *lost: int) -> None:
        self.fails_at, self.lost = "", (lost[0], lost[1])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def advise(self, fd: int, position: int, count: int, advice: int) -> None:
        """Dropped, what is not on disk is not there."""
        self._advise(fd, position, count, advice)
        if advice == os.POSIX_FADV_DONTNEED and count == 0:
            os.pwrite(fd, bytes(self.lost[1] - self.lost[0]), self.lost[0])


@pytest.fixture(name="cache")
def _cache(monkeypatch: pytest.MonkeyPatch) -> PageCache:
    return PageCache(monkeypatch)


@pytest.mark.parametrize("fails_at", ["write-back", "sync"])
def test_what_a_full_disk_did_not_take_is_written_again(
    log: Segments, copy: Copy, cache: PageCache, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    """Check it, since neither the page cache nor the next sync says that the bytes are missing."""
    monkeypatch.setattr(replica_copier.time, "sleep", lambda _: None)
    cache.fails_at = fails_at
    with pytest.raises(TargetFailed, match="No space left"):
        copy.run(wanted(log))
    assert not cache.has_all
    copy.run(wanted(log))
    assert cache.has_all
    assert copied(log, copy).read_bytes() == log.path(0).read_bytes()


def test_it_is_synced_bit_by_bit(
    log: Segments, copy: Copy, cache: PageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the copy is synced piece by piece.

    An overlay does not pass write-back on, and what was synced counts when the disk is full later.
    """
    monkeypatch.setattr(replica_copier, "SYNC_EVERY_BYTES", 100_000)
    monkeypatch.setattr(copy, "_reads", PieceSize(1000, 1000))
    monkeypatch.setattr(replica_copier.time, "sleep", lambda _: None)
    first = log.path(0).stat().st_size
    log.append([(b"a", b"y" * 50_000)])
    cache.fails_at = "second sync"
    with pytest.raises(TargetFailed, match="No space left"):
        copy.run(wanted(log))
    assert copied(log, copy).stat().st_size == first
    before = copy.bytes_written
    copy.run(wanted(log))
    assert copy.bytes_written - before == log.path(0).stat().st_size - first
    assert copied(log, copy).read_bytes() == log.path(0).read_bytes()


def test_what_an_earlier_life_has_written_needs_no_room(
    log: Segments, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = log.path(0).stat().st_size
    copied(log, copy).write_bytes(log.path(0).read_bytes()[:-1000])
    monkeypatch.setattr(replica_copier, "SPARE_BYTES", 0)
    statvfs, free = os.statvfs, 999

    def nearly_full(path: Path) -> os.statvfs_result:
        found = list(statvfs(path))
        found[1:5] = 1, size * 100, free, free
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", nearly_full)
    with pytest.raises(TargetFailed, match="No space left"):
        copy.run(wanted(log))
    free = 1000
    copy.run(wanted(log))
    assert copied(log, copy).read_bytes() == log.path(0).read_bytes()


def test_what_cannot_be_taken_back_is_final(
    log: Segments, copy: Copy, cache: PageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.fails_at = "write-back"
    monkeypatch.setattr(os, "ftruncate", failing_with(errno.ENOSPC))
    with pytest.raises(TargetFailed) as failed:
        copy.run(wanted(log))
    assert failed.value.error.errno == errno.EIO


def test_what_an_earlier_life_has_written_counts_as_the_device_has_it(
    log: Segments, copy: Copy, cache: PageCache
) -> None:
    """Check it after a kill, or a failed log directory, when the disk had not taken all bytes."""
    copy.run(wanted(log))
    cache.lost = 100, log.path(0).stat().st_size
    again = Copy(log.directory, copy.future, NoLimit())
    again.run(wanted(log))
    assert again.bytes_written > 0
    assert cache.has_all
    assert copied(log, copy).read_bytes() == log.path(0).read_bytes()
