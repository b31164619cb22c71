"""Pages that the kernel takes for written although the device lacks them, as after a sync that failed."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import pytest

from mpbroker.log.partition import durable_reads
from mpbroker.log.partition.durable_reads import EACH_FILE, FEW, FileSystemSync, reread
from mpbroker.log.partition.partition_log import PartitionLog, SyncFailed
from mpbroker.log.recovery.log_loader import LITTLE_BYTES, Known, load
from mpbroker.log.recovery.workers import OpenJob
from mpbroker.storage import names
from mpbroker.storage.segments import segments_of
from shm.word import Words
from tests.support.log_writer import MakeWriter, Syncs, topic_config
from tests.support.opened_logs import offsets_in

LARGE = 3 * mmap.PAGESIZE


class Device:
    """What it has of some files is less than what is read from memory, until pages of them are dropped."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.synced: list[int] = []
        self.dropped: list[int] = []
        # All files there are.
        self.is_synced = False
        self._ends: dict[int, int] = {}
        self._fsync, self._advise = os.fsync, os.posix_fadvise
        patch.setattr(os, "fsync", self.fsync)
        patch.setattr(os, "posix_fadvise", self.advise)

    def lacks(self, path: Path, end: int) -> None:
        """Let the device lack what is behind `end` of the file."""
        self._ends[path.stat().st_ino] = end

    def fsync(self, fd: int) -> None:
        self.synced.append(os.fstat(fd).st_ino)
        self._fsync(fd)

    def advise(self, fd: int, position: int, count: int, advice: int) -> None:
        assert (count, advice) == (0, os.POSIX_FADV_DONTNEED)
        inode = os.fstat(fd).st_ino
        self.dropped.append(inode)
        if inode not in self._ends:
            return
        assert self.is_synced or inode in self.synced, "pages that are not written yet are not dropped"
        # A page of which only a part is named stays.
        first_page = -(-position // mmap.PAGESIZE) * mmap.PAGESIZE
        at = max(first_page, self._ends[inode])
        os.pwrite(fd, b"\xff" * (os.fstat(fd).st_size - at), at)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


def reopen(directory: Path, known: Known, syncs: durable_reads.Syncs = EACH_FILE) -> PartitionLog:
    config = topic_config(index_interval_bytes="200")
    return load(directory, "t", 0, bytes(range(16)), config, known, str, syncs=syncs)


def fill(writer: MakeWriter, sizes: list[int]) -> tuple[Path, list[int]]:
    """A batch of each size; returns also where they end."""
    w = writer(index_interval_bytes="200")
    ends = [0]
    for size in sizes:
        w.append(size=size)
        ends.append(w.log.state.size)
    w.log.close_files()
    return w.log.directory, ends


@pytest.mark.parametrize("is_half_there", [False, True])
@pytest.mark.parametrize("sizes", [[20] * 6, [LARGE] * 6, [20, LARGE] * 3])
@pytest.mark.parametrize("durable", [0, 1, 4, 5])
def test_what_was_not_durable_is_found_on_the_device_or_not_at_all(
    writer: MakeWriter, device: Device, durable: int, sizes: list[int], is_half_there: bool
) -> None:
    """Check it: otherwise readers would be shown what the next power cut takes back."""
    directory, ends = fill(writer, sizes)
    path = directory / names.segment_name(0)
    device.lacks(path, (ends[durable] + ends[durable + 1]) // 2 if is_half_there else ends[durable])
    again = reopen(directory, Known(clean=False, durable=durable))
    assert again.state.log_end == durable
    assert offsets_in(again) == list(range(durable))
    assert path.stat().st_size == ends[durable]
    again.close_files()


def test_what_the_device_has_stays(writer: MakeWriter, device: Device) -> None:
    directory, ends = fill(writer, [LARGE] * 6)
    device.lacks(directory / names.segment_name(0), ends[5])
    again = reopen(directory, Known(clean=False, recovery_point=1, durable=2))
    assert offsets_in(again) == list(range(5))
    again.close_files()


def test_a_segment_that_the_device_lacks_takes_those_behind_it_along(
    writer: MakeWriter, device: Device
) -> None:
    w = writer(segment_bytes="1048576")
    for _ in range(30):
        w.append(size=100_000)
    w.log.close_files()
    bases = segments_of(w.log.directory)
    assert bases == [0, 10, 20]
    device.lacks(w.log.directory / names.segment_name(10), 0)
    again = reopen(w.log.directory, Known(clean=False, recovery_point=5, durable=8))
    assert segments_of(w.log.directory) == [0, 10]
    assert offsets_in(again) == list(range(10))
    again.close_files()


@pytest.mark.parametrize(
    "known",
    [
        Known(clean=True, recovery_point=6, durable=6),
        Known(clean=False, recovery_point=6, durable=6),
        Known(clean=False, recovery_point=2, durable=6),
        Known(clean=False, recovery_point=0, durable=6),
    ],
)
@pytest.mark.parametrize("is_at_once", [False, True])
def test_a_partition_that_rested_costs_the_device_little(
    writer: MakeWriter, device: Device, known: Known, is_at_once: bool, tmp_path: Path
) -> None:
    """Check that only its size and names are synced: a killed start may have changed them."""
    directory, _ = fill(writer, [20] * 6)
    syncs = at_once(device, tmp_path / "other") if is_at_once else EACH_FILE
    device.synced.clear()
    again = reopen(directory, known, syncs)
    assert again.state.log_end == 6
    few = [(directory / names.segment_name(0)).stat().st_ino, directory.stat().st_ino]
    assert device.synced == ([] if known.clean or is_at_once else few)
    assert device.dropped == []
    again.close_files()


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
def test_nothing_is_believed_if_it_cannot_be_synced(
    writer: MakeWriter, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    directory, ends = fill(writer, [20] * 4)
    bad = (directory / names.segment_name(0, suffix)).stat().st_ino
    fsync = os.fsync

    def fails(fd: int) -> None:
        if os.fstat(fd).st_ino == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(fd)

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", fails)
        with pytest.raises(SyncFailed):
            reopen(directory, Known(clean=False, durable=3))
    assert (directory / names.segment_name(0)).stat().st_size == ends[4]


def test_what_was_found_is_synced_once_all_is_written(writer: MakeWriter, device: Device) -> None:
    """Check the number of syncs: after a kill there are thousands of partitions."""
    directory, _ = fill(writer, [400] * 6)
    indexes = [directory / names.segment_name(0, suffix) for suffix in (".index", ".timeindex")]
    again = reopen(directory, Known(clean=False, recovery_point=2, durable=4))
    before = [path.read_bytes() for path in indexes]
    assert [device.synced.count(path.stat().st_ino) for path in indexes] == [1, 1]
    assert again.is_settled
    again.close_cleanly()
    assert [path.read_bytes() for path in indexes] == before


@pytest.mark.parametrize("position", [1, mmap.PAGESIZE + 1, (1 << 20) + 5, (1 << 20) + mmap.PAGESIZE - 1])
def test_the_page_in_which_it_begins_is_read_anew_too(tmp_path: Path, position: int) -> None:
    """Check it where the file system says what is cached; one piece of the cache may have many pages."""
    path = tmp_path / "file"
    path.write_bytes(bytes(2 << 20))
    with path.open("rb") as file:
        fd = file.fileno()
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

        def is_cached() -> bool:
            try:
                return os.preadv(fd, [bytearray(1)], position, os.RWF_NOWAIT) > 0
            except BlockingIOError:
                return False
            except OSError:
                pytest.skip("this file system does not tell")

        if is_cached():
            pytest.skip("this file system keeps what it was told to drop")
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        file.read()
        assert is_cached()
        os.posix_fadvise(fd, position, 0, os.POSIX_FADV_DONTNEED)
        assert is_cached(), "the kernel keeps a page of which a part is named"
        # One that the kernel itself looks at in this moment, as DAMON does now and then, stays.
        for _ in range(100):
            reread(fd, position)
            if not is_cached():
                break
        else:
            pytest.fail("what lies in the page before it is not read anew")


# ---- all at once ----


class Whole(Syncs):
    """A file system whose sync reaches the device."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device

    def sync(self) -> None:
        super().sync()
        self._device.is_synced = True


def words(count: int) -> Words:
    return Words(memoryview(bytearray(8 * count)))


def at_once(device: Device, other: Path) -> FileSystemSync:
    """A few have been synced by themselves before."""
    made = FileSystemSync(Whole(device), words(1), 0)
    with other.open("wb") as file:
        assert not any(made.sync(file.fileno()) for _ in range(FEW))
    device.synced.clear()
    return made


def test_many_are_synced_at_once_for_all_workers(tmp_path: Path, device: Device) -> None:
    whole, synced = Syncs(), words(2)
    ours, others = FileSystemSync(whole, synced, 0), FileSystemSync(whole, synced, 1)
    with (tmp_path / "file").open("wb") as file:
        assert [ours.sync(file.fileno()) for _ in range(FEW + 3)] == [False] * FEW + [True] * 3
        assert others.sync(file.fileno())
    assert (len(device.synced), whole.count) == (FEW, 1)


def test_what_lies_elsewhere_is_synced_by_itself(tmp_path: Path, device: Device) -> None:
    whole = Syncs()
    one = FileSystemSync(whole, words(1), 0)
    with (tmp_path / "here").open("wb") as here, (tmp_path / "there").open("wb") as there:
        whole.elsewhere.add(os.fstat(there.fileno()).st_ino)
        assert [one.sync(here.fileno()) for _ in range(FEW + 2)] == [False] * FEW + [True] * 2
        device.synced.clear()
        assert not one.sync(there.fileno())
        assert device.synced == [os.fstat(there.fileno()).st_ino]


def test_each_is_synced_where_all_cannot_be(tmp_path: Path, device: Device, caplog) -> None:
    failing = Syncs(fails_at=1)
    with (tmp_path / "file").open("wb") as file:
        for whole in (Syncs(is_synced_at_once=False), failing):
            one, device.synced = FileSystemSync(whole, words(1), 0), []
            assert not any(one.sync(file.fileno()) for _ in range(3 * FEW))
            assert len(device.synced) == 3 * FEW
    assert failing.count == 1
    assert caplog.text.count("cannot be synced as a whole") == 1


@pytest.mark.parametrize("sizes", [[20] * 6, [LARGE] * 6])
@pytest.mark.parametrize("durable", [0, 1, 5])
def test_what_all_were_synced_with_is_read_anew_too(
    writer: MakeWriter, device: Device, tmp_path: Path, durable: int, sizes: list[int]
) -> None:
    """A sync that succeeds says nothing of pages that an earlier one failed to write. The cut behind it is
    synced by itself: nothing of what was cut may come back behind what is appended there.
    """
    directory, ends = fill(writer, sizes)
    path = directory / names.segment_name(0)
    device.lacks(path, ends[durable])
    again = reopen(directory, Known(clean=False, durable=durable), at_once(device, tmp_path / "other"))
    assert offsets_in(again) == list(range(durable))
    assert path.stat().st_size == ends[durable]
    assert path.stat().st_ino in device.synced
    again.close_files()


def test_what_all_were_synced_with_is_not_synced_again(
    writer: MakeWriter, device: Device, tmp_path: Path
) -> None:
    """Check that its indexes, which are not on the device, are not reported as synced."""
    directory, _ = fill(writer, [20] * 6)
    known = Known(clean=False, recovery_point=2, durable=4)
    again = reopen(directory, known, at_once(device, tmp_path / "other"))
    assert (again.state.log_end, again.recovery_point, again.is_settled) == (6, 2, False)
    assert device.synced == []
    assert len(device.dropped) == 1
    again.close_files()


def test_much_that_was_checked_need_not_be_the_next_time(
    writer: MakeWriter, device: Device, tmp_path: Path
) -> None:
    directory, _ = fill(writer, [LITTLE_BYTES // 4] * 6)
    again = reopen(directory, Known(clean=False, durable=4), at_once(device, tmp_path / "other"))
    assert (again.state.log_end, again.recovery_point, again.is_settled) == (6, 6, True)
    again.close_files()


def test_who_takes_it_again_syncs_what_the_one_that_died_may_have_written(
    writer: MakeWriter, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that it syncs by itself: the dead worker may have cut the log after the sync of everything."""
    directory, ends = fill(writer, [20] * 6)
    path = directory / names.segment_name(0)
    os.truncate(path, ends[5] + 70)
    syncs, config = at_once(device, tmp_path / "other"), topic_config(index_interval_bytes="200")
    job = OpenJob(str(directory), "t", 0, bytes(range(16)), config, Known(clean=False, durable=2))

    def dies(fd: int) -> None:
        raise InterruptedError(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", dies)
        with pytest.raises(SyncFailed):
            job.run(lambda _: None, syncs)
    assert path.stat().st_size == ends[5]
    found = job.again().run(lambda _: None, syncs)
    assert found is not None
    assert found.recovery_point == 5
    assert path.stat().st_ino in device.synced
