"""A move is killed at each step or stopped on the way, or a handler dies: it goes on, nothing is lost."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mpbroker.ipc.process import pack_order
from mpbroker.ipc.topology import LOG
from mpbroker.log.directories import future_replica
from mpbroker.log.replica_move import replica_copier
from tests.support.log_moves import (
    ask,
    go_on,
    held_up,
    log_bytes,
    log_dir_of,
    order,
    ready_to_move,
    started_again,
    state_of,
    turn_until,
)
from tests.support.log_node import MakeNode
from tests.support.log_writer import make_batch


class Killed(Exception):
    """Nothing more is written."""


STEPS = ["begun", "copied", "placed", "placed_unsynced", "set_aside", "unmarked"]


def kill_at(step: str, placed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies at that step. `placed`: where the partition is to be."""
    place, set_aside, unmark, run = (
        future_replica.place,
        future_replica.set_aside,
        future_replica.unmark,
        replica_copier.Copy.run,
    )

    def dying_run(self: replica_copier.Copy, wanted: replica_copier.Wanted) -> None:
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

    monkeypatch.setattr(replica_copier.Copy, "run", dying_run)
    monkeypatch.setattr(future_replica, "place", dying_place)
    monkeypatch.setattr(future_replica, "set_aside", dying_set_aside)
    monkeypatch.setattr(future_replica, "unmark", dying_unmark)


@pytest.mark.parametrize("whole_broker", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_each_step(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch, step: str, whole_broker: bool
) -> None:
    made, process, target, to = ready_to_move(node)
    data = log_bytes(log_dir_of(made, target) / "t-0")
    with monkeypatch.context() as patched:
        kill_at(step, made.dirs[to] / "t-0", patched)
        patched.setattr(process.replica_mover, "_has_copied", lambda _, copied: copied.result() is None)
        assert order(process, to) == 0
        with pytest.raises(Killed):
            turn_until(process, lambda: False)
    process, target = started_again(made, whole_broker=whole_broker)
    assert (target.error, made.end_of(target)) == (0, 40)
    assert log_bytes(log_dir_of(made, target) / "t-0") == data
    go_on(process)
    assert made.rig.partition(target.slot).log_dir == to, "what had begun goes on"
    assert log_bytes(made.dirs[to] / "t-0") == data
    assert made.produce(target, make_batch(producer=(3, 0, 40), size=60_000)) == [0]
    assert made.end_of(target) == 41
    assert not (made.dirs[1 - to] / "t-0").exists()


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_clean_stop_on_the_way(node: MakeNode, monkeypatch: pytest.MonkeyPatch, is_paused: bool) -> None:
    """Check that held produces are answered, and that an undecided move continues at the next start."""
    made, process, target, to = ready_to_move(node)
    with monkeypatch.context() as patched:
        reached, goes_on = held_up(patched, last=is_paused)
        assert order(process, to) == 0
        turn_until(process, reached.is_set)
        ask(made, target, make_batch(producer=(3, 0, 40), size=500))
        assert process.manager.logs[target.slot].is_paused == is_paused
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
    node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, process, target, to = ready_to_move(node)
    _, goes_on = held_up(monkeypatch)
    log = process.manager.logs[target.slot]
    assert order(process, to) == 0
    turn_until(process, lambda: log.is_paused)
    ask(made, target, make_batch(producer=(3, 0, 40), size=500))
    fence = pack_order(1, 1, made.rig.handler)
    made.rig.memory.words("fence_orders").store(LOG, fence)
    acks = made.rig.memory.words("fence_acks")
    for _ in range(3):
        process.obey_order()
        process.work(0)
    assert acks.load(LOG) != fence
    goes_on.set()

    def is_let_go() -> bool:
        process.obey_order()
        return acks.load(LOG) == fence

    turn_until(process, is_let_go)
    assert made.end_of(target) == 41
