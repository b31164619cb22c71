"""What is checked before batches and offsets of a transaction are appended, and what holds its end up."""

from __future__ import annotations

import pytest

from mpbroker.coordinator.transactions.transaction import EXHAUSTED_FROM
from mpbroker.ipc.calls import CheckedTransaction
from mpbroker.protocol.errors import ErrorCode
from tests.coordinator.transaction_world import (
    World,
    opened,
)

T0, T1 = ("t", 0), ("t", 1)
NONE = ErrorCode.NONE
ABORTABLE = ErrorCode.TRANSACTION_ABORTABLE
FENCED = ErrorCode.PRODUCER_FENCED


def test_what_is_not_in_the_transaction_is_not_appended() -> None:
    world = World()
    producer = world.init()
    assert world.check(producer, T0) == CheckedTransaction([ABORTABLE])
    assert world.add(producer, T0) is NONE
    checked = world.check(producer, T1, T0)
    assert checked.errors == [ABORTABLE, NONE]
    assert checked.hold
    world.coordinator.end_hold(checked.hold)
    assert world.end(producer) is NONE
    assert world.check(producer, T0) == CheckedTransaction([ABORTABLE])


def test_tv2_adds_what_there_is() -> None:
    world = World()
    producer = world.init()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    checked = world.check(producer, ("t", 9), T0, ("nope", 0), adds=True)
    assert checked.errors == [unknown, NONE, unknown]
    assert world.value().partitions == {T0}
    assert world.check(producer, ("nope", 0), adds=True) == CheckedTransaction([unknown])


@pytest.mark.parametrize("epoch", [1, EXHAUSTED_FROM])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_whom_handlers_let_through_ends_with_another_epoch_whatever_it_asks_for(
    is_restarted: bool, epoch: int
) -> None:
    """Else what is late would open a transaction that nobody ends."""
    world = World()
    world.init()
    world.write_record(world.value()._replace(producer_epoch=epoch - 1))
    producer = world.end_v2((1000, epoch - 1), False)
    assert world.check(producer, T0, adds=True).hold == 0
    assert world.add(producer, T1) is NONE
    if is_restarted:
        world = world.restarted()
    assert world.end(producer) is NONE
    (marker, _) = world.markers[-1]
    assert marker[:2] == (1000, epoch + 1)
    assert world.state == "CompleteCommit"
    assert world.check(producer, T0, adds=True) in (FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_of_tv1_does_not_overtake_a_batch(commit: bool) -> None:
    world = World()
    producer = opened(world)
    holds = [world.check(producer).hold for _ in range(2)]
    assert len(set(holds)) == 2
    assert world.end(producer, commit) is NONE
    assert not world.markers
    world.coordinator.end_hold(holds[0])
    world.coordinator.end_hold(holds[0])
    assert not world.sending
    world.coordinator.end_hold(holds[1])
    world.settle()
    assert [marker.is_commit for marker, _ in world.markers] == [commit]
    assert not len(world.coordinator.holds)


def test_who_adds_as_tv2_does_may_end_as_tv1_does() -> None:
    """Produce v12 and EndTxn v4: its epoch stays, so its batches must not be overtaken either."""
    world = World()
    producer = world.init()
    hold = world.check(producer, T0, adds=True).hold
    assert hold
    assert world.end(producer) is NONE
    assert not world.markers
    world.coordinator.end_hold(hold)
    world.settle()
    assert world.state == "CompleteCommit"
    assert world.check(producer, T0, adds=True).hold, "it may do so again"


def test_whose_epoch_is_bumped_holds_nothing() -> None:
    world = World()
    producer = world.init()
    assert world.check(producer, T0, adds=True).hold, "how it ends is not known yet"
    bumped = world.end_v2(producer)
    assert world.state == "CompleteCommit", "the epoch keeps out what comes late"
    for _ in range(2):
        assert world.check(bumped, T0, adds=True) == CheckedTransaction([NONE])
        bumped = world.end_v2(bumped)
    another = world.init()
    assert world.check(another, T0, adds=True).hold
    assert world.end_v2(another)
    world.reload()
    assert world.check((another[0], another[1] + 1), T0, adds=True).hold, "it is not known any more"


def test_a_hold_of_one_id_is_no_other_ids_affair() -> None:
    world = World()
    producer = opened(world)
    assert world.check(producer).hold
    other = world.init(name="y")
    assert world.add(other, T0, name="y") is NONE
    assert world.end(other, name="y") is NONE
    assert world.value("y").state.label == "CompleteCommit"


def test_what_a_dead_handler_has_held_ends_when_its_batches_are_in_the_log() -> None:
    world = World()
    producer = opened(world)
    gone, here = world.ask_check(producer), world.ask_check(producer)
    assert world.end(producer) is NONE
    world.coordinator.end_holds(lambda waiter: waiter == gone)
    world.settle()
    assert not world.markers
    world.coordinator.end_holds(lambda waiter: waiter == here)
    world.settle()
    assert world.state == "CompleteCommit"


@pytest.mark.parametrize("adds", [True, False])
def test_what_nobody_hears_of_is_not_held(adds: bool) -> None:
    """The handler died meanwhile, or there was no memory for the answer."""
    world = World()
    producer = world.init() if adds else opened(world)
    world.is_heard = False
    waiter = world.ask_check(producer, T0, adds=adds)
    world.settle()
    assert world.answers[waiter].hold
    assert not len(world.coordinator.holds)
    assert world.end(producer) is NONE
    assert world.state == "CompleteCommit"


def test_what_is_held_stays_held_while_the_log_is_read_again() -> None:
    world = World()
    producer = opened(world)
    hold = world.check(producer).hold
    assert world.end(producer) is NONE
    world.reload()
    world.settle()
    assert not world.markers
    world.coordinator.end_hold(hold)
    world.settle()
    assert world.state == "CompleteCommit"


def test_what_an_earlier_coordinator_has_granted_holds_all_of_tv1() -> None:
    world = World()
    producer = opened(world)
    world.ask_end(producer)
    world.decide()
    world = world.restarted(has_earlier_holds=True)
    bumped = world.init(name="y")
    assert world.check(bumped, T0, adds=True, name="y").errors == [NONE]
    assert world.end_v2(bumped, name="y") == (bumped[0], 1)
    assert [marker.producer_id for marker, _ in world.markers] == [bumped[0]], "TV2 needs no hold"
    assert world.state == "PrepareCommit"
    world.coordinator.earlier_holds_ended()
    world.settle()
    assert world.state == "CompleteCommit"
    assert len(world.markers) == 2


def test_offsets_are_let_in_at_the_moment_at_which_they_may() -> None:
    world = World()
    producer = world.init()
    assert world.check_offsets(producer) == [ABORTABLE]
    heard = world.check_offsets(producer, adds=True)
    assert heard == []
    world.append_round()
    assert heard == [NONE]
    assert world.check_offsets(producer) == [NONE]
    assert world.check_offsets(producer, 1) == [ABORTABLE]
    assert world.check_offsets((1000, 7)) == [ErrorCode.PRODUCER_FENCED]
    assert not len(world.coordinator.holds)
