"""Partitions that workers open: as if the log process had done it, also when workers are killed."""

from __future__ import annotations

import fcntl
import math
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from mpbroker.config.topic_config import TopicConfig
from mpbroker.ipc import progress
from mpbroker.ipc.calls import EnsureTopic
from mpbroker.ipc.progress import read_progress
from mpbroker.log.directories.log_directory import LogDirectory
from mpbroker.log.partition.durable_reads import Syncs
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.log.recovery import scheduler, workers
from mpbroker.log.recovery.log_loader import Known, PartitionDamaged
from mpbroker.log.recovery.workers import OpenJob, RecoveredPartition, Recovery, fork_pools, outlive
from mpbroker.storage.names import LOCK, segment_name
from shm.word import Words
from tests.support.log_node import Node, flip_bit
from tests.support.log_rig import TOPIC_ID
from tests.support.log_writer import Writer, make_batch, topic_config
from tests.support.polling import PATIENCE_S, until
from tests.support.stepped_log import settle

PARTITIONS = 30
LANE = 3


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Partitions with 5 to 34 batches of a producer each, left as a kill leaves them."""
    path = tmp_path / "data"
    path.mkdir()
    for number in range(PARTITIONS):
        w = Writer(PartitionLog.create(path / f"t-{number}", "t", number, TOPIC_ID, topic_config()))
        for i in range(5 + number):
            w.append(producer=(7, 0, i))
        w.log.close_files()
    return path


@pytest.fixture
def recovery(log_dir: Path) -> Iterator[Recovery]:
    made = Recovery(fork_pools([log_dir], 2, 0, LANE))
    assert len(made.pools[0].workers) == 2
    yield made
    made.close()


def job(log_dir: Path, number: int, config: TopicConfig) -> OpenJob:
    return OpenJob(str(log_dir / f"t-{number}"), "t", number, TOPIC_ID, config, Known(clean=False))


def results(recovery: Recovery, numbers: list[int]) -> dict[int, object]:
    """None: it is for the log process."""
    found: dict[int, object] = {}
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < len(numbers):
        assert time.monotonic() < deadline, f"only {sorted(found)} of {numbers} are there"
        recovery.step()
        for number in set(numbers) - found.keys():
            try:
                taken = recovery.take((TOPIC_ID, number))
            except LookupError:
                found[number] = None
                continue
            if taken is not None:
                found[number] = taken
    return found


def test_what_workers_open_can_be_appended_to(log_dir: Path, recovery: Recovery) -> None:
    config = topic_config()
    for number in range(PARTITIONS):
        recovery.submit(0, job(log_dir, number, config))
    for number, recovered in results(recovery, list(range(PARTITIONS))).items():
        assert isinstance(recovered, RecoveredPartition)
        log = PartitionLog(log_dir / f"t-{number}", "t", number, TOPIC_ID, config)
        recovered.adopt(log)
        end = 5 + number
        assert log.state.log_end == end
        # Those behind a sync of the whole file system have none of their own.
        assert (log.recovery_point, log.settled_end) in {(end, end), (0, -1)}
        assert log.state.size == (log.directory / segment_name(0)).stat().st_size
        assert [log.state.producers.check(7, 0, end - i, 1)[0] for i in (1, 5, 0)] == [-1, -1, 0]
        log.wake()
        assert Writer(log).append(producer=(7, 0, end)) == end
        log.close_cleanly()
    assert recovery.pools[0].checked_bytes > 0


def test_of_a_long_start_a_survey_counts_what_is_to_be_checked(
    log_dir: Path, recovery: Recovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that each report counts a little more of what is behind the recovery points."""
    sizes = [(log_dir / f"t-{n}" / segment_name(0)).stat().st_size for n in range(PARTITIONS)]
    words = Words(memoryview(bytearray(progress.BYTES)))
    monkeypatch.setattr(scheduler, "SURVEY_S", 0)
    monkeypatch.setattr(scheduler, "SURVEY_AFTER_S", math.inf)
    looked_at = scheduler.RecoveryScheduler(recovery, words)
    looked_at.found([LogDirectory(0, log_dir, group=True, failed=False)], is_successor=False)
    for _ in range(2 * PARTITIONS):
        looked_at.report(at_once=True)
    assert read_progress(words, 1, 0).bytes == 0
    monkeypatch.setattr(scheduler, "SURVEY_AFTER_S", 0)
    for _ in range(PARTITIONS):
        assert read_progress(words, 1, 0).bytes == 0
        looked_at.report(at_once=True)
    looked_at.report(at_once=True)
    assert read_progress(words, 1, 0).bytes == sum(sizes)


def test_damage_and_strangers_are_told(log_dir: Path, recovery: Recovery) -> None:
    flip_bit(log_dir / "t-0" / segment_name(0), 60)
    before = (log_dir / "t-0" / segment_name(0)).read_bytes()
    damaged = OpenJob(str(log_dir / "t-0"), "t", 0, TOPIC_ID, topic_config(), Known(clean=False, durable=5))
    recovery.submit(0, damaged)
    recovery.submit(
        0, OpenJob(str(log_dir / "t-1"), "t", 1, TOPIC_ID[::-1], topic_config(), Known(clean=False))
    )
    problem = results(recovery, [0])[0]
    assert isinstance(problem, PartitionDamaged)
    assert "t-0" in str(problem)
    assert "nothing is cut" in str(problem)
    assert (log_dir / "t-0" / segment_name(0)).read_bytes() == before
    while (TOPIC_ID[::-1], 1) not in recovery.pools[0].left_over:
        recovery.step()


class Deadly(OpenJob, frozen=True):
    """Kills its worker so many times."""

    times: int = 1

    def run(self, count: Callable[[int], None], syncs: Syncs) -> RecoveredPartition | None:
        for n in range(self.times):
            mark = Path(self.directory).with_name(f"killed-{n}")
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().run(count, syncs)


@pytest.mark.parametrize("place", [0, 5])
@pytest.mark.parametrize("times", [1, 2])
def test_what_a_killed_worker_had_is_taken_again(
    log_dir: Path, recovery: Recovery, caplog, times: int, place: int
) -> None:
    """By the other worker; and when that dies of it as well, by the log process. What it has done of the same
    message, and not yet told, is not taken for the reason.
    """
    config = topic_config()
    for number in range(PARTITIONS):
        recovery.submit(
            0,
            Deadly(str(log_dir / f"t-{place}"), "t", place, TOPIC_ID, config, Known(clean=False), times=times)
            if number == place
            else job(log_dir, number, config),
        )
    found = results(recovery, list(range(PARTITIONS)))
    assert f"was killed by SIGKILL while it was at t-{place}" in caplog.text
    if times == 1:
        assert all(isinstance(one, RecoveredPartition) for one in found.values())
        assert len(recovery.pools[0].workers) == 1
    else:
        assert found[place] is None
        assert not recovery.takes(0)


def test_what_few_there_are_both_workers_get(log_dir: Path, recovery: Recovery) -> None:
    """Check that few partitions are divided, since each may take minutes."""
    for number in range(8):
        recovery.submit(0, job(log_dir, number, topic_config()))
    recovery.hand_out()
    assert [len(worker.under_way) for worker in recovery.pools[0].workers] == [4, 4]
    assert len(results(recovery, list(range(8)))) == 8


def test_many_are_sent_together(log_dir: Path, recovery: Recovery) -> None:
    """Check that the settings of their topic are sent once."""
    sent: list[int] = []
    for worker in recovery.pools[0].workers:
        worker.channel = Spy(worker.channel, sent)  # type: ignore[assignment]
    config = topic_config()
    for number in range(PARTITIONS):
        recovery.submit(0, job(log_dir, number, config))
    recovery.hand_out()
    assert len(sent) <= 6
    single = len(pickle.dumps([job(log_dir, 1, config)]))
    assert sum(sent) < PARTITIONS * single / 3


@dataclass
class Spy:
    channel: Connection
    sent: list[int]

    def send(self, jobs: list[OpenJob]) -> None:
        self.sent.append(len(pickle.dumps(jobs)))
        self.channel.send(jobs)

    def close(self) -> None:
        self.channel.close()


class Synced:
    """All there is."""

    def sync(self, _: int) -> bool:
        return True


def test_of_an_idle_partition_little_is_opened(log_dir: Path, monkeypatch) -> None:
    """Check the number of open files, since there may be ten thousand such partitions."""
    w = Writer(PartitionLog.create(log_dir / "u-0", "u", 0, TOPIC_ID, topic_config()))
    w.append(producer=(7, 0, 0))
    w.log.close_cleanly()
    known = Known(clean=False, recovery_point=1, durable=1)
    opened: list[str] = []
    listed: list[str] = []
    open_file, list_directory = os.open, os.listdir

    def note_open(path: str, *rest: int, **more: int) -> int:
        opened.append(os.fspath(path))
        return open_file(path, *rest, **more)

    def note_list(path: str) -> list[str]:
        listed.append(path)
        return list_directory(path)

    monkeypatch.setattr(os, "open", note_open)
    monkeypatch.setattr(os, "listdir", note_list)
    found = OpenJob(str(log_dir / "u-0"), "u", 0, TOPIC_ID, topic_config(), known).run(
        lambda _: None, Synced()
    )
    assert found is not None
    assert sorted(Path(path).suffix or Path(path).name for path in opened) == sorted(
        # The segment once more, before anything else, to see whether it is of an old format.
        [".index", ".log", ".log", ".metadata", ".snapshot", ".timeindex", "leader-epoch-checkpoint"]
    )
    assert listed == [str(log_dir / "u-0")]


class Stopped(OpenJob, frozen=True):
    """Stops its worker once; the signal is one of those that nobody can ignore."""

    def run(self, count: Callable[[int], None], syncs: Syncs) -> RecoveredPartition | None:
        mark = Path(self.directory).with_name("stopped")
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().run(count, syncs)


def test_what_a_worker_that_hangs_had_is_taken_again(
    log_dir: Path, caplog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "TICK_S", 0.01)
    recovery = Recovery(fork_pools([log_dir], 2, 0, LANE), hang_timeout_s=0.01)
    config = topic_config()
    recovery.submit(0, Stopped(str(log_dir / "t-0"), "t", 0, TOPIC_ID, config, Known(clean=False)))
    for number in range(1, PARTITIONS):
        recovery.submit(0, job(log_dir, number, config))
    found = results(recovery, list(range(PARTITIONS)))
    assert all(isinstance(one, RecoveredPartition) for one in found.values())
    assert "has not moved for" in caplog.text
    assert "was killed by SIGKILL while it was at t-0" in caplog.text
    (left,) = recovery.pools[0].workers
    # Nor does the end of all the opening wait for one.
    os.kill(left.pid, signal.SIGSTOP)
    recovery.close()


def test_a_partition_that_is_submitted_twice_is_opened_once(log_dir: Path, recovery: Recovery) -> None:
    """Check with two submissions: a coordinator that replaces a dead one asks for the same partitions."""
    for _ in range(2):
        recovery.submit(0, job(log_dir, 4, topic_config()))
    assert isinstance(results(recovery, [4])[4], RecoveredPartition)
    assert recovery.log_dir_of((TOPIC_ID, 4)) is None


def test_a_small_directory_gets_no_workers(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    assert fork_pools([tmp_path], 2, 0, LANE)[0].workers == []
    assert fork_pools([tmp_path / "missing"], 2, 0, LANE)[0].workers == []


def test_a_successor_waits_for_the_workers_of_the_one_before(log_dir: Path) -> None:
    theirs, ours = os.pipe()
    pid = os.fork()
    if pid == 0:
        lock = os.open(log_dir / LOCK, os.O_RDWR | os.O_CREAT)
        fcntl.lockf(lock, fcntl.LOCK_SH, 1, LANE)
        os.write(ours, b"!")
        signal.pause()
    os.read(theirs, 1)
    done: list[None] = []
    other = threading.Thread(target=lambda: done.append(outlive(log_dir, LANE)), daemon=True)
    other.start()
    other.join(0.2)
    assert done == []
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    other.join(PATIENCE_S)
    assert len(done) == 1
    os.close(theirs)
    os.close(ours)


def test_workers_end_with_the_log_process(log_dir: Path) -> None:
    """Check that the kernel ends them if the log process is killed."""
    theirs, ours = os.pipe()
    pid = os.fork()
    if pid == 0:
        pools = fork_pools([log_dir], 2, 0, LANE)
        os.write(ours, b" ".join(b"%d" % worker.pid for worker in pools[0].workers))
        signal.pause()
    workers = [int(one) for one in os.read(theirs, 100).split()]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert len(workers) == 2
    # Whoever follows waits for that, and for nothing else.
    outlive(log_dir, LANE)
    until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers), "the workers are gone")
    os.close(theirs)
    os.close(ours)


@pytest.mark.parametrize("whole_broker", [True, False])
def test_a_log_process_has_its_partitions_opened(n: Node, whole_broker: bool) -> None:
    topic = EnsureTopic("t", TOPIC_ID, list(range(PARTITIONS)), {}, 5)
    targets = n.open(topic)
    for target in targets:
        assert n.produce(target, bytes(make_batch(3))) == [0]
    n.boot() if whole_broker else n.succeed()
    process = n.process
    words = process.context.memory.words("recovery")
    started = read_progress(words, 1, 0)
    assert (started.goes_on, started.partitions) == (True, PARTITIONS + 1)
    process.manager.prefetch(topic)
    assert process.recovery_scheduler._recovery.takes(0)
    again = n.open(topic)
    assert [n.end_of(target) for target in again] == [3] * PARTITIONS
    assert all(log.state.fd < 0 for log in process.manager.logs.values())
    process.recovery_scheduler.end()
    ended = read_progress(words, 1, 0)
    assert (ended.goes_on, ended.partitions_done, ended.partitions_left) == (False, PARTITIONS + 1, 0)
    assert n.produce(again[0], bytes(make_batch(2))) == [0]
    settle(process)
    assert n.end_of(again[0]) == 5
