"""Which partitions a transaction has, and checks before batches and offsets are appended in it."""

from __future__ import annotations

import pytest

from mpbroker.coordinator.transactions.steps import EXHAUSTED_FROM
from mpbroker.ipc.calls import CheckedTransaction
from mpbroker.protocol.errors import ErrorCode
from tests.support.transaction_rig import V2, Producer, TransactionRig, opened

T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)
NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
WRONG_ID = ErrorCode.INVALID_PRODUCER_ID_MAPPING
T0, T1 = ("t", 0), ("t", 1)
ABORTABLE = ErrorCode.TRANSACTION_ABORTABLE


def test_partitions_that_are_there_already_need_no_record(rig: TransactionRig) -> None:
    producer = rig.init()
    assert rig.add(producer, T0, T1) is NONE
    records = len(rig.records_of())
    assert rig.add(producer, T1) is NONE
    assert len(rig.records_of()) == records
    assert rig.add(producer, U0) is NONE
    assert rig.value().partitions == {T0, T1, U0}


def test_one_partition_that_is_unknown_keeps_all_from_being_added(rig: TransactionRig) -> None:
    producer = rig.init()
    waiter = rig.ask_add(producer, T0, ("t", 4), ("nope", 0), ("__consumer_offsets", 0), ("t", -1))
    unknown, others = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
    assert rig.add_errors(waiter) == {
        T0: others,
        ("t", 4): unknown,
        ("t", -1): unknown,
        ("nope", 0): unknown,
        ("__consumer_offsets", 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
    assert rig.state == "Empty"


@pytest.mark.parametrize(
    ("producer", "name", "error"),
    [
        ((1000, 0), "other", WRONG_ID),
        ((1001, 0), "x", WRONG_ID),
        ((1000, 1), "x", FENCED),
        ((1000, -1), "x", FENCED),
        ((1000, 0), "", ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_producer_that_is_not_the_one_adds_and_ends_nothing(
    rig: TransactionRig, producer: Producer, name: str, error: ErrorCode
) -> None:
    opened(rig)
    assert rig.add(producer, T1, name=name) is error
    assert rig.check(producer, name=name) is error
    assert rig.check(producer, T1, name=name, adds=True) is error
    assert rig.end(producer, name=name) is error
    assert rig.end(producer, name=name, version=V2) is error
    assert rig.add_offsets(producer, name=name) is error
    assert rig.value().partitions == {T0}


def test_offsets_are_in_the_partition_of_their_group(rig: TransactionRig) -> None:
    producer = rig.init()
    assert rig.add_offsets(producer, "g") is NONE
    assert rig.value().partitions == {("__consumer_offsets", 3)}, "of 50 that there will be"
    rig.topics["__consumer_offsets"] = 2
    assert rig.add_offsets(producer, "g") is NONE
    assert rig.value().partitions == {("__consumer_offsets", 3), ("__consumer_offsets", 1)}


def test_a_transaction_does_not_grow_until_it_cannot_be_ended() -> None:
    """Check that there is always room for the record of its end, too."""
    rig = TransactionRig(message_max_bytes=1000)
    rig.topics["t"] = 10_000
    producer = rig.init()
    fitting = 0
    while rig.add(producer, ("t", fitting)) is NONE:
        fitting += 1
    assert rig.add(producer, ("t", fitting)) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert 100 < fitting < 250
    assert len(rig.value().partitions) == fitting
    rig.write_record(rig.value()._replace(producer_epoch=EXHAUSTED_FROM, previous_producer_id=1))
    assert rig.end_v2((1000, EXHAUSTED_FROM)) == (1001, 0)


def test_what_is_not_in_the_transaction_is_not_appended(rig: TransactionRig) -> None:
    producer = rig.init()
    assert rig.check(producer, T0) == CheckedTransaction([ABORTABLE])
    assert rig.add(producer, T0) is NONE
    checked = rig.check(producer, T1, T0)
    assert checked.errors == [ABORTABLE, NONE]
    assert checked.hold
    rig.coordinator.end_txn.holds.end(checked.hold)
    assert rig.end(producer) is NONE
    assert rig.check(producer, T0) == CheckedTransaction([ABORTABLE])


def test_tv2_adds_what_there_is(rig: TransactionRig) -> None:
    producer = rig.init()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    checked = rig.check(producer, ("t", 9), T0, ("nope", 0), adds=True)
    assert checked.errors == [unknown, NONE, unknown]
    assert rig.value().partitions == {T0}
    assert rig.check(producer, ("nope", 0), adds=True) == CheckedTransaction([unknown])


@pytest.mark.parametrize("epoch", [1, EXHAUSTED_FROM])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_whom_handlers_let_through_ends_with_another_epoch_whatever_it_asks_for(
    rig: TransactionRig, is_restarted: bool, epoch: int
) -> None:
    """Check that the epoch is bumped: otherwise a late batch would open a transaction that nobody ends."""
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


@pytest.mark.parametrize("adds", [True, False])
def test_what_nobody_hears_of_is_not_held(rig: TransactionRig, adds: bool) -> None:
    """Check that there is no hold if the handler died meanwhile, or there was no memory for the answer."""
    producer = rig.init() if adds else opened(rig)
    rig.is_heard = False
    waiter = rig.ask_check(producer, T0, adds=adds)
    rig.settle()
    assert rig.answers[waiter].hold
    assert not len(rig.coordinator.end_txn.holds)
    assert rig.end(producer) is NONE
    assert rig.state == "CompleteCommit"


def test_offsets_are_let_in_at_the_moment_at_which_they_may(rig: TransactionRig) -> None:
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
