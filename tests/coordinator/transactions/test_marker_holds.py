"""Batches on their way into the log hold the markers of their transaction back."""

from __future__ import annotations

import pytest

from mpbroker.ipc.calls import CheckedTransaction
from mpbroker.protocol.errors import ErrorCode
from tests.support.transaction_rig import TransactionRig, opened

T0 = ("t", 0)
NONE = ErrorCode.NONE


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_of_tv1_does_not_overtake_a_batch(rig: TransactionRig, commit: bool) -> None:
    producer = opened(rig)
    holds = [rig.check(producer).hold for _ in range(2)]
    assert len(set(holds)) == 2
    assert rig.end(producer, commit) is NONE
    assert not rig.markers
    rig.coordinator.end_txn.holds.end(holds[0])
    rig.coordinator.end_txn.holds.end(holds[0])
    assert not rig.sending
    rig.coordinator.end_txn.holds.end(holds[1])
    rig.settle()
    assert [marker.is_commit for marker, _ in rig.markers] == [commit]
    assert not len(rig.coordinator.end_txn.holds)


def test_who_adds_as_tv2_does_may_end_as_tv1_does(rig: TransactionRig) -> None:
    """Check that markers wait after Produce v12 with EndTxn v4, which leaves the epoch as it is."""
    producer = rig.init()
    hold = rig.check(producer, T0, adds=True).hold
    assert hold
    assert rig.end(producer) is NONE
    assert not rig.markers
    rig.coordinator.end_txn.holds.end(hold)
    rig.settle()
    assert rig.state == "CompleteCommit"
    assert rig.check(producer, T0, adds=True).hold, "it may do so again"


def test_whose_epoch_is_bumped_holds_nothing(rig: TransactionRig) -> None:
    producer = rig.init()
    assert rig.check(producer, T0, adds=True).hold, "how it ends is not known yet"
    bumped = rig.end_v2(producer)
    assert rig.state == "CompleteCommit", "the epoch keeps out what comes late"
    for _ in range(2):
        assert rig.check(bumped, T0, adds=True) == CheckedTransaction([NONE])
        bumped = rig.end_v2(bumped)
    another = rig.init()
    assert rig.check(another, T0, adds=True).hold
    assert rig.end_v2(another)
    rig.reload()
    assert rig.check((another[0], another[1] + 1), T0, adds=True).hold, "it is not known any more"


def test_a_hold_of_one_id_is_no_other_ids_affair(rig: TransactionRig) -> None:
    producer = opened(rig)
    assert rig.check(producer).hold
    other = rig.init(name="y")
    assert rig.add(other, T0, name="y") is NONE
    assert rig.end(other, name="y") is NONE
    assert rig.value("y").state.label == "CompleteCommit"


def test_what_a_dead_handler_has_held_ends_when_its_batches_are_in_the_log(rig: TransactionRig) -> None:
    producer = opened(rig)
    gone, here = rig.ask_check(producer), rig.ask_check(producer)
    assert rig.end(producer) is NONE
    rig.coordinator.end_txn.holds.end_all_of(lambda waiter: waiter == gone)
    rig.settle()
    assert not rig.markers
    rig.coordinator.end_txn.holds.end_all_of(lambda waiter: waiter == here)
    rig.settle()
    assert rig.state == "CompleteCommit"


def test_what_is_held_stays_held_while_the_log_is_read_again(rig: TransactionRig) -> None:
    producer = opened(rig)
    hold = rig.check(producer).hold
    assert rig.end(producer) is NONE
    rig.reload()
    rig.settle()
    assert not rig.markers
    rig.coordinator.end_txn.holds.end(hold)
    rig.settle()
    assert rig.state == "CompleteCommit"


def test_what_an_earlier_coordinator_has_granted_holds_all_of_tv1(rig: TransactionRig) -> None:
    producer = opened(rig)
    rig.ask_end(producer)
    rig.decide()
    rig = rig.restarted(has_earlier_holds=True)
    bumped = rig.init(name="y")
    assert rig.check(bumped, T0, adds=True, name="y").errors == [NONE]
    assert rig.end_v2(bumped, name="y") == (bumped[0], 1)
    assert [marker.producer_id for marker, _ in rig.markers] == [bumped[0]], "TV2 needs no hold"
    assert rig.state == "PrepareCommit"
    rig.coordinator.end_txn.holds.earlier_ended()
    rig.settle()
    assert rig.state == "CompleteCommit"
    assert len(rig.markers) == 2
