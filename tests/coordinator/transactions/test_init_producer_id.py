"""InitProducerId: who is the producer of an id, and what becomes of the one before."""

from __future__ import annotations

import pytest

from mpbroker.coordinator.transactions.records import TransactionState
from mpbroker.coordinator.transactions.steps import EXHAUSTED_FROM, LAST_EPOCH
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import InitProducerIdRequest
from tests.support.transaction_rig import COORDINATOR_EPOCH, TransactionRig, code_of, opened

T0 = ("t", 0)
NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (InitProducerIdRequest("", 1), ErrorCode.INVALID_REQUEST),
        (InitProducerIdRequest(None, 1), ErrorCode.INVALID_REQUEST),
        (InitProducerIdRequest("x", 1, 5, -1), ErrorCode.INVALID_REQUEST),
        (InitProducerIdRequest("x", 1, -1, 5), ErrorCode.INVALID_REQUEST),
        (InitProducerIdRequest("x", 0), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (InitProducerIdRequest("x", 900_001), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (InitProducerIdRequest("x", 1, enable2_pc=True), ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_a_request_for_a_producer_that_makes_no_sense(
    rig: TransactionRig, request_: InitProducerIdRequest, error: ErrorCode
) -> None:
    assert code_of(rig.answers[rig.ask(request_, 5)]) is error
    assert not len(rig.coordinator.state)


def test_a_new_producer_is_answered_when_it_is_durable(rig: TransactionRig) -> None:
    waiter = rig.ask_init()
    assert waiter not in rig.answers
    rig.settle()
    assert rig.began(waiter) == (1000, 0)
    (record,) = rig.records_of()
    assert record is not None
    assert (record.state, record.timeout_ms) == (TransactionState.EMPTY, 60_000)


def test_a_producer_that_goes_on_says_who_it_is(rig: TransactionRig) -> None:
    """Check that the retry of a request whose answer was lost gets the same answer (KIP-360)."""
    producer = rig.init()
    assert rig.init(producer) == (1000, 1)
    assert rig.init(producer) == (1000, 1)
    assert rig.init((1000, 1)) == (1000, 2)
    for other in (producer, (999, 2), (1000, 3)):
        assert code_of(rig.answers[rig.ask_init(other)]) is FENCED
    assert rig.init() == (1000, 3)
    assert code_of(rig.answers[rig.ask_init((1000, 2))]) is FENCED, "another one began meanwhile"


def test_an_open_transaction_is_aborted_before_another_producer_begins(rig: TransactionRig) -> None:
    first = opened(rig)
    waiter = rig.ask_init()
    rig.decide()
    assert rig.state == "PrepareAbort"
    assert waiter not in rig.answers
    rig.settle()
    assert rig.began(waiter) == (1000, 2)
    ((marker, partitions),) = rig.markers
    assert marker == (1000, 1, COORDINATOR_EPOCH, False)
    assert partitions == {T0}
    assert rig.end(first) is FENCED


def test_an_abort_that_takes_long_is_not_waited_for(rig: TransactionRig) -> None:
    opened(rig)
    waiter = rig.ask_init()
    rig.decide()
    rig.later(99)
    assert waiter not in rig.answers
    rig.later(1)
    assert code_of(rig.answers[waiter]) is CONCURRENT
    rig.settle()
    assert rig.state == "CompleteAbort"
    assert rig.init() == (1000, 2)


def test_a_fence_of_the_last_epoch_ends_in_another_producer_id(rig: TransactionRig) -> None:
    producer = opened(rig, EXHAUSTED_FROM)
    assert rig.init(producer) == (1001, 0)
    assert rig.markers[0][0].producer_epoch == LAST_EPOCH


def test_no_producer_id_no_producer(rig: TransactionRig) -> None:
    rig.has_ids = False
    waiter = rig.ask_init()
    assert code_of(rig.answers[waiter]) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert not len(rig.coordinator.state), "nothing is left of it"
    rig.has_ids = True
    assert rig.init() == (1000, 0)


def test_two_who_want_the_same_new_id_come_one_after_the_other(rig: TransactionRig) -> None:
    rig.delayed_ids = []
    first, second = rig.ask_init(), rig.ask_init()
    (then,) = rig.delayed_ids
    then(77)
    rig.settle()
    assert [rig.answers[one].producer_epoch for one in (first, second)] == [0, 1]
    assert {rig.answers[one].producer_id for one in (first, second)} == {77}
