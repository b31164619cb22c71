"""Transactions of one id: who its producer is, which partitions it has, and how it ends."""

from __future__ import annotations

import pytest

from mpbroker.coordinator.transactions.records import TV1, TV2
from mpbroker.coordinator.transactions.states import TransactionState
from mpbroker.coordinator.transactions.transaction import EXHAUSTED_FROM, LAST_EPOCH
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import InitProducerIdRequest
from tests.coordinator.transaction_world import COORDINATOR_EPOCH, V1, V2, Producer, World, code_of, opened

T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)
NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
INVALID_STATE = ErrorCode.INVALID_TXN_STATE
WRONG_ID = ErrorCode.INVALID_PRODUCER_ID_MAPPING


# --- the usual


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_of_tv1(commit: bool) -> None:
    world = World()
    producer = world.init()
    assert producer == (1000, 0)
    assert world.add(producer, T0, T1) is NONE
    assert world.end(producer, commit) is NONE
    ((marker, partitions),) = world.markers
    assert marker == (1000, 0, COORDINATOR_EPOCH, commit)
    assert partitions == {T0, T1}
    assert world.state == ("CompleteCommit" if commit else "CompleteAbort")
    assert world.add(producer, T0) is NONE
    assert world.end(producer, True) is NONE


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_of_tv2(commit: bool) -> None:
    world = World()
    producer = world.init()
    assert world.check(producer, T0, adds=True).errors == [NONE]
    assert world.end_v2(producer, commit) == (1000, 1)
    ((marker, partitions),) = world.markers
    assert marker == (1000, 1, COORDINATOR_EPOCH, commit)
    assert partitions == {T0}
    assert world.value().client_version == TV2
    assert world.check(producer, T0, adds=True) is FENCED
    assert world.check((1000, 1), T0, adds=True).hold == 0


def test_the_decision_is_answered_before_its_markers_are_written() -> None:
    world = World()
    producer = opened(world)
    waiter = world.ask_end(producer)
    assert waiter not in world.answers
    world.append_round()
    assert code_of(world.answers[waiter]) is NONE
    assert not world.markers
    assert world.state == "PrepareCommit"
    world.settle()
    assert world.state == "CompleteCommit"


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
    world = World()
    assert code_of(world.answers[world.ask(request_, 5)]) is error
    assert not len(world.coordinator.manager)


def test_a_new_producer_is_answered_when_it_is_durable() -> None:
    world = World()
    waiter = world.ask_init()
    assert waiter not in world.answers
    world.settle()
    assert world.began(waiter) == (1000, 0)
    (record,) = world.records_of()
    assert record is not None
    assert (record.state, record.timeout_ms) == (TransactionState.EMPTY, 60_000)


def test_another_producer_has_the_next_epoch_and_fences_the_first() -> None:
    world = World()
    first = world.init()
    assert world.init() == (1000, 1)
    assert world.add(first) is FENCED
    assert world.end(first) is FENCED
    assert world.check(first) is FENCED


def test_a_producer_that_goes_on_says_who_it_is() -> None:
    """KIP-360: the retry of a request whose answer was lost gets the same again."""
    world = World()
    producer = world.init()
    assert world.init(producer) == (1000, 1)
    assert world.init(producer) == (1000, 1)
    assert world.init((1000, 1)) == (1000, 2)
    for other in (producer, (999, 2), (1000, 3)):
        assert code_of(world.answers[world.ask_init(other)]) is FENCED
    assert world.init() == (1000, 3)
    assert code_of(world.answers[world.ask_init((1000, 2))]) is FENCED, "another one began meanwhile"


def test_epochs_that_are_used_up_end_in_another_producer_id() -> None:
    world = World()
    world.init()
    world.write_record(world.value()._replace(producer_epoch=EXHAUSTED_FROM - 1))
    assert world.init() == (1000, EXHAUSTED_FROM)
    assert world.init((1000, EXHAUSTED_FROM)) == (1001, 0)
    assert world.value().previous_producer_id == 1000
    assert world.init((1000, EXHAUSTED_FROM)) == (1001, 0), "its answer was lost"
    assert world.init() == (1001, 1)


def test_an_open_transaction_is_aborted_before_another_producer_begins() -> None:
    world = World()
    first = opened(world)
    waiter = world.ask_init()
    world.decide()
    assert world.state == "PrepareAbort"
    assert waiter not in world.answers
    world.settle()
    assert world.began(waiter) == (1000, 2)
    ((marker, partitions),) = world.markers
    assert marker == (1000, 1, COORDINATOR_EPOCH, False)
    assert partitions == {T0}
    assert world.end(first) is FENCED


def test_an_abort_that_takes_long_is_not_waited_for() -> None:
    world = World()
    opened(world)
    waiter = world.ask_init()
    world.decide()
    world.later(99)
    assert waiter not in world.answers
    world.later(1)
    assert code_of(world.answers[waiter]) is CONCURRENT
    world.settle()
    assert world.state == "CompleteAbort"
    assert world.init() == (1000, 2)


def test_a_producer_may_abort_what_it_has_left_open_itself() -> None:
    world = World()
    producer = opened(world)
    assert world.init(producer) == (1000, 1)
    assert not world.markers[0][0].is_commit
    assert world.init(producer) == (1000, 1), "its answer was lost"
    assert world.add((1000, 1)) is NONE


def test_who_does_not_know_the_epoch_aborts_nothing() -> None:
    world = World()
    producer = world.init()
    assert world.init(producer) == (1000, 1)
    assert world.add((1000, 1)) is NONE
    assert code_of(world.answers[world.ask_init(producer)]) is FENCED, "a late copy"
    assert world.state == "Ongoing"


def test_a_fence_of_the_last_epoch_ends_in_another_producer_id() -> None:
    world = World()
    producer = opened(world, EXHAUSTED_FROM)
    assert world.init(producer) == (1001, 0)
    assert world.markers[0][0].producer_epoch == LAST_EPOCH


def test_no_producer_id_no_producer() -> None:
    world = World()
    world.has_ids = False
    waiter = world.ask_init()
    assert code_of(world.answers[waiter]) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert not len(world.coordinator.manager), "nothing is left of it"
    world.has_ids = True
    assert world.init() == (1000, 0)


def test_two_who_want_the_same_new_id_come_one_after_the_other() -> None:
    world = World()
    world.delayed_ids = []
    first, second = world.ask_init(), world.ask_init()
    (then,) = world.delayed_ids
    then(77)
    world.settle()
    assert [world.answers[one].producer_epoch for one in (first, second)] == [0, 1]
    assert {world.answers[one].producer_id for one in (first, second)} == {77}


# --- partitions


def test_partitions_that_are_there_already_need_no_record() -> None:
    world = World()
    producer = world.init()
    assert world.add(producer, T0, T1) is NONE
    records = len(world.records_of())
    assert world.add(producer, T1) is NONE
    assert len(world.records_of()) == records
    assert world.add(producer, U0) is NONE
    assert world.value().partitions == {T0, T1, U0}


def test_one_partition_that_is_unknown_keeps_all_from_being_added() -> None:
    world = World()
    producer = world.init()
    waiter = world.ask_add(producer, T0, ("t", 4), ("nope", 0), ("__consumer_offsets", 0), ("t", -1))
    unknown, others = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
    assert world.add_errors(waiter) == {
        T0: others,
        ("t", 4): unknown,
        ("t", -1): unknown,
        ("nope", 0): unknown,
        ("__consumer_offsets", 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
    assert world.state == "Empty"


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
    world = World()
    opened(world)
    assert world.add(producer, T1, name=name) is error
    assert world.check(producer, name=name) is error
    assert world.check(producer, T1, name=name, adds=True) is error
    assert world.end(producer, name=name) is error
    assert world.end(producer, name=name, version=V2) is error
    assert world.add_offsets(producer, name=name) is error
    assert world.value().partitions == {T0}


def test_offsets_are_in_the_partition_of_their_group() -> None:
    world = World()
    producer = world.init()
    assert world.add_offsets(producer, "g") is NONE
    assert world.value().partitions == {("__consumer_offsets", 3)}, "of 50 that there will be"
    world.topics["__consumer_offsets"] = 2
    assert world.add_offsets(producer, "g") is NONE
    assert world.value().partitions == {("__consumer_offsets", 3), ("__consumer_offsets", 1)}


def test_a_transaction_does_not_grow_until_it_cannot_be_ended() -> None:
    """The record of its end has to fit, too."""
    world = World(message_max_bytes=1000)
    world.topics["t"] = 10_000
    producer = world.init()
    fitting = 0
    while world.add(producer, ("t", fitting)) is NONE:
        fitting += 1
    assert world.add(producer, ("t", fitting)) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert 100 < fitting < 250
    assert len(world.value().partitions) == fitting
    world.write_record(world.value()._replace(producer_epoch=EXHAUSTED_FROM, previous_producer_id=1))
    assert world.end_v2((1000, EXHAUSTED_FROM)) == (1001, 0)


# --- EndTxn

TABLE_V1 = [
    # state, what a COMMIT is told, what an ABORT is told
    (TransactionState.COMPLETE_COMMIT, NONE, INVALID_STATE),
    (TransactionState.COMPLETE_ABORT, INVALID_STATE, NONE),
    (TransactionState.PREPARE_COMMIT, CONCURRENT, INVALID_STATE),
    (TransactionState.PREPARE_ABORT, INVALID_STATE, CONCURRENT),
    (TransactionState.EMPTY, INVALID_STATE, INVALID_STATE),
]


def in_state(state: TransactionState, **how: int) -> World:
    """An id in that state, with epoch 5."""
    world = World()
    world.init()
    partitions = {T0} if state.is_preparing else ()
    world.write_record(
        world.value()._replace(
            state=state, producer_epoch=5, partitions=frozenset(partitions), start_ms=1, **how
        )
    )
    return world


@pytest.mark.parametrize(("state", "commit", "abort"), TABLE_V1)
@pytest.mark.parametrize("wants_commit", [True, False])
def test_an_end_of_tv1_where_none_is_open(
    state: TransactionState, commit: ErrorCode, abort: ErrorCode, wants_commit: bool
) -> None:
    world = in_state(state)
    waiter = world.ask_end((1000, 5), wants_commit)
    world.later(100)
    assert code_of(world.answers[waiter]) is (commit if wants_commit else abort)
    assert code_of(world.answers[world.ask_end((1000, 4), wants_commit)]) is FENCED


@pytest.mark.parametrize("wants_commit", [True, False])
@pytest.mark.parametrize(
    "state", [TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT], ids=lambda s: s.label
)
def test_a_retry_of_tv2_where_it_is_over(state: TransactionState, wants_commit: bool) -> None:
    world = in_state(state, client_version=TV2)
    waiter = world.ask_end((1000, 4), wants_commit, version=V2)
    if wants_commit == state.is_commit:
        assert world.ended(waiter) == (1000, 5)
    else:
        assert code_of(world.answers[waiter]) is INVALID_STATE
    assert code_of(world.answers[world.ask_end((1000, 3), wants_commit, version=V2)]) is FENCED
    assert len(world.records_of()) == 2


@pytest.mark.parametrize("wants_commit", [True, False])
@pytest.mark.parametrize(
    "state", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT], ids=lambda s: s.label
)
def test_a_retry_of_tv2_waits_for_the_end(state: TransactionState, wants_commit: bool) -> None:
    world = in_state(state, client_version=TV2)
    waiter = world.ask_end((1000, 4), wants_commit, version=V2)
    if wants_commit != state.is_commit:
        assert code_of(world.answers[waiter]) is INVALID_STATE
        return
    patient = world.ask_end((1000, 4), wants_commit, version=V2)
    world.coordinator.abandon(waiter)
    assert code_of(world.answers[waiter]) is ErrorCode.NETWORK_EXCEPTION
    world.settle()
    assert world.ended(patient) == (1000, 5)
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
    world = in_state(state, client_version=TV2)
    assert world.end((1000, 5), True, version=V2) is INVALID_STATE
    assert world.end_v2((1000, 5), False) == (1000, 6)
    assert world.state == "CompleteAbort"
    assert [one.state.label for one in world.records_of()[2:] if one] == ["PrepareAbort", "CompleteAbort"]
    assert world.markers == [((1000, 6, COORDINATOR_EPOCH + 1, False), frozenset())]
    assert world.value().start_ms > 1


def test_the_bump_that_uses_up_the_epochs() -> None:
    world = World()
    last = opened(world, EXHAUSTED_FROM)
    waiter = world.ask_end(last, version=V2)
    world.decide()
    assert world.ended(waiter) == (1001, 0)
    assert (world.value()[:2], world.value().next_producer_id) == ((1000, LAST_EPOCH), 1001)
    adding = world.ask_check((1001, 0), T1, adds=True)
    assert adding not in world.answers, "the next transaction waits for the markers of this one"
    world.settle()
    assert world.markers[0][0][:2] == (1000, LAST_EPOCH)
    assert world.answers[adding].errors == [NONE]
    assert (world.value()[:2], world.value().previous_producer_id) == ((1001, 0), 1000)


def test_a_retry_of_the_bump_that_used_up_the_epochs() -> None:
    world = World()
    last = opened(world, EXHAUSTED_FROM)
    first = world.ask_end(last, version=V2)
    world.append_round()
    retry = world.ask_end(last, version=V2)
    world.settle()
    assert world.ended(first) == world.ended(retry) == (1001, 0)
    assert world.end_v2(last) == (1001, 0)
    assert world.restarted().end_v2(last) == (1001, 0)
    assert world.end(last, False, version=V2) is INVALID_STATE
    assert world.init(last) == (1001, 0), "it does not know that its transaction is over"


def test_no_producer_id_no_end_of_the_last_epoch() -> None:
    world = World()
    last = opened(world, EXHAUSTED_FROM)
    world.has_ids = False
    assert world.end(last, version=V2) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert world.state == "Ongoing"
    world.has_ids = True
    assert world.end_v2(last) == (1001, 0)


def test_a_client_may_change_the_generation() -> None:
    world = World()
    producer = opened(world)
    assert world.end_v2(producer) == (1000, 1)
    assert world.add((1000, 1)) is NONE
    assert world.value().client_version == TV1
    assert world.end((1000, 1)) is NONE
    assert world.end((1000, 0), version=V2) is FENCED, "the epoch was not bumped by this one"
    assert world.end_v2((1000, 1), False) == (1000, 2)


@pytest.mark.parametrize("version", [V1, V2])
def test_whom_a_timeout_has_fenced_is_no_retry(version: int) -> None:
    world = World()
    producer = world.init()
    world.coordinator.end_hold(world.check(producer, T0, adds=True).hold)
    world.later(80_000)
    world.settle()
    assert (world.state, world.value().producer_epoch) == ("CompleteAbort", 1)
    assert world.markers == [((1000, 1, COORDINATOR_EPOCH, False), {T0})]
    for commit in (True, False):
        assert world.end(producer, commit, version=version) is FENCED
    assert world.check(producer, T0, adds=True) is FENCED
    assert code_of(world.answers[world.ask_init(producer)]) is FENCED


def test_nobody_is_the_producer_with_the_epoch_that_fences_the_last() -> None:
    world = World()
    producer = opened(world, EXHAUSTED_FROM)
    world.later(80_000)
    world.settle()
    assert (world.state, world.value()[:2]) == ("CompleteAbort", (1000, LAST_EPOCH))
    guessed = producer[0], LAST_EPOCH
    assert world.end(guessed, False, version=V2) is FENCED, "no epoch follows it"
    assert world.add(guessed) is FENCED
    assert world.init() == (1001, 0)
