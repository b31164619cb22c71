"""A partition moves from one log directory to another while it is appended to, and is killed at each step."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.process import pack_fence
from mpbroker.ipc.table import PartitionFlag
from mpbroker.ipc.topology import LOG
from mpbroker.log import copying, futures, names
from mpbroker.log.aborted import AbortedTransaction
from mpbroker.log.partition_log import segments_of
from mpbroker.log.process import LogProcess
from tests.log.node import Node, wait_for_helper
from tests.log.rig import TOPIC_ID, Reply, ensure
from tests.log.test_turn import settle
from tests.polling import PATIENCE_S, until

STORAGE_ERROR, UNKNOWN, NOT_AVAILABLE = 56, 3, 9
SEGMENT_BYTES = "1048576"


class Killed(Exception):
    """Nothing more is written."""


def started(node: Callable[..., Node], dirs: int = 2) -> tuple[Node, LogProcess]:
    made = node(dirs)
    return made, made.boot()


def filled(
    made: Node, batch: Callable[..., bytearray], count: int = 40, **configs: str
) -> calls.EnsuredPartition:
    (target,) = made.open(ensure(segment_bytes=SEGMENT_BYTES, **configs))
    for sequence in range(count):
        assert made.produce(target, batch(producer=(3, 0, sequence), size=60_000)) == [0]
    return target


def order(process: LogProcess, number: int, partition: int = 0, topic_id: bytes = TOPIC_ID) -> int:
    wanted = calls.MovePartition("t", partition, topic_id, number)
    steps = process.moving.ordering(calls.MovePartitions([wanted]))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            (error,) = end.value.errors
            return int(error)


def turn_until(process: LogProcess, condition: Callable[[], bool]) -> None:
    def step() -> None:
        process.work(1)
        process.do_chores()
        process._keep_house()

    until(condition, "what the process is stepped for", step)


def come_to_rest(process: LogProcess) -> None:
    turn_until(process, lambda: process.moving.is_at_rest)


def move(process: LogProcess, number: int) -> None:
    assert order(process, number) == 0
    come_to_rest(process)


def started_again(made: Node, *, whole_broker: bool = True) -> tuple[LogProcess, calls.EnsuredPartition]:
    if whole_broker:
        made.boot()
    else:
        made.succeed()
    assert made.process is not None
    (target,) = made.open(ensure(segment_bytes=SEGMENT_BYTES))
    return made.process, target


def go_on(process: LogProcess) -> None:
    """With what an earlier life has begun."""
    process.moving.resume(["t"])
    come_to_rest(process)


def state_of(made: Node, target: calls.EnsuredPartition) -> tuple[int, int]:
    """In which log directory it is, and its end."""
    return made.rig.partition(target.slot).log_dir, made.end_of(target)


def held_up(monkeypatch: pytest.MonkeyPatch, *, last: bool = True) -> tuple[threading.Event, threading.Event]:
    """The last pass of a copy, or those before it: that it has come so far, and what it waits for."""
    run, reached, goes_on = copying.Copy.run, threading.Event(), threading.Event()

    def slow(self: copying.Copy, wanted: copying.Wanted) -> None:
        if wanted.is_last == last:
            reached.set()
            assert goes_on.wait(PATIENCE_S)
        run(self, wanted)

    monkeypatch.setattr(copying.Copy, "run", slow)
    return reached, goes_on


def ask(made: Node, target: calls.EnsuredPartition, data: bytearray) -> None:
    """A produce, and one turn of the log worker."""
    made.rig.job([((target.slot, target.slot_generation, 5), data)])
    assert made.process is not None
    made.process.work(0)


def home_of(made: Node, target: calls.EnsuredPartition) -> Path:
    return made.dirs[made.rig.partition(target.slot).log_dir]


def other(made: Node, target: calls.EnsuredPartition) -> int:
    return 1 - made.rig.partition(target.slot).log_dir


def contents(directory: Path) -> dict[str, bytes]:
    return {e.name: e.read_bytes() for e in directory.iterdir() if e.name != names.MOVED}


def log_bytes(directory: Path) -> bytes:
    return b"".join((directory / f"{base:020d}.log").read_bytes() for base in segments_of(directory))


def test_it_is_the_same_in_another_directory_and_goes_on_there(
    node: Callable[..., Node], batch: Callable[..., bytearray]
) -> None:
    made, process = started(node)
    target = filled(made, batch)
    aborted = AbortedTransaction(9, 1, 2, 3)
    process.manager.logs[target.slot].add_aborted(aborted)
    before, old = contents(home_of(made, target) / "t-0"), home_of(made, target)
    assert {name.rpartition(".")[2] for name in before} >= {
        "log",
        "index",
        "timeindex",
        "txnindex",
        "snapshot",
    }
    published = process.manager.logs[target.slot].state.published
    move(process, other(made, target))
    new = home_of(made, target)
    assert new != old
    assert contents(new / "t-0") == before
    after = made.rig.partition(target.slot)
    assert after == published._replace(log_dir=after.log_dir)
    assert not (new / "t-0" / names.MOVED).exists()
    assert [e.name.rpartition(".")[2].partition("-")[2] for e in old.glob("t-0*")] == ["delete"]
    assert made.produce(target, batch(producer=(3, 0, 40), size=60_000)) == [0]
    assert made.produce(target, batch(producer=(3, 0, 39), size=60_000)) == [0], "a duplicate is known"
    assert made.end_of(target) == 41
    made.checkpoint()
    assert "t 0 41" in made.offsets(number=after.log_dir)
    assert not [line for line in made.offsets(number=1 - after.log_dir) if line.startswith("t ")]


def test_producers_append_all_the_while(node: Callable[..., Node], batch: Callable[..., bytearray]) -> None:
    """Back and forth; what is asked for in the last moment waits, and is answered when that is over."""
    made, process = started(node)
    target = filled(made, batch)
    sequence, came_late, places = 40, 0, set()
    offsets: list[int] = []

    def take() -> None:
        for reply in made.rig.replies():
            assert reply.results[0].error == 0
            offsets.append(reply.results[0].base_offset)

    for _ in range(6):
        assert order(process, other(made, target)) == 0
        while not process.moving.is_at_rest:
            if sequence - 40 - len(offsets) < 4:
                data = batch(producer=(3, 0, sequence), size=500)
                made.rig.job([((target.slot, target.slot_generation, 5), data)])
                sequence += 1
                came_late += process.manager.logs[target.slot].is_held
            process.work(0)
            process.do_chores()
            take()
        places.add(home_of(made, target))
    settle(process)
    take()
    assert offsets == list(range(40, sequence))
    assert came_late > 0, "none came in the last moment"
    assert len(places) == 2
    assert made.end_of(target) == sequence
    made.stop()
    _, target = started_again(made)
    assert (target.error, made.end_of(target)) == (0, sequence)


def test_errors(node: Callable[..., Node], batch: Callable[..., bytearray]) -> None:
    made, process = started(node, 3)
    target = filled(made, batch, 3)
    here = made.rig.partition(target.slot).log_dir
    assert order(process, here) == 0
    assert process.moving.is_at_rest, "it is there"
    assert order(process, 1, topic_id=bytes(16), partition=7) == UNKNOWN
    assert order(process, 1, topic_id=bytes(range(1, 17))) == NOT_AVAILABLE
    process.turn.storage_failed((here + 1) % 3, errno.EIO)
    process._take_failures()
    assert order(process, (here + 1) % 3) == STORAGE_ERROR
    assert order(process, (here + 2) % 3) == STORAGE_ERROR, "Kafka: none while a directory is offline"
    process.turn.storage_failed(here, errno.EIO)
    assert order(process, (here + 2) % 3) == STORAGE_ERROR


def test_a_partition_is_made_where_it_was_wanted(node: Callable[..., Node]) -> None:
    made, process = started(node)
    for number in range(4):
        order(process, 1, partition=number, topic_id=bytes(16))
    opened = made.open(ensure(5))
    assert [made.rig.partition(one.slot).log_dir for one in opened] == [1, 1, 1, 1, 0]


def test_another_order_replaces_the_first_and_one_to_where_it_is_ends_it(
    node: Callable[..., Node], batch: Callable[..., bytearray]
) -> None:
    made, process = started(node, 3)
    target = filled(made, batch)
    here = made.rig.partition(target.slot).log_dir
    one, two = (number for number in range(3) if number != here)
    assert order(process, one) == 0
    assert [p.log_dir for p in process.moving.tell().partitions] == [one]
    assert order(process, one) == 0
    assert len(list(made.dirs[one].glob("*-future"))) == 1
    assert order(process, two) == 0
    assert [p.log_dir for p in process.moving.tell().partitions] == [two]
    assert not list(made.dirs[one].glob("*-future"))
    assert order(process, here) == 0
    assert process.moving.tell().partitions == []
    come_to_rest(process)
    wait_for_helper(process)
    assert made.rig.partition(target.slot).log_dir == here
    assert not [name for number in (one, two) for name in made.names(number) if name.startswith("t-0")]


def test_a_deleted_topic_takes_its_future_replica_along(
    node: Callable[..., Node], batch: Callable[..., bytearray]
) -> None:
    made, process = started(node)
    target = filled(made, batch, file_delete_delay_ms="0")
    assert order(process, other(made, target)) == 0
    process.manager.remove("t", TOPIC_ID)
    come_to_rest(process)
    turn_until(process, lambda: not [*made.dirs[0].glob("t-*"), *made.dirs[1].glob("t-*")])


STEPS = ["begun", "copied", "placed", "placed_unsynced", "set_aside", "unmarked"]


def kill_at(step: str, placed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies at that step. `placed`: where the partition is to be."""
    place, set_aside, unmark, run = futures.place, futures.set_aside, futures.unmark, copying.Copy.run

    def dying_run(self: copying.Copy, wanted: copying.Wanted) -> None:
        if step == "begun":
            raise Killed
        run(self, wanted)
        if step == "copied":
            raise Killed

    def dying_place(future: Path, current: Path) -> None:
        if step == "placed_unsynced":
            future.rename(current)
            raise Killed
        place(future, current)
        if step == "placed":
            raise Killed

    def dying_set_aside(directory: Path) -> Path:
        gone = set_aside(directory)
        if step == "set_aside":
            raise Killed
        return gone

    def dying_unmark(directory: Path) -> None:
        unmark(directory)
        if step == "unmarked" and directory == placed:
            raise Killed

    monkeypatch.setattr(copying.Copy, "run", dying_run)
    monkeypatch.setattr(futures, "place", dying_place)
    monkeypatch.setattr(futures, "set_aside", dying_set_aside)
    monkeypatch.setattr(futures, "unmark", dying_unmark)


@pytest.mark.parametrize("whole_broker", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_each_step(
    node: Callable[..., Node],
    batch: Callable[..., bytearray],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    whole_broker: bool,
) -> None:
    made, process = started(node)
    target = filled(made, batch)
    data, to = log_bytes(home_of(made, target) / "t-0"), other(made, target)
    with monkeypatch.context() as patched:
        kill_at(step, made.dirs[to] / "t-0", patched)
        patched.setattr(process.moving, "_has_copied", lambda _, copied: copied.result() is None)
        assert order(process, to) == 0
        with pytest.raises(Killed):
            turn_until(process, lambda: False)
    process, target = started_again(made, whole_broker=whole_broker)
    assert (target.error, made.end_of(target)) == (0, 40)
    assert log_bytes(home_of(made, target) / "t-0") == data
    go_on(process)
    assert made.rig.partition(target.slot).log_dir == to, "what had begun goes on"
    assert log_bytes(made.dirs[to] / "t-0") == data
    assert made.produce(target, batch(producer=(3, 0, 40), size=60_000)) == [0]
    assert made.end_of(target) == 41
    assert not (made.dirs[1 - to] / "t-0").exists()


def test_a_full_disk_is_waited_for(
    node: Callable[..., Node], batch: Callable[..., bytearray], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, process = started(node)
    target = filled(made, batch)
    to = other(made, target)
    monkeypatch.setattr("mpbroker.log.moving.TRY_AGAIN_S", 0.01)
    tries = []

    def full(_fd: int, _data: bytes, position: int) -> None:
        tries.append(position)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(copying, "_write", full)
        assert order(process, to) == 0
        turn_until(process, lambda: len(tries) > 2)
        assert made.produce(target, batch(producer=(3, 0, 40), size=60_000)) == [0]
        assert [p.lag for p in process.moving.tell().partitions] == [41]
    come_to_rest(process)
    assert state_of(made, target) == (to, 41)


def test_a_target_that_fails_ends_the_move(
    node: Callable[..., Node], batch: Callable[..., bytearray], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, process = started(node)
    target = filled(made, batch)
    to = other(made, target)
    here = 1 - to
    if here != 0:
        move(process, 0)
        to, here = 1, 0

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(copying, "_write", broken)
        assert order(process, to) == 0
        come_to_rest(process)
    process._take_failures()
    assert process.turn.failed_dirs == 1 << to
    assert made.rig.partition(target.slot).flags == PartitionFlag.PARTITION_LIVE
    assert made.produce(target, batch(producer=(3, 0, 40), size=60_000)) == [0]
    process, target = started_again(made)
    go_on(process)
    assert state_of(made, target) == (to, 41), "repaired, it goes on"


def test_damage_is_not_copied(
    node: Callable[..., Node], batch: Callable[..., bytearray], caplog: pytest.LogCaptureFixture
) -> None:
    made, process = started(node)
    target = filled(made, batch)
    path = home_of(made, target) / "t-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[2500] ^= 1
    path.write_bytes(data)
    to = other(made, target)
    assert order(process, to) == 0
    come_to_rest(process)
    assert made.rig.partition(target.slot).log_dir == 1 - to
    assert "the CRC does not match" in caplog.text
    assert "mpbroker log repair" in caplog.text
    assert not list(made.dirs[to].glob("*-future"))


def test_producers_do_not_wait_for_a_target_that_is_slow(
    node: Callable[..., Node], batch: Callable[..., bytearray], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, process = started(node)
    target = filled(made, batch)
    to = other(made, target)
    _, goes_on = held_up(monkeypatch)
    monkeypatch.setattr("mpbroker.log.moving.HELD_MOST_S", PATIENCE_S)
    log = process.manager.logs[target.slot]
    assert order(process, to) == 0
    turn_until(process, lambda: log.is_held)
    ask(made, target, batch(producer=(3, 0, 40), size=500))
    assert (made.rig.replies(), log.is_held) == ([], True)
    monkeypatch.setattr("mpbroker.log.moving.HELD_MOST_S", 0)
    replies: list[Reply] = []
    turn_until(process, lambda: bool(replies.extend(made.rig.replies()) or replies))
    assert not log.is_held
    assert [reply.results[0].error for reply in replies] == [0]
    assert made.rig.partition(target.slot).log_dir != to
    goes_on.set()
    monkeypatch.setattr("mpbroker.log.moving.HELD_MOST_S", 20)
    come_to_rest(process)
    assert state_of(made, target) == (to, 41)


def test_what_is_about_to_get_another_name_is_not_taken_for_empty(
    node: Callable[..., Node], batch: Callable[..., bytearray]
) -> None:
    """Segments of before the start are looked at by name, and what has none is very old."""
    made, _ = started(node)
    filled(made, batch)
    process, target = started_again(made)
    log = process.manager.logs[target.slot]
    assert [segment.size for segment in log.sealed] == [-1] * len(log.sealed) != []
    log.is_swapping = True
    for _ in process.deletion.looking():
        pass
    assert [segment.size for segment in log.sealed] == [-1] * len(log.sealed)
    log.is_swapping = False
    for _ in process.deletion.looking():
        pass
    assert all(segment.size > 0 for segment in log.sealed)


@pytest.mark.parametrize("is_held", [False, True])
def test_a_clean_stop_on_the_way(
    node: Callable[..., Node],
    batch: Callable[..., bytearray],
    monkeypatch: pytest.MonkeyPatch,
    is_held: bool,
) -> None:
    """What waits for the last moment is answered; what is not decided goes on at the next start."""
    made, process = started(node)
    target = filled(made, batch)
    to = other(made, target)
    with monkeypatch.context() as patched:
        reached, goes_on = held_up(patched, last=is_held)
        assert order(process, to) == 0
        turn_until(process, reached.is_set)
        ask(made, target, batch(producer=(3, 0, 40), size=500))
        assert process.manager.logs[target.slot].is_held == is_held
        threading.Timer(0.05, goes_on.set).start()
        made.stop()
    assert [reply.results[0].error for reply in made.rig.replies()] == [0]
    assert (made.dirs[1 - to] / "t-0").is_dir()
    assert (made.dirs[1 - to] / ".kafka_cleanshutdown").exists()
    process, target = started_again(made)
    assert made.end_of(target) == 41
    go_on(process)
    assert state_of(made, target) == (to, 41)


def test_a_handler_that_died_is_let_go_of_when_its_jobs_have_been_appended(
    node: Callable[..., Node], batch: Callable[..., bytearray], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, process = started(node)
    target = filled(made, batch)
    _, goes_on = held_up(monkeypatch)
    log = process.manager.logs[target.slot]
    assert order(process, other(made, target)) == 0
    turn_until(process, lambda: log.is_held)
    ask(made, target, batch(producer=(3, 0, 40), size=500))
    fence = pack_fence(1, 1, made.rig.handler)
    made.rig.memory.words("fence_orders").store(LOG, fence)
    acks = made.rig.memory.words("fence_acks")
    for _ in range(3):
        process.obey_fence()
        process.work(0)
    assert acks.load(LOG) != fence
    goes_on.set()

    def is_let_go() -> bool:
        process.obey_fence()
        return acks.load(LOG) == fence

    turn_until(process, is_let_go)
    assert made.end_of(target) == 41


def test_a_topic_that_is_deleted_in_the_last_moment_is_gone(
    node: Callable[..., Node], batch: Callable[..., bytearray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its slot of the table is another partition's by then."""
    made, process = started(node)
    target = filled(made, batch, file_delete_delay_ms="0")
    place, reached, goes_on = futures.place, threading.Event(), threading.Event()

    def slow(future: Path, current: Path) -> None:
        reached.set()
        assert goes_on.wait(PATIENCE_S)
        place(future, current)

    monkeypatch.setattr(futures, "place", slow)
    assert order(process, other(made, target)) == 0
    turn_until(process, reached.is_set)
    threading.Timer(0.05, goes_on.set).start()
    process.moving.topic_goes()
    process.manager.remove("t", TOPIC_ID)
    process.manager._slots._unused = process.manager.table.slots
    new_id = bytes(range(1, 17))
    (new,) = made.open(calls.EnsureTopic("u", new_id, [0], {}, 5, 0))
    assert (new.slot, new.error) == (target.slot, 0)
    come_to_rest(process)
    assert made.rig.partition(new.slot).topic_id == new_id
    assert process.turn.failed_dirs == 0
    turn_until(process, lambda: not [*made.dirs[0].glob("t-*"), *made.dirs[1].glob("t-*")])
