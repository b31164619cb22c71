"""The journal past the page cache: readers see what rounds wrote; where it is refused, the cache serves."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from mpbroker.storage import journal
from mpbroker.storage.journal import JournalFile
from tests.log.append.test_journal_ring import SMALL
from tests.support.full_disk import failing_with
from tests.support.log_node import STORAGE_ERROR, Journaled, MakeJournaled, extents, fill
from tests.support.log_rig import ensure
from tests.support.log_writer import make_batch

SAID = "is written by way of the page cache"
# Takes any write for a number, and 512 bytes of a head are none: EINVAL, as of a disk with larger sectors.
REFUSES_WRITES = "/proc/self/oom_score_adj"
FULL = "/dev/full"


@pytest.fixture
def opened_directly(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], int]], None]:
    """Have every open with O_DIRECT return another file, or raise an error."""
    really = os.open

    def instead(other: Callable[[], int]) -> None:
        def opened(path: str | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            return other() if flags & os.O_DIRECT else really(path, flags, mode, dir_fd=dir_fd)

        monkeypatch.setattr(os, "open", opened)

    return instead


def refused() -> int:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def in_use(n: Journaled, number: int = 0) -> JournalFile:
    used = n.process.manager.dirs[number].journal.file
    assert used is not None
    return used


def is_direct(used: JournalFile) -> bool:
    return bool(fcntl.fcntl(used.write_fd, fcntl.F_GETFL) & os.O_DIRECT)


def takes_direct_writes(directory: Path) -> bool:
    path = directory / "probe"
    path.touch()
    try:
        os.close(os.open(path, os.O_RDWR | os.O_DIRECT))
    except OSError:
        return False
    finally:
        path.unlink()
    return True


def test_rounds_write_past_the_page_cache(
    journaled: MakeJournaled, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if not takes_direct_writes(tmp_path):
        pytest.skip("the file system of the temporary directory has no direct writes")
    n = journaled()
    for _ in range(2):
        n.boot()
        assert is_direct(in_use(n))
        fill(n)
    assert n.ends()[1] > 0
    assert SAID not in caplog.text


def test_who_reads_by_the_page_cache_sees_each_round(journaled: MakeJournaled) -> None:
    """Check it around the ring, so that old contents of the blocks would be noticed."""
    n = journaled()
    n.boot(log_journal_bytes=SMALL)
    target = n.open(ensure(1))[0]
    with closing(JournalFile(n.path)) as beside:
        for end in range(1, 400):
            assert n.produce(target, make_batch(1, size=900)) == [0]
            os.pread(beside.fd, SMALL, 0)
            assert extents(n.path)[-1][-1].end_offset == end
    assert n.ends()[1] > 2 * SMALL


def test_what_came_past_the_page_cache_comes_back(journaled: MakeJournaled) -> None:
    """Check it with records of all sizes, around the ring, and with heads between them."""
    n = journaled()
    n.boot(log_journal_bytes=SMALL)
    targets = n.open(ensure(3))
    for i in range(120):
        for target in targets:
            assert n.produce(target, make_batch(1, size=100 + 137 * i % 5000)) == [0]
    start, head = n.ends()
    assert start > 0
    assert head > 2 * SMALL
    n.crash()
    had = [n.segment(number).read_bytes() for number in range(3)]
    for extent in extents(n.path)[-1]:
        os.truncate(n.segment(extent.partition), extent.position)
    n.boot()
    assert [n.end_of(t) for t in n.open(ensure(3))] == [120, 120, 120]
    assert [n.segment(number).read_bytes() for number in range(3)] == had


@pytest.mark.parametrize("where", ["open", "write"])
def test_a_file_system_without_direct_writes_gets_others(
    journaled: MakeJournaled,
    opened_directly: Callable[[Callable[[], int]], None],
    caplog: pytest.LogCaptureFixture,
    where: str,
) -> None:
    caplog.set_level("INFO", "mpbroker")
    opened_directly(refused if where == "open" else lambda: os.open(REFUSES_WRITES, os.O_WRONLY))
    n = journaled()
    n.boot()
    assert not is_direct(in_use(n))
    assert caplog.text.count(SAID) == 1
    fill(n)
    assert n.ends()[1] > 0
    had = n.power_cut(3)
    n.boot()
    assert [n.end_of(t) for t in n.open(ensure(3))] == [10, 10, 10]
    assert [n.segment(number).read_bytes() for number in range(3)] == had


def test_a_journal_that_fails_at_the_first_write_takes_the_directory_offline(
    journaled: MakeJournaled, opened_directly: Callable[[Callable[[], int]], None]
) -> None:
    given: list[int] = []

    def second_cannot() -> int:
        given.append(1)
        if len(given) == 1:
            refused()
        return os.open(os.devnull, os.O_RDONLY)

    n = journaled(2)
    n.boot()
    before = [n.rig.partition(t.slot).log_dir for t in n.open(ensure(4))]
    assert set(before) == {0, 1}
    n.crash()
    opened_directly(second_cannot)
    n.boot()
    assert [log_dir.failed for log_dir in n.process.manager.dirs] == [False, True]
    for target, log_dir in zip(n.open(ensure(4)), before, strict=True):
        assert target.error == (STORAGE_ERROR if log_dir else 0)
        assert log_dir or n.produce(target, make_batch()) == [0]


def test_a_full_disk_at_the_first_write_is_no_failure(
    journaled: MakeJournaled, opened_directly: Callable[[Callable[[], int]], None]
) -> None:
    n = journaled()
    n.boot()
    n.crash()
    opened_directly(lambda: os.open(FULL, os.O_RDWR))
    with closing(JournalFile(n.path)) as found:
        version = found.version
        assert found.write_directly()
        assert found.version == version
    with closing(JournalFile(n.path)) as found:
        assert found.version == version


def test_the_head_that_tries_says_the_same(filled: MakeJournaled) -> None:
    """Check that a start finds the same state in either of the two heads."""
    n = filled()
    n.crash()
    with closing(JournalFile(n.path)) as found:
        before = (found.version, found.nonce, found.start)
        found.write_directly()
        assert found.version == before[0] + 1
    for version in (before[0] + 1, before[0]):
        with closing(JournalFile(n.path)) as found:
            assert (found.version, found.nonce, found.start) == (version, *before[1:])
            assert len(list(found.records())) == 12
        with n.path.open("r+b") as file:
            file.seek((version & 1) * 4096)
            file.write(bytes(journal.BLOCK_BYTES))


def test_the_head_that_tries_is_synced_before_the_other_is_written_over(
    journaled: MakeJournaled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the order: a power cut could otherwise destroy both heads."""

    n = journaled()
    n.boot()
    n.crash()
    with closing(JournalFile(n.path)) as found, monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing_with(errno.EIO))
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            found.write_directly()
