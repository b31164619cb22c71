"""A log directory fails in the last moment of a move: the partition is in one place, and whole."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.table import PartitionFlag
from mpbroker.log import futures
from mpbroker.log.process import LogProcess
from tests.log.node import Node
from tests.log.rig import ensure
from tests.log.test_moving import (
    SEGMENT_BYTES,
    STORAGE_ERROR,
    filled,
    move,
    order,
    other,
    started,
    turn_until,
)


def opened(made: Node) -> tuple[calls.EnsuredPartition, tuple[int, int, int]]:
    """And its error, its end, its log directory."""
    (target,) = made.open(ensure(segment_bytes=SEGMENT_BYTES))
    return target, (target.error, made.end_of(target), made.rig.partition(target.slot).log_dir)


def filled_in(
    number: int, node: Callable[..., Node], batch: Callable[..., bytearray]
) -> tuple[Node, LogProcess, calls.EnsuredPartition]:
    """A partition of 40 records, in this one of the two log directories."""
    made, process = started(node)
    target = filled(made, batch)
    if other(made, target) == number:
        move(process, number)
    return made, process, target


def move_where(
    process: LogProcess, to: int, monkeypatch: pytest.MonkeyPatch, **steps: Callable[..., object]
) -> None:
    """Steps of the move are done like this."""
    with monkeypatch.context() as patched:
        for name, step in steps.items():
            patched.setattr(futures, name, step)
        assert order(process, to) == 0
        turn_until(process, lambda: process.moving.is_at_rest)


def broken(_: Path) -> Path:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def without_its_sync(future: Path, current: Path) -> None:
    future.rename(current)
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("on_disk", ["its new name", "its old name", "nothing"])
def test_a_target_that_fails_in_the_last_step_does_not_have_the_partition(
    node: Callable[..., Node], batch: Callable[..., bytearray], monkeypatch: pytest.MonkeyPatch, on_disk: str
) -> None:
    """Between the change of its name and the sync of that: whatever a start finds, the other one counts."""
    made, process, target = filled_in(0, node, batch)
    move_where(process, 1, monkeypatch, place=without_its_sync)
    process._take_failures()
    assert process.turn.failed_dirs == 0b10
    assert made.produce(target, batch(producer=(3, 0, 40), size=60_000)) == [0]
    made.succeed()
    assert opened(made)[1] == (0, 41, 0)
    made.crash()
    if on_disk == "its old name":
        (made.dirs[1] / "t-0").rename(made.dirs[1] / futures.new_name("t", 0))
    elif on_disk == "nothing":
        shutil.rmtree(made.dirs[1] / "t-0")
    process = made.boot()
    target, state = opened(made)
    assert state == (0, 41, 0)
    process.moving.resume(["t"])
    assert [path.name for path in made.dirs[1].glob("t-0*") if not path.name.endswith("-delete")] == []
    move(process, 1)
    assert made.produce(target, batch(producer=(3, 0, 41), size=60_000)) == [0]
    made.boot()
    assert opened(made)[1] == (0, 42, 1)


def test_both_fail_in_the_last_step_and_the_next_start_chooses(
    node: Callable[..., Node], batch: Callable[..., bytearray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is appended to either until it is known which of them is the partition."""
    made, process, target = filled_in(0, node, batch)
    move_where(process, 1, monkeypatch, place=without_its_sync, stay=broken)
    assert made.rig.partition(target.slot).flags & PartitionFlag.PARTITION_OFFLINE
    assert made.produce(target, batch(producer=(3, 0, 40), size=60_000)) == [STORAGE_ERROR]
    made.boot()
    assert opened(made)[1] == (0, 40, 1)
    assert not (made.dirs[0] / "t-0").exists()


def test_a_source_that_fails_in_the_last_step_is_not_needed(
    node: Callable[..., Node], batch: Callable[..., bytearray], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, process, target = filled_in(1, node, batch)
    move_where(process, 0, monkeypatch, set_aside=broken)
    process._take_failures()
    assert process.turn.failed_dirs == 0b10
    assert made.produce(target, batch(producer=(3, 0, 40), size=60_000)) == [0]
    assert (made.dirs[1] / "t-0").exists()
    made.boot()
    assert opened(made)[1] == (0, 41, 0)
    assert not (made.dirs[1] / "t-0").exists()
