"""Transactions of one id: who its producer is, which partitions it has, and how it ends."""

from __future__ import annotations

import pytest

from mpbroker.coordinator.transactions.records import TV1, TV2
from mpbroker.coordinator.transactions.states import TransactionState
from mpbroker.coordinator.transactions.transaction import EXHAUSTED_FROM, LAST_EPOCH
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import InitProducerIdRequest
from tests.support.transaction_rig import COORDINATOR_EPOCH, V1, V2, Producer, TransactionRig, code_of, opened

T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)
NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
INVALID_STATE = ErrorCode.INVALID_TXN_STATE
WRONG_ID = ErrorCode.INVALID_PRODUCER_ID_MAPPING


# --- the usual


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_of_tv1(commit: bool) -> None:
    rig = TransactionRig()
    producer = rig.init()
    assert producer == (1000, 0)
    assert rig.add(producer, T0, T1) is NONE
    assert rig.end(producer, commit) is NONE
    ((marker, partitions),) = rig.markers
    assert marker == (1000, 0, COORDINATOR_EPOCH, commit)
    assert partitions == {T0, T1}
    assert rig.state == ("CompleteCommit" if commit else "CompleteAbort")
    assert rig.add(producer, T0) is NONE
    assert rig.end(producer, True) is NONE


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_of_tv2(commit: bool) -> None:
    rig = TransactionRig()
    producer = rig.init()
    assert rig.check(producer, T0, adds=True).errors == [NONE]
    assert rig.end_v2(producer, commit) == (1000, 1)
    ((marker, partitions),) = rig.markers
    assert marker == (1000, 1, COORDINATOR_EPOCH, commit)
    assert partitions == {T0}
    assert rig.value().client_version == TV2
    assert rig.check(producer, T0, adds=True) is FENCED
    assert rig.check((1000, 1), T0, adds=True).hold == 0


def test_the_decision_is_answered_before_its_markers_are_written() -> None:
    rig = TransactionRig()
    producer = opened(rig)
    waiter = rig.ask_end(producer)
    assert waiter not in rig.answers
    rig.append_round()
    assert code_of(rig.answers[waiter]) is NONE
    assert not rig.markers
    assert rig.state == "PrepareCommit"
    rig.settle()
    assert rig.state == "CompleteCommit"


# --- InitProducerId


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
    request_: InitProducerIdRequest, error: ErrorCode
) -> None:
    rig = TransactionRig()
    assert code_of(rig.answers[rig.ask(request_, 5)]) is error
    assert not len(rig.coordinator.state)


def test_a_new_producer_is_answered_when_it_is_durable() -> None:
    rig = TransactionRig()
    waiter = rig.ask_init()
    assert waiter not in rig.answers
    rig.settle()
    assert rig.began(waiter) == (1000, 0)
    (record,) = rig.records_of()
    assert record is not None
    assert (record.state, record.timeout_ms) == (TransactionState.EMPTY, 60_000)


def test_another_producer_has_the_next_epoch_and_fences_the_first() -> None:
    rig = TransactionRig()
    first = rig.init()
    assert rig.init() == (1000, 1)
    assert rig.add(first) is FENCED
    assert rig.end(first) is FENCED
    assert rig.check(first) is FENCED


def test_a_producer_that_goes_on_says_who_it_is() -> None:
    """KIP-360: the retry of a request whose answer was lost gets the same again."""
    rig = TransactionRig()
    producer = rig.init()
    assert rig.init(producer) == (1000, 1)
    assert rig.init(producer) == (1000, 1)
    assert rig.init((1000, 1)) == (1000, 2)
    for other in (producer, (999, 2), (1000, 3)):
        assert code_of(rig.answers[rig.ask_init(other)]) is FENCED
    assert rig.init() == (1000, 3)
    assert code_of(rig.answers[rig.ask_init((1000, 2))]) is FENCED, "another one began meanwhile"


def test_epochs_that_are_used_up_end_in_another_producer_id() -> None:
    rig = TransactionRig()
    rig.init()
    rig.write_record(rig.value()._replace(producer_epoch=EXHAUSTED_FROM - 1))
    assert rig.init() == (1000, EXHAUSTED_FROM)
    assert rig.init((1000, EXHAUSTED_FROM)) == (1001, 0)
    assert rig.value().previous_producer_id == 1000
    assert rig.init((1000, EXHAUSTED_FROM)) == (1001, 0), "its answer was lost"
    assert rig.init() == (1001, 1)


def test_an_open_transaction_is_aborted_before_another_producer_begins() -> None:
    rig = TransactionRig()
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


def test_an_abort_that_takes_long_is_not_waited_for() -> None:
    rig = TransactionRig()
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


def test_a_producer_may_abort_what_it_has_left_open_itself() -> None:
    rig = TransactionRig()
    producer = opened(rig)
    assert rig.init(producer) == (1000, 1)
    assert not rig.markers[0][0].is_commit
    assert rig.init(producer) == (1000, 1), "its answer was lost"
    assert rig.add((1000, 1)) is NONE


def test_who_does_not_know_the_epoch_aborts_nothing() -> None:
    rig = TransactionRig()
    producer = rig.init()
    assert rig.init(producer) == (1000, 1)
    assert rig.add((1000, 1)) is NONE
    assert code_of(rig.answers[rig.ask_init(producer)]) is FENCED, "a late copy"
    assert rig.state == "Ongoing"


def test_a_fence_of_the_last_epoch_ends_in_another_producer_id() -> None:
    rig = TransactionRig()
    producer = opened(rig, EXHAUSTED_FROM)
    assert rig.init(producer) == (1001, 0)
    assert rig.markers[0][0].producer_epoch == LAST_EPOCH


def test_no_producer_id_no_producer() -> None:
    rig = TransactionRig()
    rig.has_ids = False
    waiter = rig.ask_init()
    assert code_of(rig.answers[waiter]) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert not len(rig.coordinator.state), "nothing is left of it"
    rig.has_ids = True
    assert rig.init() == (1000, 0)


def test_two_who_want_the_same_new_id_come_one_after_the_other() -> None:
    rig = TransactionRig()
    rig.delayed_ids = []
    first, second = rig.ask_init(), rig.ask_init()
    (then,) = rig.delayed_ids
    then(77)
    rig.settle()
    assert [rig.answers[one].producer_epoch for one in (first, second)] == [0, 1]
    assert {rig.answers[one].producer_id for one in (first, second)} == {77}


# --- partitions


def test_partitions_that_are_there_already_need_no_record() -> None:
    rig = TransactionRig()
    producer = rig.init()
    assert rig.add(producer, T0, T1) is NONE
    records = len(rig.records_of())
    assert rig.add(producer, T1) is NONE
    assert len(rig.records_of()) == records
    assert rig.add(producer, U0) is NONE
    assert rig.value().partitions == {T0, T1, U0}


def test_one_partition_that_is_unknown_keeps_all_from_being_added() -> None:
    rig = TransactionRig()
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
    producer: Producer, name: str, error: ErrorCode
) -> None:
    rig = TransactionRig()
    opened(rig)
    assert rig.add(producer, T1, name=name) is error
    assert rig.check(producer, name=name) is error
    assert rig.check(producer, T1, name=name, adds=True) is error
    assert rig.end(producer, name=name) is error
    assert rig.end(producer, name=name, version=V2) is error
    assert rig.add_offsets(producer, name=name) is error
    assert rig.value().partitions == {T0}


def test_offsets_are_in_the_partition_of_their_group() -> None:
    rig = TransactionRig()
    producer = rig.init()
    assert rig.add_offsets(producer, "g") is NONE
    assert rig.value().partitions == {("__consumer_offsets", 3)}, "of 50 that there will be"
    rig.topics["__consumer_offsets"] = 2
    assert rig.add_offsets(producer, "g") is NONE
    assert rig.value().partitions == {("__consumer_offsets", 3), ("__consumer_offsets", 1)}


def test_a_transaction_does_not_grow_until_it_cannot_be_ended() -> None:
    """The record of its end has to fit, too."""
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


# --- EndTxn

TABLE_V1 = [
    # state, what a COMMIT is told, what an ABORT is told
    (TransactionState.COMPLETE_COMMIT, NONE, INVALID_STATE),
    (TransactionState.COMPLETE_ABORT, INVALID_STATE, NONE),
    (TransactionState.PREPARE_COMMIT, CONCURRENT, INVALID_STATE),
    (TransactionState.PREPARE_ABORT, INVALID_STATE, CONCURRENT),
    (TransactionState.EMPTY, INVALID_STATE, INVALID_STATE),
]


def in_state(state: TransactionState, **how: int) -> TransactionRig:
    """An id in that state, with epoch 5."""
    rig = TransactionRig()
    rig.init()
    partitions = {T0} if state.is_preparing else ()
    rig.write_record(
        rig.value()._replace(
            state=state, producer_epoch=5, partitions=frozenset(partitions), start_ms=1, **how
        )
    )
    return rig


@pytest.mark.parametrize(("state", "commit", "abort"), TABLE_V1)
@pytest.mark.parametrize("wants_commit", [True, False])
def test_an_end_of_tv1_where_none_is_open(
    state: TransactionState, commit: ErrorCode, abort: ErrorCode, wants_commit: bool
) -> None:
    rig = in_state(state)
    waiter = rig.ask_end((1000, 5), wants_commit)
    rig.later(100)
    assert code_of(rig.answers[waiter]) is (commit if wants_commit else abort)
    assert code_of(rig.answers[rig.ask_end((1000, 4), wants_commit)]) is FENCED


@pytest.mark.parametrize("wants_commit", [True, False])
@pytest.mark.parametrize(
    "state", [TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT], ids=lambda s: s.label
)
def test_a_retry_of_tv2_where_it_is_over(state: TransactionState, wants_commit: bool) -> None:
    rig = in_state(state, client_version=TV2)
    waiter = rig.ask_end((1000, 4), wants_commit, version=V2)
    if wants_commit == state.is_commit:
        assert rig.ended(waiter) == (1000, 5)
    else:
        assert code_of(rig.answers[waiter]) is INVALID_STATE
    assert code_of(rig.answers[rig.ask_end((1000, 3), wants_commit, version=V2)]) is FENCED
    assert len(rig.records_of()) == 2


@pytest.mark.parametrize("wants_commit", [True, False])
@pytest.mark.parametrize(
    "state", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT], ids=lambda s: s.label
)
def test_a_retry_of_tv2_waits_for_the_end(state: TransactionState, wants_commit: bool) -> None:
    rig = in_state(state, client_version=TV2)
    waiter = rig.ask_end((1000, 4), wants_commit, version=V2)
    if wants_commit != state.is_commit:
        assert code_of(rig.answers[waiter]) is INVALID_STATE
        return
    patient = rig.ask_end((1000, 4), wants_commit, version=V2)
    rig.coordinator.abandon(waiter)
    assert code_of(rig.answers[waiter]) is ErrorCode.NETWORK_EXCEPTION
    rig.settle()
    assert rig.ended(patient) == (1000, 5)
    late = in_state(state, client_version=TV2)
    waiter = late.ask_end((1000, 4), wants_commit, version=V2)
    late.later(100)
    assert code_of(late.answers[waiter]) is CONCURRENT


@pytest.mark.parametrize(
    "state",
    [TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT],
    ids=lambda s: s.label,
)
def test_tv2_may_abort_nothing_but_not_commit_it(state: TransactionState) -> None:
    rig = in_state(state, client_version=TV2)
    assert rig.end((1000, 5), True, version=V2) is INVALID_STATE
    assert rig.end_v2((1000, 5), False) == (1000, 6)
    assert rig.state == "CompleteAbort"
    assert [one.state.label for one in rig.records_of()[2:] if one] == ["PrepareAbort", "CompleteAbort"]
    assert rig.markers == [((1000, 6, COORDINATOR_EPOCH + 1, False), frozenset())]
    assert rig.value().start_ms > 1


def test_the_bump_that_uses_up_the_epochs() -> None:
    rig = TransactionRig()
    last = opened(rig, EXHAUSTED_FROM)
    waiter = rig.ask_end(last, version=V2)
    rig.decide()
    assert rig.ended(waiter) == (1001, 0)
    assert (rig.value()[:2], rig.value().next_producer_id) == ((1000, LAST_EPOCH), 1001)
    adding = rig.ask_check((1001, 0), T1, adds=True)
    assert adding not in rig.answers, "the next transaction waits for the markers of this one"
    rig.settle()
    assert rig.markers[0][0][:2] == (1000, LAST_EPOCH)
    assert rig.answers[adding].errors == [NONE]
    assert (rig.value()[:2], rig.value().previous_producer_id) == ((1001, 0), 1000)


def test_a_retry_of_the_bump_that_used_up_the_epochs() -> None:
    rig = TransactionRig()
    last = opened(rig, EXHAUSTED_FROM)
    first = rig.ask_end(last, version=V2)
    rig.append_round()
    retry = rig.ask_end(last, version=V2)
    rig.settle()
    assert rig.ended(first) == rig.ended(retry) == (1001, 0)
    assert rig.end_v2(last) == (1001, 0)
    assert rig.restarted().end_v2(last) == (1001, 0)
    assert rig.end(last, False, version=V2) is INVALID_STATE
    assert rig.init(last) == (1001, 0), "it does not know that its transaction is over"


def test_no_producer_id_no_end_of_the_last_epoch() -> None:
    rig = TransactionRig()
    last = opened(rig, EXHAUSTED_FROM)
    rig.has_ids = False
    assert rig.end(last, version=V2) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert rig.state == "Ongoing"
    rig.has_ids = True
    assert rig.end_v2(last) == (1001, 0)


def test_a_client_may_change_the_generation() -> None:
    rig = TransactionRig()
    producer = opened(rig)
    assert rig.end_v2(producer) == (1000, 1)
    assert rig.add((1000, 1)) is NONE
    assert rig.value().client_version == TV1
    assert rig.end((1000, 1)) is NONE
    assert rig.end((1000, 0), version=V2) is FENCED, "the epoch was not bumped by this one"
    assert rig.end_v2((1000, 1), False) == (1000, 2)


@pytest.mark.parametrize("version", [V1, V2])
def test_whom_a_timeout_has_fenced_is_no_retry(version: int) -> None:
    rig = TransactionRig()
    producer = rig.init()
    rig.coordinator.end_txn.holds.end(rig.check(producer, T0, adds=True).hold)
    rig.later(80_000)
    rig.settle()
    assert (rig.state, rig.value().producer_epoch) == ("CompleteAbort", 1)
    assert rig.markers == [((1000, 1, COORDINATOR_EPOCH, False), {T0})]
    for commit in (True, False):
        assert rig.end(producer, commit, version=version) is FENCED
    assert rig.check(producer, T0, adds=True) is FENCED
    assert code_of(rig.answers[rig.ask_init(producer)]) is FENCED


def test_nobody_is_the_producer_with_the_epoch_that_fences_the_last() -> None:
    rig = TransactionRig()
    producer = opened(rig, EXHAUSTED_FROM)
    rig.later(80_000)
    rig.settle()
    assert (rig.state, rig.value()[:2]) == ("CompleteAbort", (1000, LAST_EPOCH))
    guessed = producer[0], LAST_EPOCH
    assert rig.end(guessed, False, version=V2) is FENCED, "no epoch follows it"
    assert rig.add(guessed) is FENCED
    assert rig.init() == (1001, 0)
