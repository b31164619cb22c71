"""Moves between the log directories of a log process that is stepped by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mpbroker.ipc import calls
from mpbroker.log.process import LogProcess
from mpbroker.log.replica_move import replica_copier
from mpbroker.storage import names
from mpbroker.storage.segments import segments_of
from tests.support.log_node import MakeNode, Node
from tests.support.log_rig import TOPIC_ID, ensure
from tests.support.log_writer import make_batch
from tests.support.polling import PATIENCE_S, until

STORAGE_ERROR, UNKNOWN, NOT_AVAILABLE = 56, 3, 9
SEGMENT_BYTES = "1048576"


def started(node: MakeNode, dirs: int = 2) -> tuple[Node, LogProcess]:
    made = node(dirs)
    return made, made.boot()


def filled(made: Node, count: int = 40, **configs: str) -> calls.EnsuredPartition:
    (target,) = made.open(ensure(segment_bytes=SEGMENT_BYTES, **configs))
    for sequence in range(count):
        assert made.produce(target, make_batch(producer=(3, 0, sequence), size=60_000)) == [0]
    return target


def ready_to_move(
    node: MakeNode, count: int = 40, **configs: str
) -> tuple[Node, LogProcess, calls.EnsuredPartition, int]:
    """Start a broker of two log directories with a partition in one of them; the last is the other one."""
    made, process = started(node)
    target = filled(made, count, **configs)
    return made, process, target, other(made, target)


def order(process: LogProcess, number: int, partition: int = 0, topic_id: bytes = TOPIC_ID) -> int:
    wanted = calls.MovePartition("t", partition, topic_id, number)
    steps = process.replica_mover.ordering(calls.MovePartitions([wanted]))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            (error,) = end.value.errors
            return int(error)


def turn_until(process: LogProcess, condition: Callable[[], bool]) -> None:
    def step() -> None:
        process.work(1)
        process.advance_tasks()
        process._do_housekeeping()

    until(condition, "what the process is stepped for", step)


def come_to_rest(process: LogProcess) -> None:
    turn_until(process, lambda: process.replica_mover.is_at_rest)


def move(process: LogProcess, number: int) -> None:
    assert order(process, number) == 0
    come_to_rest(process)


def started_again(made: Node, *, whole_broker: bool = True) -> tuple[LogProcess, calls.EnsuredPartition]:
    if whole_broker:
        made.boot()
    else:
        made.succeed()
    (target,) = made.open(ensure(segment_bytes=SEGMENT_BYTES))
    return made.process, target


def go_on(process: LogProcess) -> None:
    """Continue with what an earlier life has begun."""
    process.replica_mover.resume(["t"])
    come_to_rest(process)


def state_of(made: Node, target: calls.EnsuredPartition) -> tuple[int, int]:
    """Return the log directory that the partition is in, and its end."""
    return made.rig.partition(target.slot).log_dir, made.end_of(target)


def held_up(monkeypatch: pytest.MonkeyPatch, *, last: bool = True) -> tuple[threading.Event, threading.Event]:
    """The last pass of a copy, or those before it: that it has come so far, and what it waits for."""
    run, reached, goes_on = replica_copier.Copy.run, threading.Event(), threading.Event()

    def slow(self: replica_copier.Copy, wanted: replica_copier.Wanted) -> None:
        if wanted.is_last == last:
            reached.set()
            assert goes_on.wait(PATIENCE_S)
        run(self, wanted)

    monkeypatch.setattr(replica_copier.Copy, "run", slow)
    return reached, goes_on


def ask(made: Node, target: calls.EnsuredPartition, data: bytearray) -> None:
    """A produce, and one turn of the log worker."""
    made.rig.job([((target.slot, target.slot_generation, 5), data)])
    made.process.work(0)


def log_dir_of(made: Node, target: calls.EnsuredPartition) -> Path:
    return made.dirs[made.rig.partition(target.slot).log_dir]


def other(made: Node, target: calls.EnsuredPartition) -> int:
    return 1 - made.rig.partition(target.slot).log_dir


def contents(directory: Path) -> dict[str, bytes]:
    return {e.name: e.read_bytes() for e in directory.iterdir() if e.name != names.MOVED}


def log_bytes(directory: Path) -> bytes:
    return b"".join((directory / f"{base:020d}.log").read_bytes() for base in segments_of(directory))
