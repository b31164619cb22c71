"""What fails while a partition moves, until the last moment: it is in one place, and whole."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.table import PartitionFlag
from mpbroker.log.directories import future_replica
from mpbroker.log.io import background_io
from mpbroker.log.process import LogProcess
from mpbroker.log.replica_move import replica_copier, replica_mover
from mpbroker.records.validation import at_once
from tests.support.full_disk import failing_with
from tests.support.log_moves import (
    SEGMENT_BYTES,
    STORAGE_ERROR,
    come_to_rest,
    go_on,
    log_dir_of,
    move,
    order,
    ready_to_move,
    started,
    started_again,
    state_of,
    turn_until,
)
from tests.support.log_node import MakeNode, Node, again
from tests.support.log_rig import TOPIC_ID, ensure
from tests.support.log_writer import make_batch
from tests.support.polling import PATIENCE_S


def opened(made: Node) -> tuple[calls.EnsuredPartition, tuple[int, int, int]]:
    """Open the partition. Returns it, and (error, end, log directory)."""
    (target,) = made.open(ensure(segment_bytes=SEGMENT_BYTES))
    return target, (target.error, made.end_of(target), made.rig.partition(target.slot).log_dir)


def filled_in(number: int, node: MakeNode) -> tuple[Node, LogProcess, calls.EnsuredPartition]:
    """A partition of 40 records, in this one of the two log directories."""
    made, process, target, to = ready_to_move(node)
    if to == number:
        move(process, number)
    return made, process, target


def move_where(
    process: LogProcess, to: int, monkeypatch: pytest.MonkeyPatch, **steps: Callable[..., object]
) -> None:
    """Steps of the move are done like this."""
    with monkeypatch.context() as patched:
        for name, step in steps.items():
            patched.setattr(future_replica, name, step)
        assert order(process, to) == 0
        turn_until(process, lambda: process.replica_mover.is_at_rest)


broken = failing_with(errno.EIO)


def without_its_sync(future: Path, current: Path) -> None:
    future.rename(current)
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("on_disk", ["its new name", "its old name", "nothing"])
def test_a_target_that_fails_in_the_last_step_does_not_have_the_partition(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch, on_disk: str
) -> None:
    """Check a failure between the rename and its sync: the next start takes the other directory."""
    made, process, target = filled_in(0, node)
    move_where(process, 1, monkeypatch, place=without_its_sync)
    process._take_failures()
    assert process.turn.failed_dirs == 0b10
    assert made.produce(target, make_batch(producer=(3, 0, 40), size=60_000)) == [0]
    made.succeed()
    assert opened(made)[1] == (0, 41, 0)
    made.crash()
    if on_disk == "its old name":
        (made.dirs[1] / "t-0").rename(made.dirs[1] / future_replica.new_name("t", 0))
    elif on_disk == "nothing":
        shutil.rmtree(made.dirs[1] / "t-0")
    process = made.boot()
    target, state = opened(made)
    assert state == (0, 41, 0)
    process.replica_mover.resume(["t"])
    assert [path.name for path in made.dirs[1].glob("t-0*") if not path.name.endswith("-delete")] == []
    move(process, 1)
    assert made.produce(target, make_batch(producer=(3, 0, 41), size=60_000)) == [0]
    made.boot()
    assert opened(made)[1] == (0, 42, 1)


def test_both_fail_in_the_last_step_and_the_next_start_chooses(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that nothing is appended before it is known which of the two is the partition."""
    made, process, target = filled_in(0, node)
    move_where(process, 1, monkeypatch, place=without_its_sync, stay=broken)
    assert made.rig.partition(target.slot).flags & PartitionFlag.PARTITION_OFFLINE
    assert made.produce(target, make_batch(producer=(3, 0, 40), size=60_000)) == [STORAGE_ERROR]
    made.boot()
    assert opened(made)[1] == (0, 40, 1)
    assert not (made.dirs[0] / "t-0").exists()


def test_a_source_that_fails_in_the_last_step_is_not_needed(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, process, target = filled_in(1, node)
    move_where(process, 0, monkeypatch, set_aside=broken)
    process._take_failures()
    assert process.turn.failed_dirs == 0b10
    assert made.produce(target, make_batch(producer=(3, 0, 40), size=60_000)) == [0]
    assert (made.dirs[1] / "t-0").exists()
    made.boot()
    assert opened(made)[1] == (0, 41, 0)
    assert not (made.dirs[1] / "t-0").exists()


@pytest.mark.parametrize("short", [0, 1], ids=["source", "target"])
def test_descriptors_that_run_short_in_the_last_step_are_waited_for(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch, short: int
) -> None:
    """Check that nothing was renamed by then: to rename it once more would fail for good."""
    made, process, target = filled_in(0, node)
    real, left = os.open, [1]

    def opened(path: Path, flags: int, *more: int, **named: int) -> int:
        is_ours = threading.current_thread().name.startswith("log mover") and path == made.dirs[short]
        if is_ours and left and flags & os.O_DIRECTORY:
            left.pop()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, flags, *more, **named)

    monkeypatch.setattr(replica_mover, "TRY_AGAIN_S", 0.01)
    monkeypatch.setattr(os, "open", opened)
    move(process, 1)
    assert not left
    assert process.turn.failed_dirs == 0
    assert state_of(made, target) == (1, 40)
    assert not (made.dirs[0] / "t-0").exists()


def test_an_old_replica_that_waits_for_its_rename_is_no_other_topic_s(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a topic that is deleted, and made again where the old replica was."""
    made, process, _ = filled_in(0, node)
    now_s, failed = [0.0], []

    def full(directory: Path) -> Path:
        failed.append(directory)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(replica_mover, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    with monkeypatch.context() as patched:
        patched.setattr(future_replica, "set_aside", full)
        assert order(process, 1) == 0
        turn_until(process, lambda: len(failed) == 2 and not process.replica_mover._placing)
    at_once(process.manager.removing("t", TOPIC_ID, process.replica_mover.topic_goes()))
    process.manager.directory_selection.prefer(("t", 0), 0)
    (new,) = made.open(again())
    now_s[0] = 3600.0
    come_to_rest(process)
    assert (made.dirs[0] / "t-0").is_dir()
    assert made.produce(new, make_batch()) == [0]


def test_a_topic_that_goes_waits_for_the_renames_of_all_moves(node: MakeNode) -> None:
    _, process = started(node)
    mover, begins, goes_on = process.replica_mover, threading.Event(), threading.Event()
    first = mover._done(lambda: begins.wait(PATIENCE_S))
    second = mover._done(lambda: goes_on.wait(PATIENCE_S))
    next(first)
    next(second)
    begins.set()
    assert at_once(first) is None
    going = mover.topic_goes()
    next(going)
    goes_on.set()
    assert at_once(second) is None
    at_once(going)


def test_a_segment_that_goes_while_it_is_copied_is_not_waited_for(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the copy is tried again at once.

    It waits only if nothing was copied in between, since there would be no end to it otherwise.
    """
    made, process, target, to = ready_to_move(node)
    monkeypatch.setattr("mpbroker.log.replica_move.replica_mover.TRY_AGAIN_S", 3600.0)
    run, passes = replica_copier.Copy.run, []

    def changing(self: replica_copier.Copy, wanted: replica_copier.Wanted) -> None:
        passes.append(wanted)
        run(self, wanted)
        if len(passes) == 1:
            raise replica_copier.SourceChanged("retention")

    monkeypatch.setattr(replica_copier.Copy, "run", changing)
    move(process, to)
    assert state_of(made, target) == (to, 40)


def test_checkpoints_that_cannot_be_written_are_waited_for_however_much_was_copied(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the copier waits: on a full disk each try would sync a pass in vain."""
    made, process, target, to = ready_to_move(node)
    passed, steps = replica_mover.ReplicaMover._passed, []

    def seen(self: replica_mover.ReplicaMover, move: replica_mover.Move) -> Generator[None, None, bool]:
        steps.append("a pass")
        return (yield from passed(self, move))

    def failing(*_: object) -> Generator[None, None, bool]:
        steps.append("checkpoints")
        yield
        return False

    monkeypatch.setattr("mpbroker.log.replica_move.replica_mover.TRY_AGAIN_S", 3600.0)
    monkeypatch.setattr(replica_mover.ReplicaMover, "_passed", seen)
    monkeypatch.setattr(replica_mover.ReplicaMover, "_is_written_down", failing)
    assert order(process, to) == 0
    turn_until(process, lambda: "checkpoints" in steps)
    for sequence in range(40, 60):
        assert made.produce(target, make_batch(producer=(3, 0, sequence), size=60_000)) == [0]
        process.advance_tasks()
        process._do_housekeeping()
    assert steps == ["a pass", "checkpoints"]


def test_a_full_disk_is_waited_for(node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    made, process, target, to = ready_to_move(node)
    monkeypatch.setattr("mpbroker.log.replica_move.replica_mover.TRY_AGAIN_S", 0.01)
    tries = []

    def full(_fd: int, _data: memoryview, position: int) -> float:
        tries.append(position)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(background_io, "write", full)
        assert order(process, to) == 0
        turn_until(process, lambda: len(tries) > 2)
        assert made.produce(target, make_batch(producer=(3, 0, 40), size=60_000)) == [0]
        assert [p.lag for p in process.replica_mover.moves().partitions] == [41]
    come_to_rest(process)
    assert state_of(made, target) == (to, 41)


def test_a_target_that_fails_ends_the_move(node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    made, process, target = filled_in(0, node)
    with monkeypatch.context() as patched:
        patched.setattr(background_io, "write", broken)
        assert order(process, 1) == 0
        come_to_rest(process)
    process._take_failures()
    assert process.turn.failed_dirs == 0b10
    assert made.rig.partition(target.slot).flags == PartitionFlag.PARTITION_LIVE
    assert made.produce(target, make_batch(producer=(3, 0, 40), size=60_000)) == [0]
    process, target = started_again(made)
    go_on(process)
    assert state_of(made, target) == (1, 41), "repaired, it goes on"


def test_damage_is_not_copied(node: MakeNode, caplog: pytest.LogCaptureFixture) -> None:
    made, process, target, to = ready_to_move(node)
    path = log_dir_of(made, target) / "t-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[2500] ^= 1
    path.write_bytes(data)
    move(process, to)
    assert made.rig.partition(target.slot).log_dir == 1 - to
    assert "the CRC does not match" in caplog.text
    assert "mpbroker log repair" in caplog.text
    assert not list(made.dirs[to].glob("*-future"))
