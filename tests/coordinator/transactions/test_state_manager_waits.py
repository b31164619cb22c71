"""Requests for an id that wait for one another."""

from __future__ import annotations

import pytest

from mpbroker.coordinator.transactions.steps import TransactionMetadata
from mpbroker.protocol.errors import ErrorCode
from tests.support.transaction_rig import PARTITIONS, V2, TransactionRig, code_of, opened

T0, T1 = ("t", 0), ("t", 1)
NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS


def test_what_comes_meanwhile_waits_and_is_done_in_its_order(rig: TransactionRig) -> None:
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


def test_who_waits_for_too_long_is_told_so_in_time(rig: TransactionRig) -> None:
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


def test_a_check_of_what_is_known_waits_for_nothing_but_an_end(rig: TransactionRig) -> None:
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
def test_nothing_is_let_through_once_the_end_is_on_its_way(rig: TransactionRig, adds: bool) -> None:
    producer = opened(rig)
    rig.ask_end(producer)
    asked = rig.ask_check(producer, T0, adds=adds)
    assert asked not in rig.answers
    rig.decide()
    assert asked not in rig.answers
    rig.later(100)
    assert rig.answers[asked] is CONCURRENT


def test_an_end_waits_for_what_is_being_added(rig: TransactionRig) -> None:
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


def test_the_next_transaction_waits_for_the_markers_of_this_one(rig: TransactionRig) -> None:
    producer = opened(rig, adds=True)
    rig.ask_end(producer, version=V2)
    rig.decide()
    adding = rig.ask_check((1000, 1), T1, adds=True)
    rig.later(99)
    assert adding not in rig.answers
    rig.settle()
    assert rig.answers[adding].errors == [NONE]
    assert rig.value().partitions == {T1}


def test_whose_connection_is_gone_waits_no_more(rig: TransactionRig) -> None:
    opened(rig)
    waiter = rig.ask_init()
    assert rig.coordinator.waiters() == [waiter]
    rig.coordinator.abandon(waiter)
    assert rig.coordinator.waiters() == []
    assert code_of(rig.answers[waiter]) is ErrorCode.NETWORK_EXCEPTION
    rig.settle()
    assert rig.value().producer_epoch == 1, "the abort goes on, and nobody begins"


def test_what_is_done_for_one_looks_at_no_other_id(rig: TransactionRig) -> None:
    """Check that the cost is independent of other ids: there may be a hundred thousand of them."""
    opened(rig)
    waiter = rig.ask_init()
    other = TransactionMetadata("y")
    rig.coordinator.state.put(other)
    del other.pending_steps, other.transactional_id
    rig.coordinator.abandon(waiter)
    assert code_of(rig.answers[waiter]) is ErrorCode.NETWORK_EXCEPTION
    rig.coordinator.partitions.open(PARTITIONS)
    rig.load(0)
