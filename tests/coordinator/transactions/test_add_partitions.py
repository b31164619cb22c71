"""What is checked before batches and offsets of a transaction are appended, and what holds its end up."""

from __future__ import annotations

import pytest

from mpbroker.coordinator.transactions.transaction import EXHAUSTED_FROM
from mpbroker.ipc.calls import CheckedTransaction
from mpbroker.protocol.errors import ErrorCode
from tests.support.transaction_rig import (
    TransactionRig,
    opened,
)

T0, T1 = ("t", 0), ("t", 1)
NONE = ErrorCode.NONE
ABORTABLE = ErrorCode.TRANSACTION_ABORTABLE
FENCED = ErrorCode.PRODUCER_FENCED


def test_what_is_not_in_the_transaction_is_not_appended() -> None:
    rig = TransactionRig()
    producer = rig.init()
    assert rig.check(producer, T0) == CheckedTransaction([ABORTABLE])
    assert rig.add(producer, T0) is NONE
    checked = rig.check(producer, T1, T0)
    assert checked.errors == [ABORTABLE, NONE]
    assert checked.hold
    rig.coordinator.end_txn.holds.end(checked.hold)
    assert rig.end(producer) is NONE
    assert rig.check(producer, T0) == CheckedTransaction([ABORTABLE])


def test_tv2_adds_what_there_is() -> None:
    rig = TransactionRig()
    producer = rig.init()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    checked = rig.check(producer, ("t", 9), T0, ("nope", 0), adds=True)
    assert checked.errors == [unknown, NONE, unknown]
    assert rig.value().partitions == {T0}
    assert rig.check(producer, ("nope", 0), adds=True) == CheckedTransaction([unknown])


@pytest.mark.parametrize("epoch", [1, EXHAUSTED_FROM])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_whom_handlers_let_through_ends_with_another_epoch_whatever_it_asks_for(
    is_restarted: bool, epoch: int
) -> None:
    """Else what is late would open a transaction that nobody ends."""
    rig = TransactionRig()
    rig.init()
    rig.write_record(rig.value()._replace(producer_epoch=epoch - 1))
    producer = rig.end_v2((1000, epoch - 1), False)
    assert rig.check(producer, T0, adds=True).hold == 0
    assert rig.add(producer, T1) is NONE
    if is_restarted:
        rig = rig.restarted()
    assert rig.end(producer) is NONE
    (marker, _) = rig.markers[-1]
    assert marker[:2] == (1000, epoch + 1)
    assert rig.state == "CompleteCommit"
    assert rig.check(producer, T0, adds=True) in (FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_of_tv1_does_not_overtake_a_batch(commit: bool) -> None:
    rig = TransactionRig()
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


def test_who_adds_as_tv2_does_may_end_as_tv1_does() -> None:
    """Produce v12 and EndTxn v4: its epoch stays, so its batches must not be overtaken either."""
    rig = TransactionRig()
    producer = rig.init()
    hold = rig.check(producer, T0, adds=True).hold
    assert hold
    assert rig.end(producer) is NONE
    assert not rig.markers
    rig.coordinator.end_txn.holds.end(hold)
    rig.settle()
    assert rig.state == "CompleteCommit"
    assert rig.check(producer, T0, adds=True).hold, "it may do so again"


def test_whose_epoch_is_bumped_holds_nothing() -> None:
    rig = TransactionRig()
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


def test_a_hold_of_one_id_is_no_other_ids_affair() -> None:
    rig = TransactionRig()
    producer = opened(rig)
    assert rig.check(producer).hold
    other = rig.init(name="y")
    assert rig.add(other, T0, name="y") is NONE
    assert rig.end(other, name="y") is NONE
    assert rig.value("y").state.label == "CompleteCommit"


def test_what_a_dead_handler_has_held_ends_when_its_batches_are_in_the_log() -> None:
    rig = TransactionRig()
    producer = opened(rig)
    gone, here = rig.ask_check(producer), rig.ask_check(producer)
    assert rig.end(producer) is NONE
    rig.coordinator.end_txn.holds.end_all_of(lambda waiter: waiter == gone)
    rig.settle()
    assert not rig.markers
    rig.coordinator.end_txn.holds.end_all_of(lambda waiter: waiter == here)
    rig.settle()
    assert rig.state == "CompleteCommit"


@pytest.mark.parametrize("adds", [True, False])
def test_what_nobody_hears_of_is_not_held(adds: bool) -> None:
    """The handler died meanwhile, or there was no memory for the answer."""
    rig = TransactionRig()
    producer = rig.init() if adds else opened(rig)
    rig.is_heard = False
    waiter = rig.ask_check(producer, T0, adds=adds)
    rig.settle()
    assert rig.answers[waiter].hold
    assert not len(rig.coordinator.end_txn.holds)
    assert rig.end(producer) is NONE
    assert rig.state == "CompleteCommit"


def test_what_is_held_stays_held_while_the_log_is_read_again() -> None:
    rig = TransactionRig()
    producer = opened(rig)
    hold = rig.check(producer).hold
    assert rig.end(producer) is NONE
    rig.reload()
    rig.settle()
    assert not rig.markers
    rig.coordinator.end_txn.holds.end(hold)
    rig.settle()
    assert rig.state == "CompleteCommit"


def test_what_an_earlier_coordinator_has_granted_holds_all_of_tv1() -> None:
    rig = TransactionRig()
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


def test_offsets_are_let_in_at_the_moment_at_which_they_may() -> None:
    rig = TransactionRig()
    producer = rig.init()
    assert rig.check_offsets(producer) == [ABORTABLE]
    heard = rig.check_offsets(producer, adds=True)
    assert heard == []
    rig.append_round()
    assert heard == [NONE]
    assert rig.check_offsets(producer) == [NONE]
    assert rig.check_offsets(producer, 1) == [ABORTABLE]
    assert rig.check_offsets((1000, 7)) == [ErrorCode.PRODUCER_FENCED]
    assert not len(rig.coordinator.end_txn.holds)
