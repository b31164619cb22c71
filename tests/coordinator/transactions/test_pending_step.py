"""Transactions when something is in the way: other requests, batches, time, the log, a death."""

from __future__ import annotations

import pytest

from mpbroker.coordinator.runtime.partitions import PartitionState
from mpbroker.coordinator.transactions.transaction import TransactionMetadata
from mpbroker.protocol.errors import ErrorCode
from tests.support.transaction_rig import (
    COORDINATOR_EPOCH,
    PARTITIONS,
    V2,
    TransactionRig,
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
    rig = TransactionRig()
    producer = rig.init()
    first, second = rig.ask_add(producer, T0), rig.ask_add(producer, T1)
    known, ending = rig.ask_check(producer, T1), rig.ask_end(producer)
    late = rig.ask_add(producer, ("t", 2))
    rig.append_round()
    assert rig.added(first) is NONE
    assert not {second, known, ending, late} & set(rig.answers)
    rig.append_round()
    assert rig.added(second) is NONE
    assert not {ending, late} & set(rig.answers)
    rig.append_round()
    assert code_of(rig.answers[ending]) is NONE
    rig.coordinator.end_txn.holds.end(rig.answers[known].hold)
    assert late not in rig.answers
    rig.settle()
    assert rig.added(late) is NONE
    assert rig.value().partitions == {("t", 2)}


def test_who_waits_for_too_long_is_told_so_in_time() -> None:
    rig = TransactionRig()
    producer = rig.init()
    writing = rig.ask_add(producer, T0)
    waiting = rig.ask_add(producer, T1)
    rig.later(60)
    later = rig.ask_end(producer)
    rig.later(39)
    assert waiting not in rig.answers
    rig.later(1)
    assert rig.added(waiting) is CONCURRENT
    assert later not in rig.answers
    rig.later(60)
    assert code_of(rig.answers[later]) is CONCURRENT
    assert writing not in rig.answers, "it is on its way, and may well get there"
    rig.settle()
    assert rig.added(writing) is NONE
    assert rig.value().partitions == {T0}


def test_a_check_of_what_is_known_waits_for_nothing_but_an_end() -> None:
    rig = TransactionRig()
    producer = opened(rig)
    rig.ask_add(producer, T1)
    assert rig.answers[rig.ask_check(producer, T0)].errors == [NONE]
    assert rig.answers[rig.ask_check(producer, T0, adds=True)].errors == [NONE]
    assert rig.check_offsets(producer) == [], "it may be in what is being added"
    rig.settle()
    rig.ask_end(producer)
    assert rig.ask_check(producer, T0) not in rig.answers
    assert rig.ask_check(producer, T0, adds=True) not in rig.answers


@pytest.mark.parametrize("adds", [True, False])
def test_nothing_is_let_through_once_the_end_is_on_its_way(adds: bool) -> None:
    rig = TransactionRig()
    producer = opened(rig)
    rig.ask_end(producer)
    asked = rig.ask_check(producer, T0, adds=adds)
    assert asked not in rig.answers
    rig.decide()
    assert asked not in rig.answers
    rig.later(100)
    assert rig.answers[asked] is CONCURRENT


def test_an_end_waits_for_what_is_being_added() -> None:
    rig = TransactionRig()
    producer = rig.init()
    adding, ending = rig.ask_add(producer, T0), rig.ask_end(producer, False)
    assert ending not in rig.answers
    rig.settle()
    assert (rig.added(adding), code_of(rig.answers[ending])) == (NONE, NONE)
    adding, ending = rig.ask_add(producer, T1), rig.ask_end(producer)
    assert ending not in rig.answers
    rig.settle()
    assert (rig.added(adding), code_of(rig.answers[ending])) == (NONE, NONE)
    assert [(marker.is_commit, partitions) for marker, partitions in rig.markers] == [
        (False, {T0}),
        (True, {T1}),
    ]


def test_the_next_transaction_waits_for_the_markers_of_this_one() -> None:
    rig = TransactionRig()
    producer = opened(rig, adds=True)
    rig.ask_end(producer, version=V2)
    rig.decide()
    adding = rig.ask_check((1000, 1), T1, adds=True)
    rig.later(99)
    assert adding not in rig.answers
    rig.settle()
    assert rig.answers[adding].errors == [NONE]
    assert rig.value().partitions == {T1}


def test_whose_connection_is_gone_waits_no_more() -> None:
    rig = TransactionRig()
    opened(rig)
    waiter = rig.ask_init()
    assert rig.coordinator.waiters() == [waiter]
    rig.coordinator.abandon(waiter)
    assert rig.coordinator.waiters() == []
    assert code_of(rig.answers[waiter]) is ErrorCode.NETWORK_EXCEPTION
    rig.settle()
    assert rig.value().producer_epoch == 1, "the abort goes on, and nobody begins"


def test_what_is_done_for_one_looks_at_no_other_id() -> None:
    """There may be a hundred thousand, and as many connections that end, or partitions that are read."""
    rig = TransactionRig()
    opened(rig)
    waiter = rig.ask_init()
    other = TransactionMetadata("y")
    rig.coordinator.state.put(other)
    del other.pending_steps, other.transactional_id
    rig.coordinator.abandon(waiter)
    assert code_of(rig.answers[waiter]) is ErrorCode.NETWORK_EXCEPTION
    rig.coordinator.partitions.open(PARTITIONS)
    rig.load(0)


# --- time


def test_a_transaction_that_is_open_for_too_long_is_aborted() -> None:
    rig = TransactionRig()
    producer = opened(rig)
    rig.later(55_000)
    rig.settle()
    assert rig.state == "Ongoing"
    rig.later(15_000)
    rig.settle()
    assert rig.state == "CompleteAbort"
    ((marker, _),) = rig.markers
    assert (marker.producer_epoch, marker.is_commit) == (1, False)
    assert rig.end(producer) is ErrorCode.PRODUCER_FENCED


def test_an_abort_that_is_refused_is_tried_again() -> None:
    rig = TransactionRig()
    opened(rig)
    rig.later(75_000)
    rig.append_round(REFUSED)
    assert rig.state == "Ongoing"
    rig.later(10_000)
    rig.settle()
    assert (rig.state, rig.value().producer_epoch) == ("CompleteAbort", 1)


def test_an_id_that_nobody_uses_is_forgotten() -> None:
    rig = TransactionRig()
    unused, used = rig.init(), rig.init(name="y")
    rig.later(WEEK_MS - 2 * HOUR_MS)
    assert rig.add(used, T0, name="y") is NONE
    rig.later(2 * HOUR_MS)
    # Its tombstone is on its way: whoever asks meanwhile waits for it.
    adding, beginning = rig.ask_add(unused, T0), rig.ask_init()
    assert adding not in rig.answers
    rig.settle()
    assert rig.added(adding) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert rig.began(beginning) == (1002, 0)
    assert rig.records_of()[1] is None
    assert rig.coordinator.state.find("y") is not None


def test_an_id_that_is_being_used_is_not_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    rig = TransactionRig()
    producer = rig.init()
    rig.later(WEEK_MS - 1)
    adding = rig.ask_add(producer, T0)
    rig.later(1)
    rig.settle()
    assert rig.added(adding) is NONE
    assert not caplog.records


def test_an_id_whose_tombstone_is_refused_is_not_forgotten() -> None:
    rig = TransactionRig()
    producer = rig.init()
    rig.later(WEEK_MS)
    waiting = rig.ask_add(producer, T0)
    rig.append_round(REFUSED)
    rig.settle()
    assert rig.added(waiting) is NONE


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
    rig = TransactionRig()
    beginning = rig.ask_init()
    rig.append_round(refused)
    assert code_of(rig.answers[beginning]) is told
    assert not len(rig.coordinator.state)
    producer = opened(rig)
    adding = rig.ask_add(producer, T1)
    rig.append_round(refused)
    assert rig.added(adding) is told
    assert rig.value().partitions == {T0}
    ending = rig.ask_end(producer)
    rig.append_round(refused)
    assert code_of(rig.answers[ending]) is told
    assert rig.state == "Ongoing"
    another = rig.ask_init()
    rig.append_round(refused)
    assert code_of(rig.answers[another]) is told, "it has not fenced anybody"
    assert rig.end(producer) is NONE


def test_that_it_is_over_is_written_as_often_as_it_takes() -> None:
    rig = TransactionRig()
    producer = opened(rig)
    assert rig.end(producer) is NONE
    assert rig.add(producer, T0) is NONE
    rig.ask_end(producer)
    rig.decide()
    rig.write_markers()
    for _ in range(3):
        assert rig.append_round(REFUSED)
        assert rig.state == "PrepareCommit"
        assert not rig.append_round()
        rig.later(100)
    rig.settle()
    assert rig.state == "CompleteCommit"
    assert len(rig.markers) == 2, "they are written once"


@pytest.mark.parametrize("commit", [True, False])
def test_what_is_decided_gets_its_markers_from_the_next_coordinator(commit: bool) -> None:
    rig = TransactionRig()
    producer = opened(rig)
    rig.ask_end(producer, commit)
    rig.decide()
    rig = rig.restarted()
    assert rig.state == ("PrepareCommit" if commit else "PrepareAbort")
    rig.settle()
    assert rig.markers == [((1000, 0, COORDINATOR_EPOCH, commit), {T0})]
    assert rig.end(producer, commit) is NONE


def test_markers_have_the_epoch_in_which_the_log_was_read() -> None:
    rig = TransactionRig()
    producer = opened(rig)
    rig.ask_end(producer)
    rig.decide()
    rig.reload()
    rig.settle()
    assert rig.markers == [((1000, 0, COORDINATOR_EPOCH + 1, True), {T0})]


def test_whoever_waits_when_the_log_is_gone_is_told_to_ask_again() -> None:
    rig = TransactionRig()
    producer = opened(rig)
    writing, waiting = rig.ask_end(producer), rig.ask_add(producer, T1)
    rig.reload()
    assert code_of(rig.answers[writing]) is NOT_COORDINATOR
    assert rig.added(waiting) is NOT_COORDINATOR
    assert rig.end(producer) is NONE


def test_a_producer_id_that_comes_after_the_log_is_gone_is_nobodys() -> None:
    rig = TransactionRig()
    rig.delayed_ids = []
    waiter = rig.ask_init()
    (then,) = rig.delayed_ids
    rig.reload()
    then(5)
    assert code_of(rig.answers[waiter]) is NOT_COORDINATOR
    assert not len(rig.coordinator.state)


def test_a_partition_that_cannot_be_read() -> None:
    rig = TransactionRig()
    producer = opened(rig)
    partition = rig.coordinator.partitions.partition_for("x")
    waiting = [rig.ask_end(producer), rig.ask_add(producer, T1)]
    rig.coordinator.state.fail(partition)
    rig.settle()
    assert {code_of(rig.answers[waiting[0]]), rig.added(waiting[1])} == {NOT_COORDINATOR}
    assert code_of(rig.answers[rig.ask_init()]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert rig.check(producer) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    other = next(name for name in "yzabc" if rig.coordinator.partitions.partition_for(name) != partition)
    assert rig.init(name=other) == (1001, 0)
    assert rig.coordinator.partitions.reopen(partition)
    assert not rig.coordinator.partitions.reopen(partition)
    assert code_of(rig.answers[rig.ask_init()]) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    rig.load(partition)
    rig.settle()
    assert rig.state == "CompleteCommit", "the record of the end had got there"


def test_before_anything_is_known() -> None:
    rig = TransactionRig()
    rig.coordinator.unload()
    assert rig.coordinator.partitions.states is None
    assert code_of(rig.answers[rig.ask_init()]) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert rig.check((1, 0)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    rig.coordinator.partitions.open(0)
    assert code_of(rig.answers[rig.ask_init()]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert rig.add((1, 0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    rig.coordinator.partitions.open(PARTITIONS)
    assert rig.coordinator.partitions.states == [PartitionState.LOADING] * PARTITIONS
