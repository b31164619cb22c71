"""Transactions when something is in the way: other requests, batches, time, the log, a death."""

from __future__ import annotations

import pytest

from mpbroker.coordinator.runtime.partitions import PartitionState
from mpbroker.coordinator.transactions.transaction import Transaction
from mpbroker.protocol.errors import ErrorCode
from tests.coordinator.transaction_world import (
    COORDINATOR_EPOCH,
    PARTITIONS,
    V2,
    World,
    code_of,
    opened,
)

T0, T1 = ("t", 0), ("t", 1)
NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR
REFUSED = ErrorCode.KAFKA_STORAGE_ERROR
HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS


# --- one after the other


def test_what_comes_meanwhile_waits_and_is_done_in_its_order() -> None:
    world = World()
    producer = world.init()
    first, second = world.ask_add(producer, T0), world.ask_add(producer, T1)
    known, ending = world.ask_check(producer, T1), world.ask_end(producer)
    late = world.ask_add(producer, ("t", 2))
    world.append_round()
    assert world.added(first) is NONE
    assert not {second, known, ending, late} & set(world.answers)
    world.append_round()
    assert world.added(second) is NONE
    assert not {ending, late} & set(world.answers)
    world.append_round()
    assert code_of(world.answers[ending]) is NONE
    world.coordinator.end_hold(world.answers[known].hold)
    assert late not in world.answers
    world.settle()
    assert world.added(late) is NONE
    assert world.value().partitions == {("t", 2)}


def test_who_waits_for_too_long_is_told_so_in_time() -> None:
    world = World()
    producer = world.init()
    writing = world.ask_add(producer, T0)
    waiting = world.ask_add(producer, T1)
    world.later(60)
    later = world.ask_end(producer)
    world.later(39)
    assert waiting not in world.answers
    world.later(1)
    assert world.added(waiting) is CONCURRENT
    assert later not in world.answers
    world.later(60)
    assert code_of(world.answers[later]) is CONCURRENT
    assert writing not in world.answers, "it is on its way, and may well get there"
    world.settle()
    assert world.added(writing) is NONE
    assert world.value().partitions == {T0}


def test_a_check_of_what_is_known_waits_for_nothing_but_an_end() -> None:
    world = World()
    producer = opened(world)
    world.ask_add(producer, T1)
    assert world.answers[world.ask_check(producer, T0)].errors == [NONE]
    assert world.answers[world.ask_check(producer, T0, adds=True)].errors == [NONE]
    assert world.check_offsets(producer) == [], "it may be in what is being added"
    world.settle()
    world.ask_end(producer)
    assert world.ask_check(producer, T0) not in world.answers
    assert world.ask_check(producer, T0, adds=True) not in world.answers


@pytest.mark.parametrize("adds", [True, False])
def test_nothing_is_let_through_once_the_end_is_on_its_way(adds: bool) -> None:
    world = World()
    producer = opened(world)
    world.ask_end(producer)
    asked = world.ask_check(producer, T0, adds=adds)
    assert asked not in world.answers
    world.decide()
    assert asked not in world.answers
    world.later(100)
    assert world.answers[asked] is CONCURRENT


def test_an_end_waits_for_what_is_being_added() -> None:
    world = World()
    producer = world.init()
    adding, ending = world.ask_add(producer, T0), world.ask_end(producer, False)
    assert ending not in world.answers
    world.settle()
    assert (world.added(adding), code_of(world.answers[ending])) == (NONE, NONE)
    adding, ending = world.ask_add(producer, T1), world.ask_end(producer)
    assert ending not in world.answers
    world.settle()
    assert (world.added(adding), code_of(world.answers[ending])) == (NONE, NONE)
    assert [(marker.is_commit, partitions) for marker, partitions in world.markers] == [
        (False, {T0}),
        (True, {T1}),
    ]


def test_the_next_transaction_waits_for_the_markers_of_this_one() -> None:
    world = World()
    producer = opened(world, adds=True)
    world.ask_end(producer, version=V2)
    world.decide()
    adding = world.ask_check((1000, 1), T1, adds=True)
    world.later(99)
    assert adding not in world.answers
    world.settle()
    assert world.answers[adding].errors == [NONE]
    assert world.value().partitions == {T1}


def test_whose_connection_is_gone_waits_no_more() -> None:
    world = World()
    opened(world)
    waiter = world.ask_init()
    assert world.coordinator.waiters() == [waiter]
    world.coordinator.abandon(waiter)
    assert world.coordinator.waiters() == []
    assert code_of(world.answers[waiter]) is ErrorCode.NETWORK_EXCEPTION
    world.settle()
    assert world.value().producer_epoch == 1, "the abort goes on, and nobody begins"


def test_what_is_done_for_one_looks_at_no_other_id() -> None:
    """There may be a hundred thousand, and as many connections that end, or partitions that are read."""
    world = World()
    opened(world)
    waiter = world.ask_init()
    other = Transaction("y")
    world.coordinator.manager.put(other)
    del other.turns, other.transactional_id
    world.coordinator.abandon(waiter)
    assert code_of(world.answers[waiter]) is ErrorCode.NETWORK_EXCEPTION
    world.coordinator.opened(PARTITIONS)
    world.load(0)


# --- time


def test_a_transaction_that_is_open_for_too_long_is_aborted() -> None:
    world = World()
    producer = opened(world)
    world.later(55_000)
    world.settle()
    assert world.state == "Ongoing"
    world.later(15_000)
    world.settle()
    assert world.state == "CompleteAbort"
    ((marker, _),) = world.markers
    assert (marker.producer_epoch, marker.is_commit) == (1, False)
    assert world.end(producer) is ErrorCode.PRODUCER_FENCED


def test_an_abort_that_is_refused_is_tried_again() -> None:
    world = World()
    opened(world)
    world.later(75_000)
    world.append_round(REFUSED)
    assert world.state == "Ongoing"
    world.later(10_000)
    world.settle()
    assert (world.state, world.value().producer_epoch) == ("CompleteAbort", 1)


def test_an_id_that_nobody_uses_is_forgotten() -> None:
    world = World()
    unused, used = world.init(), world.init(name="y")
    world.later(WEEK_MS - 2 * HOUR_MS)
    assert world.add(used, T0, name="y") is NONE
    world.later(2 * HOUR_MS)
    # Its tombstone is on its way: whoever asks meanwhile waits for it.
    adding, beginning = world.ask_add(unused, T0), world.ask_init()
    assert adding not in world.answers
    world.settle()
    assert world.added(adding) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.began(beginning) == (1002, 0)
    assert world.records_of()[1] is None
    assert world.coordinator.manager.find("y") is not None


def test_an_id_that_is_being_used_is_not_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    producer = world.init()
    world.later(WEEK_MS - 1)
    adding = world.ask_add(producer, T0)
    world.later(1)
    world.settle()
    assert world.added(adding) is NONE
    assert not caplog.records


def test_an_id_whose_tombstone_is_refused_is_not_forgotten() -> None:
    world = World()
    producer = world.init()
    world.later(WEEK_MS)
    waiting = world.ask_add(producer, T0)
    world.append_round(REFUSED)
    world.settle()
    assert world.added(waiting) is NONE


# --- the log


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_what_is_refused_has_never_been(refused: ErrorCode, told: ErrorCode) -> None:
    world = World()
    beginning = world.ask_init()
    world.append_round(refused)
    assert code_of(world.answers[beginning]) is told
    assert not len(world.coordinator.manager)
    producer = opened(world)
    adding = world.ask_add(producer, T1)
    world.append_round(refused)
    assert world.added(adding) is told
    assert world.value().partitions == {T0}
    ending = world.ask_end(producer)
    world.append_round(refused)
    assert code_of(world.answers[ending]) is told
    assert world.state == "Ongoing"
    another = world.ask_init()
    world.append_round(refused)
    assert code_of(world.answers[another]) is told, "it has not fenced anybody"
    assert world.end(producer) is NONE


def test_that_it_is_over_is_written_as_often_as_it_takes() -> None:
    world = World()
    producer = opened(world)
    assert world.end(producer) is NONE
    assert world.add(producer, T0) is NONE
    world.ask_end(producer)
    world.decide()
    world.write_markers()
    for _ in range(3):
        assert world.append_round(REFUSED)
        assert world.state == "PrepareCommit"
        assert not world.append_round()
        world.later(100)
    world.settle()
    assert world.state == "CompleteCommit"
    assert len(world.markers) == 2, "they are written once"


@pytest.mark.parametrize("commit", [True, False])
def test_what_is_decided_gets_its_markers_from_the_next_coordinator(commit: bool) -> None:
    world = World()
    producer = opened(world)
    world.ask_end(producer, commit)
    world.decide()
    world = world.restarted()
    assert world.state == ("PrepareCommit" if commit else "PrepareAbort")
    world.settle()
    assert world.markers == [((1000, 0, COORDINATOR_EPOCH, commit), {T0})]
    assert world.end(producer, commit) is NONE


def test_markers_have_the_epoch_in_which_the_log_was_read() -> None:
    world = World()
    producer = opened(world)
    world.ask_end(producer)
    world.decide()
    world.reload()
    world.settle()
    assert world.markers == [((1000, 0, COORDINATOR_EPOCH + 1, True), {T0})]


def test_whoever_waits_when_the_log_is_gone_is_told_to_ask_again() -> None:
    world = World()
    producer = opened(world)
    writing, waiting = world.ask_end(producer), world.ask_add(producer, T1)
    world.reload()
    assert code_of(world.answers[writing]) is NOT_COORDINATOR
    assert world.added(waiting) is NOT_COORDINATOR
    assert world.end(producer) is NONE


def test_a_producer_id_that_comes_after_the_log_is_gone_is_nobodys() -> None:
    world = World()
    world.delayed_ids = []
    waiter = world.ask_init()
    (then,) = world.delayed_ids
    world.reload()
    then(5)
    assert code_of(world.answers[waiter]) is NOT_COORDINATOR
    assert not len(world.coordinator.manager)


def test_a_partition_that_cannot_be_read() -> None:
    world = World()
    producer = opened(world)
    partition = world.coordinator.partition_for("x")
    waiting = [world.ask_end(producer), world.ask_add(producer, T1)]
    world.coordinator.failed(partition)
    world.settle()
    assert {code_of(world.answers[waiting[0]]), world.added(waiting[1])} == {NOT_COORDINATOR}
    assert code_of(world.answers[world.ask_init()]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.check(producer) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    other = next(name for name in "yzabc" if world.coordinator.partition_for(name) != partition)
    assert world.init(name=other) == (1001, 0)
    assert world.coordinator.reopened(partition)
    assert not world.coordinator.reopened(partition)
    assert code_of(world.answers[world.ask_init()]) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.load(partition)
    world.settle()
    assert world.state == "CompleteCommit", "the record of the end had got there"


def test_before_anything_is_known() -> None:
    world = World()
    world.coordinator.unload()
    assert world.coordinator.partitions is None
    assert code_of(world.answers[world.ask_init()]) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert world.check((1, 0)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.coordinator.opened(0)
    assert code_of(world.answers[world.ask_init()]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.add((1, 0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    world.coordinator.opened(PARTITIONS)
    assert world.coordinator.partitions == [PartitionState.LOADING] * PARTITIONS
