"""A partition moves from one log directory to another while it is appended to."""

from __future__ import annotations

import errno
import threading
from itertools import cycle
from pathlib import Path

import pytest

from mpbroker.ipc import calls
from mpbroker.log.directories import future_replica
from mpbroker.log.replica_move import replica_copier, replica_mover
from mpbroker.records.validation import at_once
from mpbroker.storage import names
from mpbroker.storage.remote_segments import RemoteSegment, read_remote_segments, write_remote_segments
from mpbroker.storage.transaction_index import AbortedTransaction
from tests.support.log_moves import (
    NOT_AVAILABLE,
    STORAGE_ERROR,
    UNKNOWN,
    ask,
    come_to_rest,
    contents,
    filled,
    held_up,
    log_dir_of,
    move,
    order,
    other,
    ready_to_move,
    started,
    started_again,
    state_of,
    turn_until,
)
from tests.support.log_node import MakeNode, wait_for_io
from tests.support.log_rig import TOPIC_ID, Reply, ensure
from tests.support.log_writer import T0, make_batch
from tests.support.polling import PATIENCE_S
from tests.support.stepped_log import settle


def test_it_is_the_same_in_another_directory_and_goes_on_there(node: MakeNode) -> None:
    made, process, target, to = ready_to_move(node)
    aborted = AbortedTransaction(9, 1, 2, 3)
    process.manager.logs[target.slot].add_aborted(aborted)
    before, old = contents(log_dir_of(made, target) / "t-0"), log_dir_of(made, target)
    assert {name.rpartition(".")[2] for name in before} >= {
        "log",
        "index",
        "timeindex",
        "txnindex",
        "snapshot",
    }
    published = process.manager.logs[target.slot].state.published
    move(process, to)
    new = log_dir_of(made, target)
    assert new != old
    assert contents(new / "t-0") == before
    after = made.rig.partition(target.slot)
    assert after == published._replace(log_dir=after.log_dir)
    assert not (new / "t-0" / names.MOVED).exists()
    assert [e.name.rpartition(".")[2].partition("-")[2] for e in old.glob("t-0*")] == ["delete"]
    assert made.produce(target, make_batch(producer=(3, 0, 40), size=60_000)) == [0]
    assert made.produce(target, make_batch(producer=(3, 0, 39), size=60_000)) == [0], "a duplicate is known"
    assert made.end_of(target) == 41
    made.checkpoint()
    assert "t 0 41" in made.offsets(number=after.log_dir)
    assert not [line for line in made.offsets(number=1 - after.log_dir) if line.startswith("t ")]


def test_producers_append_all_the_while(node: MakeNode) -> None:
    """Move a partition back and forth, and check that held produces are answered at the end of each move."""
    made, process, target, _ = ready_to_move(node)
    sequence, came_late, places = 40, 0, set()
    offsets: list[int] = []

    def take() -> None:
        for reply in made.rig.replies():
            assert reply.results[0].error == 0
            offsets.append(reply.results[0].base_offset)

    for _ in range(6):
        assert order(process, other(made, target)) == 0
        # In every second turn nothing comes, and the process waits: the copier has the processor.
        for comes in cycle((True, False)):
            if process.replica_mover.is_at_rest:
                break
            if comes and sequence - 40 - len(offsets) < 4:
                data = make_batch(producer=(3, 0, sequence), size=500)
                made.rig.job([((target.slot, target.slot_generation, 5), data)])
                sequence += 1
                came_late += process.manager.logs[target.slot].is_paused
            process.work(1)
            process.advance_tasks()
            take()
        places.add(log_dir_of(made, target))
    settle(process)
    take()
    assert offsets == list(range(40, sequence))
    assert came_late > 0, "none came in the last moment"
    assert len(places) == 2
    assert made.end_of(target) == sequence
    made.stop()
    _, target = started_again(made)
    assert (target.error, made.end_of(target)) == (0, sequence)


@pytest.mark.parametrize(("there", "is_late"), [(4, True), (60, False)])
def test_one_that_grows_as_fast_as_it_is_copied_does_not_leave_the_disk_to_others(
    there: int, is_late: bool, node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, process, target, to = ready_to_move(node, there)
    reached, goes_on = held_up(monkeypatch, last=False)
    run, passes = replica_copier.Copy.run, []

    def recorded(self: replica_copier.Copy, wanted: replica_copier.Wanted) -> None:
        if not wanted.is_last:
            passes.append(self.is_late)
        run(self, wanted)

    monkeypatch.setattr(replica_copier.Copy, "run", recorded)
    assert order(process, to) == 0
    turn_until(process, reached.is_set)
    for sequence in range(there, there + 20):
        assert made.produce(target, make_batch(producer=(3, 0, sequence), size=60_000)) == [0]
    goes_on.set()
    come_to_rest(process)
    assert passes == [False, is_late]
    assert state_of(made, target) == (to, there + 20)


def test_nobody_waits_for_the_end_of_a_pass_that_is_too_slow(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, process, target, to = ready_to_move(node)
    put, reached, goes_on = replica_copier.Copy._put, threading.Event(), threading.Event()
    copies: list[replica_copier.Copy] = []

    def slow(self: replica_copier.Copy, target: int, position: int, data: bytes, there: int) -> None:
        if self.end > 0 and not reached.is_set():
            copies.append(self)
            reached.set()
            assert goes_on.wait(PATIENCE_S)
        put(self, target, position, data, there)

    monkeypatch.setattr(replica_copier.Copy, "_put", slow)
    monkeypatch.setattr(replica_mover, "MUCH_BYTES", 1)
    assert order(process, to) == 0
    turn_until(process, reached.is_set)
    assert not copies[0].is_late
    for sequence in range(40, 60):
        assert made.produce(target, make_batch(producer=(3, 0, sequence), size=60_000)) == [0]
    turn_until(process, lambda: copies[0].is_late)
    goes_on.set()
    come_to_rest(process)
    assert made.end_of(target) == 60


def test_errors(node: MakeNode) -> None:
    made, process = started(node, 3)
    target = filled(made, 3)
    here = made.rig.partition(target.slot).log_dir
    assert order(process, here) == 0
    assert process.replica_mover.is_at_rest, "it is there"
    assert order(process, 1, topic_id=bytes(16), partition=7) == UNKNOWN
    assert order(process, 1, topic_id=bytes(range(1, 17))) == NOT_AVAILABLE
    process.turn.storage_failed((here + 1) % 3, errno.EIO)
    process._take_failures()
    assert order(process, (here + 1) % 3) == STORAGE_ERROR
    assert order(process, (here + 2) % 3) == STORAGE_ERROR, "Kafka: none while a directory is offline"
    process.turn.storage_failed(here, errno.EIO)
    assert order(process, (here + 2) % 3) == STORAGE_ERROR


def test_a_partition_is_made_where_it_was_wanted(node: MakeNode) -> None:
    made, process = started(node)
    for number in range(4):
        order(process, 1, partition=number, topic_id=bytes(16))
    opened = made.open(ensure(5))
    assert [made.rig.partition(one.slot).log_dir for one in opened] == [1, 1, 1, 1, 0]


def test_a_move_is_told_until_the_table_has_it(node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who follows it would take it for given up between the rename and then."""
    made, process = started(node)
    to = other(made, filled(made))
    place, told = future_replica.place, []

    def placed(future: Path, current: Path) -> None:
        place(future, current)
        told.append([one.log_dir for one in process.replica_mover.moves().partitions])

    monkeypatch.setattr(future_replica, "place", placed)
    move(process, to)
    assert told == [[to]]
    assert process.replica_mover.moves().partitions == []


def test_another_order_replaces_the_first_and_one_to_where_it_is_ends_it(node: MakeNode) -> None:
    made, process = started(node, 3)
    target = filled(made)
    here = made.rig.partition(target.slot).log_dir
    one, two = (number for number in range(3) if number != here)
    assert order(process, one) == 0
    assert [p.log_dir for p in process.replica_mover.moves().partitions] == [one]
    assert order(process, one) == 0
    assert len(list(made.dirs[one].glob("*-future"))) == 1
    assert order(process, two) == 0
    assert [p.log_dir for p in process.replica_mover.moves().partitions] == [two]
    assert not list(made.dirs[one].glob("*-future"))
    assert order(process, here) == 0
    assert process.replica_mover.moves().partitions == []
    come_to_rest(process)
    wait_for_io(process)
    assert made.rig.partition(target.slot).log_dir == here
    assert not [name for number in (one, two) for name in made.names(number) if name.startswith("t-0")]


def test_a_deleted_topic_takes_its_future_replica_along(node: MakeNode) -> None:
    made, process, _, to = ready_to_move(node, file_delete_delay_ms="0")
    assert order(process, to) == 0
    at_once(process.manager.removing("t", TOPIC_ID))
    come_to_rest(process)
    turn_until(process, lambda: not [*made.dirs[0].glob("t-*"), *made.dirs[1].glob("t-*")])


def test_producers_do_not_wait_for_a_target_that_is_slow(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, process, target, to = ready_to_move(node)
    _, goes_on = held_up(monkeypatch)
    monkeypatch.setattr("mpbroker.log.replica_move.replica_mover.PAUSED_MOST_S", PATIENCE_S)
    log = process.manager.logs[target.slot]
    assert order(process, to) == 0
    turn_until(process, lambda: log.is_paused)
    ask(made, target, make_batch(producer=(3, 0, 40), size=500))
    assert (made.rig.replies(), log.is_paused) == ([], True)
    monkeypatch.setattr("mpbroker.log.replica_move.replica_mover.PAUSED_MOST_S", 0)
    replies: list[Reply] = []
    turn_until(process, lambda: bool(replies.extend(made.rig.replies()) or replies))
    assert not log.is_paused
    assert [reply.results[0].error for reply in replies] == [0]
    assert made.rig.partition(target.slot).log_dir != to
    goes_on.set()
    monkeypatch.setattr("mpbroker.log.replica_move.replica_mover.PAUSED_MOST_S", 20)
    come_to_rest(process)
    assert state_of(made, target) == (to, 41)


def test_what_is_about_to_get_another_name_is_not_taken_for_empty(node: MakeNode) -> None:
    """Check that deletion skips segments during a swap: one without a name would seem very old."""
    made, _ = started(node)
    filled(made)
    process, target = started_again(made)
    log = process.manager.logs[target.slot]
    assert [segment.size for segment in log.sealed] == [-1] * len(log.sealed) != []
    log.is_swapping = True
    for _ in process.deletion.deleting_expired():
        pass
    assert [segment.size for segment in log.sealed] == [-1] * len(log.sealed)
    log.is_swapping = False
    for _ in process.deletion.deleting_expired():
        pass
    assert all(segment.size > 0 for segment in log.sealed)


def test_a_topic_that_is_deleted_as_its_move_ends_leaves_no_files(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check also that a new topic, which has its slot of the table, is not affected."""
    made, process, target, to = ready_to_move(node, file_delete_delay_ms="0")
    place, reached, goes_on = future_replica.place, threading.Event(), threading.Event()

    def slow(future: Path, current: Path) -> None:
        reached.set()
        assert goes_on.wait(PATIENCE_S)
        place(future, current)

    monkeypatch.setattr(future_replica, "place", slow)
    assert order(process, to) == 0
    turn_until(process, reached.is_set)
    threading.Timer(0.05, goes_on.set).start()
    at_once(process.manager.removing("t", TOPIC_ID, process.replica_mover.topic_goes()))
    process.manager._slots._unused = process.manager.table.slots
    new_id = bytes(range(1, 17))
    (new,) = made.open(calls.EnsureTopic("u", new_id, [0], {}, 5, 0))
    assert (new.slot, new.error) == (target.slot, 0)
    come_to_rest(process)
    assert made.rig.partition(new.slot).topic_id == new_id
    assert process.turn.failed_dirs == 0
    turn_until(process, lambda: not [*made.dirs[0].glob("t-*"), *made.dirs[1].glob("t-*")])


def test_the_file_of_remote_segments_moves_too(node: MakeNode) -> None:
    made, process, target, number = ready_to_move(node)
    log = process.manager.logs[target.slot]
    stored = [RemoteSegment(0, log.sealed[1].base, 1_000_000, T0, bytes(16))]
    write_remote_segments(log.directory, stored)
    log.remote_version = 3
    move(process, number)
    assert log.directory.parent == made.dirs[number]
    assert read_remote_segments(log.directory) == tuple(stored)
    # The tier may have written another one meanwhile: what is here is read again.
    assert log.remote_version == 0
    (log.directory / names.REMOTE_SEGMENTS).unlink()
    move(process, 1 - number)
    assert not (log.directory / names.REMOTE_SEGMENTS).exists()
