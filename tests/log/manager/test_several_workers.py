"""Several log workers: who owns what, what the last run left, however many there were, what they share."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpbroker.ipc import calls, topology
from mpbroker.ipc.process import FatalError, Order, ProcessContext, State
from mpbroker.ipc.table import PartitionFlag
from mpbroker.ipc.topology import CLEAN_DIRS, IS_TAKEN_OVER, SUPERVISOR, slots_given
from mpbroker.log.directories.log_directory import LogDirectory, LogWorker
from mpbroker.log.process import run
from mpbroker.protocol.topic_names import METADATA_TOPIC
from mpbroker.records.validation import at_once
from mpbroker.storage import journal
from mpbroker.storage.checkpoints import alone_with, read_offsets
from mpbroker.storage.names import CLEAN_SHUTDOWN, HIGH_WATERMARKS, log_worker_of, segment_name
from tests.support.log_moves import order, turn_until
from tests.support.log_node import wait_for_io
from tests.support.log_rig import TOPIC_ID, end, ensure
from tests.support.log_writer import make_batch
from tests.support.polling import PATIENCE_S, until
from tests.support.several_log_workers import Several, SeveralRig
from tests.support.stepped_log import settle

PARTITIONS = 8
SEGMENT = segment_name(0)

Make = Callable[..., SeveralRig]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """A broker's memory with so many workers; all of them on one directory."""
    made: list[SeveralRig] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as public:

        def build(workers: int = 2, **options: object) -> SeveralRig:
            directory = tmp_path / "data"
            directory.mkdir(exist_ok=True)
            one = SeveralRig(directory, Path(public) / f"region{len(made)}", options, workers=workers)
            made.append(one)
            return one

        yield build
        for one in made:
            one.close()


def produce(several: Several, targets: list[calls.EnsuredPartition], data: bytes, count: int = 1) -> None:
    for target in targets:
        for _ in range(count):
            several.rig.job([((target.slot, target.slot_generation, 5), data)])
    several.settle()
    replies = several.rig.replies()
    assert len(replies) == count * len(targets)
    assert {result.error for reply in replies for result in reply.results} == {0}


def use_journals(several: Several) -> None:
    for process in several.processes:
        wait_for_io(process)
        process.manager.journals.use()


def ends(several: Several, targets: list[calls.EnsuredPartition]) -> list[int]:
    return [several.rig.partition(target.slot).high_watermark for target in targets]


# ---- who owns what ----


@pytest.mark.parametrize("workers", [2, 3, 5, 7])
def test_partitions_of_a_topic_are_spread_and_the_metadata_are_the_first_ones(workers: int) -> None:
    for topic in ("t", "orders", "__consumer_offsets"):
        owners = [log_worker_of(topic, partition, workers) for partition in range(workers * 4)]
        assert sorted(owners) == sorted([*range(workers)] * 4)
        own = [LogWorker(number, workers).owns(topic, 1) for number in range(workers)]
        assert own.count(True) == 1
    assert log_worker_of(METADATA_TOPIC, 0, workers) == 0
    assert LogWorker().owns("anything", 7)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_slot_says_whose_it_is_also_after_a_death(make: Make, workers: int) -> None:
    several = Several(make(workers))
    targets = several.open(ensure(PARTITIONS))
    assert [one.partition for one in targets] == list(range(PARTITIONS))
    for one in targets:
        assert one.slot % workers == log_worker_of("t", one.partition, workers)
    produce(several, targets, make_batch(2))
    last = workers - 1
    several.succeed(last)
    assert several.open(ensure(PARTITIONS)) == targets
    assert ends(several, targets) == [2] * PARTITIONS
    # A new topic's slots are none of those that are taken, and who looks for partitions finds all of them.
    other = several.open(calls.EnsureTopic("u", bytes(range(1, 17)), [0, 1, 2, 3], {}, 5, 0))
    slots = [one.slot for one in (*targets, *other)]
    assert len(set(slots)) == len(slots)
    assert sorted(slots_given(several.rig.memory.table(), workers)) == sorted(slots)


def test_a_topic_made_anew_is_its_owners_alone(make: Make) -> None:
    """Check it though all workers know the old topic's directory and checkpoints, which have its name."""
    several = Several(make(3))
    produce(several, several.open(ensure(PARTITIONS)), make_batch(), 5)
    several.checkpoint()
    for process in several.processes:
        at_once(process.manager.removing("t", TOPIC_ID))
    targets = several.open(calls.EnsureTopic("t", bytes(range(1, 17)), list(range(PARTITIONS)), {}, 5, 0))
    assert {one.error for one in targets} == {0}
    for process in several.processes:
        process.manager.checkpoints.write_stale()
        wait_for_io(process)
    assert ends(several, targets) == [0] * PARTITIONS
    produce(several, targets, make_batch())


# ---- what the last run left ----


def lost(directory: Path) -> list[int]:
    """The machine lost what was never synced: the sizes that the segments had."""
    sizes = []
    for partition in range(PARTITIONS):
        path = directory / f"t-{partition}" / SEGMENT
        sizes.append(path.stat().st_size)
        os.truncate(path, 0)
    return sizes


def sizes_of(directory: Path) -> list[int]:
    return [(directory / f"t-{partition}" / SEGMENT).stat().st_size for partition in range(PARTITIONS)]


def journals_of(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("mpbroker.journal*"))


def left_by(make: Make, workers: int, count: int = 3) -> Path:
    """A directory after a power cut: what was acknowledged is in the journals of the workers alone."""
    several = Several(make(workers))
    use_journals(several)
    produce(several, several.open(ensure(PARTITIONS)), make_batch(), count)
    several.checkpoint()
    several.crash()
    directory = several.rig.directory
    assert journals_of(directory) == [journal.name_of(number) for number in range(workers)]
    return directory


@pytest.mark.parametrize("now", [1, 2, 3, 5])
def test_every_journal_is_replayed_whoever_wrote_it(make: Make, now: int) -> None:
    directory = left_by(make, 3)
    sizes = lost(directory)
    several = Several(make(now))
    assert sizes_of(directory) == sizes
    use_journals(several)
    assert journals_of(directory) == [journal.name_of(number) for number in range(now)]
    targets = several.open(ensure(PARTITIONS))
    assert ends(several, targets) == [3] * PARTITIONS
    produce(several, targets, make_batch())
    several.stop()
    assert (directory / CLEAN_SHUTDOWN).exists()


class Killed(BaseException):
    pass


@pytest.mark.parametrize("at", range(12))
def test_a_start_that_is_killed_anywhere_applies_nothing_stale(
    make: Make, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Between three starts with three numbers of workers: what the last one has acknowledged is there,
    whatever journals of the first one were replayed before, and were not emptied.
    """
    directory = left_by(make, 3)
    first = lost(directory)
    left = [at]

    def counted(real):
        def call(*arguments: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return real(*arguments)

        return call

    with monkeypatch.context() as patch:
        for name in ("pwrite", "fsync", "fdatasync", "unlink"):
            patch.setattr(os, name, counted(getattr(os, name)))
        try:
            log_dir = LogDirectory(0, directory, group=True, failed=False, worker=LogWorker(0, 2))
            log_dir.take_over(lambda _: None)
        except Killed:
            pass
    several = Several(make(1))
    targets = several.open(ensure(PARTITIONS))
    assert sizes_of(directory) == first
    use_journals(several)
    produce(several, targets, make_batch(2), 2)
    second = sizes_of(directory)
    contents = [(directory / f"t-{p}" / SEGMENT).read_bytes() for p in range(PARTITIONS)]
    several.crash()
    for partition, size in enumerate(first):
        os.truncate(directory / f"t-{partition}" / SEGMENT, size)
    several = Several(make(2))
    assert sizes_of(directory) == second
    assert [(directory / f"t-{p}" / SEGMENT).read_bytes() for p in range(PARTITIONS)] == contents
    assert ends(several, several.open(ensure(PARTITIONS))) == [7] * PARTITIONS


def test_no_record_of_before_is_left_when_somebody_appends(make: Make) -> None:
    directory = left_by(make, 5)
    stale = {name: (directory / name).read_bytes() for name in journals_of(directory)}
    Several(make(2))
    for path in directory.glob("mpbroker.journal*"):
        assert journal.JournalFile(path).survey()[1] == []
    assert len(stale) == 5


@pytest.mark.parametrize("victim", [0, 1])
def test_a_successor_goes_on_with_its_own_journal(make: Make, victim: int) -> None:
    several = Several(make(2))
    use_journals(several)
    targets = several.open(ensure(PARTITIONS))
    produce(several, targets, make_batch(), 3)
    other = several.processes[1 - victim]
    before = (several.rig.directory / journal.name_of(1 - victim)).read_bytes()
    several.succeed(victim)
    assert several.processes[victim].manager.dirs[0].journal.end > 0
    assert (several.rig.directory / journal.name_of(1 - victim)).read_bytes() == before
    settle(other)
    targets = several.open(ensure(PARTITIONS))
    produce(several, targets, make_batch())
    assert ends(several, targets) == [4] * PARTITIONS


# ---- the first one, and the others ----


def test_the_others_begin_when_the_first_one_has_taken_over(make: Make) -> None:
    """Kill worker 0 before that, and check that the others wait until its successor has done it."""
    made = make(2)
    states, role = made.memory.words("states"), topology.log_worker(1)
    pid = os.fork()
    if pid == 0:
        os._exit(run(ProcessContext(role, made.memory, made.config)))
    try:
        beats = made.memory.counters(role)
        until(lambda: beats.turns > 1, "worker 1 turns while it waits")
        assert states.load(role) == State.STARTING
        assert made.memory.words("taken_over").load(IS_TAKEN_OVER) == 0
        first = made.start_worker(0)
        assert made.memory.words("taken_over").load(IS_TAKEN_OVER) == 1
        made.until(SUPERVISOR, lambda: states.load(role) == State.READY)
        end(first)
        made.processes.clear()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_who_waits_for_the_first_one_stops_when_told(make: Make) -> None:
    made = make(2)
    role = topology.log_worker(1)
    made.memory.words("orders").store(role, Order.STOP)
    pid = os.fork()
    if pid == 0:
        os._exit(run(ProcessContext(role, made.memory, made.config)))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert made.memory.words("states").load(role) == State.STOPPED


@pytest.mark.parametrize("said", [False, True])
def test_the_first_one_is_killed_right_at_its_word(make: Make, said: bool) -> None:
    """Check that a successor takes over again before the word, and has nothing to take over behind it."""
    directory = left_by(make, 2)
    sizes = lost(directory)
    made = make(2)
    if said:
        LogDirectory(0, directory, group=True, failed=False, worker=LogWorker(0, 2)).take_over(lambda _: None)
        made.memory.words("taken_over").store(IS_TAKEN_OVER, 1)
    several = Several(made)
    assert sizes_of(directory) == sizes
    assert made.memory.words("taken_over").load(IS_TAKEN_OVER) == 1
    assert ends(several, several.open(ensure(PARTITIONS))) == [3] * PARTITIONS


def test_what_was_closed_cleanly_is_known_to_all(make: Make) -> None:
    several = Several(make(3))
    produce(several, several.open(ensure(PARTITIONS)), make_batch())
    several.stop()
    several = Several(make(2))
    assert several.rig.memory.words("taken_over").load(CLEAN_DIRS) == 1
    assert [process.manager.dirs[0].clean for process in several.processes] == [True, True]
    several.succeed(1)
    assert not several.processes[1].manager.dirs[0].clean, "its predecessor may have written"


def test_without_one_of_them_there_is_no_mark(make: Make) -> None:
    several = Several(make(3))
    produce(several, several.open(ensure(PARTITIONS)), make_batch())
    end(several.processes.pop(1))
    directory = several.rig.directory
    several.stop()
    assert not (directory / CLEAN_SHUTDOWN).exists()


# ---- what they share ----


def test_checkpoints_have_the_lines_of_all(make: Make) -> None:
    several = Several(make(3))
    targets = several.open(ensure(PARTITIONS))
    for count in (1, 2):
        produce(several, targets, make_batch(), count)
        for process in several.processes:
            process.manager.checkpoints.write_high_watermarks()
        for process in several.processes:
            wait_for_io(process)
    found = read_offsets(several.rig.directory / HIGH_WATERMARKS)
    assert {key[1]: offset for key, offset in found.items() if key[0] == "t"} == dict.fromkeys(
        range(PARTITIONS), 3
    )
    # Those of a deleted topic go, one worker after the other, and nobody brings them back.
    for process in several.processes:
        at_once(process.manager.removing("t", TOPIC_ID))
        process.manager.checkpoints.write_stale()
        wait_for_io(process)
    assert {topic for topic, _ in read_offsets(several.rig.directory / HIGH_WATERMARKS)} == {METADATA_TOPIC}


def test_a_checkpoint_that_cannot_be_read_is_none_for_anybody(make: Make) -> None:
    """Check that a start ignores it, but a later write does not: it would lose the others' lines."""
    several = Several(make(2))
    targets = several.open(ensure(PARTITIONS))
    produce(several, targets, make_batch())
    several.stop()
    path = several.rig.directory / HIGH_WATERMARKS
    path.write_text("0\n99\n")
    several = Several(make(2))
    targets = several.open(ensure(PARTITIONS))
    assert [one.error for one in targets] == [0] * PARTITIONS
    several.checkpoint()
    assert {key[1] for key in read_offsets(path) if key[0] == "t"} == set(range(PARTITIONS))
    path.write_text("0\n99\n")
    produce(several, targets, make_batch())
    several.processes[1].manager.checkpoints.write_high_watermarks()
    wait_for_io(several.processes[1])
    assert path.read_text() == "0\n99\n"
    with pytest.raises(FatalError, match="failed"):
        several.processes[1]._take_failures()


def test_whoever_is_killed_with_a_checkpoint_in_hand_keeps_nobody_waiting(tmp_path: Path) -> None:
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        with alone_with(tmp_path):
            os.write(told, b".")
            signal.pause()
    os.read(ready, 1)
    got_it = threading.Event()

    def wait() -> None:
        with alone_with(tmp_path):
            got_it.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert not got_it.wait(0.05)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    waiting.join(PATIENCE_S)
    assert got_it.is_set()
    os.close(ready)
    os.close(told)


def test_marks_without_group_commit_are_settled_for_all_before_anybody_writes(make: Make) -> None:
    """Check that no worker vouches for high watermarks of log.flush.policy=os, which need not be on disk."""
    several = Several(make(2, log_flush_policy="os"))
    targets = several.open(ensure(PARTITIONS))
    produce(several, targets, make_batch(), 3)
    several.checkpoint()
    several.crash()
    directory = several.rig.directory
    lost(directory)
    several = Several(make(2))
    assert set(read_offsets(directory / HIGH_WATERMARKS).values()) <= {0}
    targets = several.open(ensure(PARTITIONS))
    assert [one.error for one in targets] == [0] * PARTITIONS
    assert ends(several, targets) == [0] * PARTITIONS


def on_two_directories(made: SeveralRig, **options: int) -> Several:
    spare = made.directory.with_name("spare")
    spare.mkdir()
    shutil.copy(made.directory / "meta.properties", spare)
    dirs = (str(made.directory), str(spare))
    made.config = type(made.config)(log_dirs=dirs, log_journal_bytes=1 << 20, **options)
    return Several(made)


def test_who_moves_a_partition_alone_has_the_whole_rate(make: Make) -> None:
    made = make(2)
    several = on_two_directories(made, replica_alter_log_dirs_io_max_bytes_per_second=1000)
    targets = several.open(ensure(4))

    def order_of(number: int) -> None:
        mine = next(one for one in targets if one.slot % 2 == number)
        to = 1 - made.partition(mine.slot).log_dir
        assert order(several.processes[number], to, mine.partition) == 0

    def rates() -> list[float]:
        return [process.replica_mover._bytes_per_s() for process in several.processes]

    order_of(0)
    assert rates()[0] == 1000
    order_of(1)
    assert rates() == [500, 500]
    first, second = several.processes
    turn_until(first, lambda: first.replica_mover.is_at_rest)
    assert rates()[1] == 1000
    order_of(0)
    end(second)
    made.memory.reset_rings_of(topology.log_worker(1))
    assert rates()[0] == 500, "its successor may go on with it"
    several.processes[1] = made.start_worker(1, incarnation=2)
    assert rates()[0] == 1000, "until it is up and has not"


def test_a_directory_that_fails_for_one_fails_for_all(make: Make) -> None:
    made = make(2)
    several = on_two_directories(made)
    targets = several.open(ensure(PARTITIONS))
    there = {one.partition for one in targets if made.partition(one.slot).log_dir == 1}
    assert 0 < len(there) < PARTITIONS
    several.processes[1].turn.storage_failed(1, errno.EIO)
    several.processes[1]._take_failures()
    assert made.memory.failed_dirs() == 2
    several.processes[0]._fail_broken_dirs()
    several.processes[0]._take_failures()
    several.settle()
    for one in targets:
        is_offline = bool(made.partition(one.slot).flags & PartitionFlag.PARTITION_OFFLINE)
        assert is_offline == (one.partition in there)
    assert several.processes[0].manager.dirs[1].failed
    several.succeed(0)
    assert several.processes[0].manager.dirs[1].failed, "a successor does not use it either"
