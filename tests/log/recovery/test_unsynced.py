"""What a process that was killed has done and not synced is on the device before anything builds on it."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mpbroker.log.directories import future_replica
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.log.recovery.log_loader import Known, load
from mpbroker.log.recovery.workers import OpenJob, Recovery, RecoveryPool
from mpbroker.storage import names
from mpbroker.storage.segments import segments_of
from tests.log.partition.test_durable_reads import Device, at_once, fill
from tests.support.full_disk import failing_with, files_take
from tests.support.log_node import MakeJournaled, MakeNode, Node, extents, noted_syncs, wait_for_io
from tests.support.log_rig import ensure
from tests.support.log_writer import MakeWriter, make_batch, topic_config
from tests.support.opened_logs import offsets_in

TOPIC_ID = bytes(range(16))
STORAGE_ERROR = 56


class Killed(BaseException):
    pass


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


def job_of(directory: Path, known: Known, **configs: str) -> OpenJob:
    config = topic_config(index_interval_bytes="200", **configs)
    return OpenJob(str(directory), "t", 0, TOPIC_ID, config, known)


def opened(job: OpenJob) -> PartitionLog:
    return load(Path(job.directory), "t", 0, TOPIC_ID, job.config, job.known, str)


def inode(path: Path) -> int:
    return path.stat().st_ino


def killed_behind(
    patch: pytest.MonkeyPatch, call: str, left: int, run: Callable[[], object], file: Path | None = None
) -> bool:
    """Return True if it was killed behind its call with that number, of those for the file."""
    real = getattr(os, call)
    counted = inode(file) if file is not None else None

    def counting(target: int | str, *more: object, **how: object) -> object:
        nonlocal left
        done = real(target, *more, **how)
        if threading.current_thread() is not threading.main_thread():
            return done
        left -= counted is None or os.stat(target).st_ino == counted  # noqa: PTH116 - a descriptor
        if left < 0:
            raise Killed
        return done

    with patch.context() as patched:
        patched.setattr(os, call, counting)
        try:
            run()
        except Killed:
            return True
    return False


# ---- a torn tail that was cut ----


def with_torn_tail(writer: MakeWriter) -> tuple[Path, list[int]]:
    directory, ends = fill(writer, [20] * 6)
    os.truncate(directory / names.segment_name(0), ends[5] + 70)
    return directory, ends


def test_the_next_start_syncs_what_was_cut_to_what_is_durable(
    writer: MakeWriter, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check it, since stale bytes could come back behind what is appended next."""
    directory, ends = with_torn_tail(writer)
    path = directory / names.segment_name(0)
    job = job_of(directory, Known(clean=False, durable=5))
    assert killed_behind(monkeypatch, "ftruncate", 0, lambda: opened(job), path)
    assert path.stat().st_size == ends[5]
    device.synced.clear()
    again = opened(job)
    assert again.state.log_end == 5
    assert {inode(path), inode(directory)} <= set(device.synced)
    again.close_files()


def test_so_does_the_worker_that_takes_it_again(
    writer: MakeWriter, device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory, _ = with_torn_tail(writer)
    path, syncs = directory / names.segment_name(0), at_once(device, tmp_path / "other")
    job = job_of(directory, Known(clean=False, durable=5))
    assert killed_behind(monkeypatch, "ftruncate", 0, lambda: job.run(lambda _: None, syncs), path)
    device.synced.clear()
    assert job.again().run(lambda _: None, syncs) is not None
    assert {inode(path), inode(directory)} <= set(device.synced)


def test_what_is_given_to_workers_once_more_was_perhaps_cut(writer: MakeWriter) -> None:
    """Check that a second try is marked: the first one, which a passing error ended, may have cut the log."""
    directory, _ = fill(writer, [20] * 6)
    pool = RecoveryPool(directory.parent)
    recovery = Recovery([pool])
    job = job_of(directory, Known(clean=False))
    for _ in range(2):
        recovery.submit(0, job)
        pool.done[job.key] = OSError(errno.EMFILE, "too many files")
        assert isinstance(recovery.take(job.key), OSError)
    first, second = pool.waiting
    assert isinstance(first, OpenJob)
    assert isinstance(second, OpenJob)
    assert (first.is_first_try, second.is_first_try) == (True, False)


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("call", ["unlink", "ftruncate"])
def test_who_is_killed_at_a_torn_tail_leaves_no_segment_behind_it(
    writer: MakeWriter, monkeypatch: pytest.MonkeyPatch, call: str, policy: str
) -> None:
    """Check it in a compacted log, whose gaps would hide the cut from the next start."""
    w = writer(segment_bytes="1048576")
    for _ in range(30):
        w.append(size=100_000)
    w.log.close_files()
    whole, directory = w.log.directory, w.log.directory.with_name("t-1")
    assert segments_of(whole) == [0, 10, 20]
    torn = whole / names.segment_name(0)
    os.truncate(torn, torn.stat().st_size - 1)
    job = job_of(directory, Known(clean=False, durable=3), cleanup_policy=policy)
    for number in range(20):
        shutil.copytree(whole, directory)
        was_killed = killed_behind(monkeypatch, call, number, lambda: opened(job))
        again = opened(job)
        assert (segments_of(directory), again.state.log_end) == ([0], 9)
        assert offsets_in(again) == list(range(9))
        again.close_files()
        shutil.rmtree(directory)
        if not was_killed:
            assert number > 0
            return
    pytest.fail("it was killed at each of its calls")


# ---- names ----


def test_names_are_synced_where_there_is_no_room_for_a_snapshot(
    writer: MakeWriter, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check it if the round that makes the newest segment's name durable never came."""
    directory, _ = fill(writer, [20] * 6)

    monkeypatch.setattr(PartitionLog, "_write_snapshot", failing_with(errno.ENOSPC))
    device.synced.clear()
    again = opened(job_of(directory, Known(clean=False, durable=2)))
    assert again.state.log_end == 6
    assert inode(directory) in device.synced
    again.close_files()


@pytest.mark.parametrize("start", ["boot", "succeed"])
def test_a_partition_that_was_being_made_has_its_name_before_it_is_appended_to(
    n: Node, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    """Check it if its maker was killed at the sync of the log directory."""
    made = n.dirs[0] / "t-0"
    assert killed_behind(monkeypatch, "fsync", 0, lambda: n.open(ensure()), n.dirs[0])
    assert segments_of(made) == [0]
    with monkeypatch.context() as patched:
        synced = noted_syncs(patched)
        getattr(n, start)()
    assert inode(n.dirs[0]) in synced
    assert [target.error for target in n.open(ensure())] == [0]


def test_a_partition_that_moved_has_its_name_before_the_one_that_it_left_goes(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check it after a kill before the sync: without its name the partition would be nowhere."""
    one = node(2)
    one.boot()
    (target,) = one.open(ensure())
    assert one.produce(target, bytes(make_batch(1))) == [0]
    one.crash()
    source = next(log_dir for log_dir in one.dirs if (log_dir / "t-0").is_dir())
    aim = next(log_dir for log_dir in one.dirs if log_dir != source)
    shutil.copytree(source / "t-0", aim / "t-0")
    (aim / "t-0" / names.MOVED).write_text(str(source))
    before: list[bool] = []
    set_aside = future_replica.set_aside

    def goes(directory: Path) -> Path:
        before.append(inode(aim) in synced)
        return set_aside(directory)

    synced = noted_syncs(monkeypatch)
    monkeypatch.setattr(future_replica, "set_aside", goes)
    one.boot()
    assert before == [True]
    assert not (source / "t-0").exists()


# ---- what a failed write left ----


@pytest.mark.parametrize("is_first", [False, True])
def test_what_a_failed_write_left_is_gone_for_good_with_the_next_round(
    journaled: MakeJournaled, is_first: bool
) -> None:
    """By the journal alone a power cut could bring it back behind that: refused, and there after all.
    `is_first`: of a segment, which Python appends.
    """
    n = journaled()
    n.boot()
    (target,) = n.open(ensure())
    data = bytes(make_batch(1, size=500))
    if not is_first:
        assert n.produce(target, data, 2) == [0, 0]
    log = next(log for log in n.process.manager.logs.values() if log.name == "t-0")
    rounds = n.process.turn.commit_rounds
    with files_take(log.state.size + len(data) + 100 if not is_first else 100):
        n.rig.job([((target.slot, target.slot_generation, 5), data)] * (1 if is_first else 2))
        while not n.process.turn.is_settled or not (replies := n.rig.replies()):
            n.process.work(0)
    assert STORAGE_ERROR in [result.error for result in replies[0].results]
    # By a sync of the segment itself, whoever appends there next or not: it need not be kept open.
    assert n.process.turn.commit_rounds == rounds + 1
    assert log.state.can_rest
    named = len([extent for record in extents(n.path) for extent in record])
    assert n.produce(target, data) == [0]
    assert len([extent for record in extents(n.path) for extent in record]) == named + 1
    assert n.end_of(target) == log.state.log_end
    wait_for_io(n.process)
