"""EndTxn: decisions, retries, markers, and the record that a transaction is over."""

from __future__ import annotations

import pytest

from mpbroker.coordinator.transactions.records import TV1, TV2, TransactionState
from mpbroker.coordinator.transactions.steps import EXHAUSTED_FROM, LAST_EPOCH
from mpbroker.protocol.errors import ErrorCode
from tests.support.transaction_rig import COORDINATOR_EPOCH, V2, TransactionRig, code_of, opened

T0, T1 = ("t", 0), ("t", 1)
NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
INVALID_STATE = ErrorCode.INVALID_TXN_STATE
REFUSED = ErrorCode.KAFKA_STORAGE_ERROR


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


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_of_tv1(rig: TransactionRig, commit: bool) -> None:
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
def test_a_transaction_of_tv2(rig: TransactionRig, commit: bool) -> None:
    producer = rig.init()
    assert rig.check(producer, T0, adds=True).errors == [NONE]
    assert rig.end_v2(producer, commit) == (1000, 1)
    ((marker, partitions),) = rig.markers
    assert marker == (1000, 1, COORDINATOR_EPOCH, commit)
    assert partitions == {T0}
    assert rig.value().client_version == TV2
    assert rig.check(producer, T0, adds=True) is FENCED
    assert rig.check((1000, 1), T0, adds=True).hold == 0


def test_the_decision_is_answered_before_its_markers_are_written(rig: TransactionRig) -> None:
    producer = opened(rig)
    waiter = rig.ask_end(producer)
    assert waiter not in rig.answers
    rig.append_round()
    assert code_of(rig.answers[waiter]) is NONE
    assert not rig.markers
    assert rig.state == "PrepareCommit"
    rig.settle()
    assert rig.state == "CompleteCommit"


def test_an_end_that_waits_for_markers_ends_with_its_client() -> None:
    rig = in_state(TransactionState.PREPARE_COMMIT, client_version=TV2)
    waiter, patient = [rig.ask_end((1000, 4), version=V2) for _ in range(2)]
    rig.coordinator.abandon(waiter)
    assert code_of(rig.answers[waiter]) is ErrorCode.NETWORK_EXCEPTION
    rig.settle()
    assert rig.ended(patient) == (1000, 5)


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


def test_the_bump_that_uses_up_the_epochs(rig: TransactionRig) -> None:
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
    assert rig.value()[:2] == (1001, 0)


def test_a_retry_of_the_bump_that_used_up_the_epochs(rig: TransactionRig) -> None:
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


def test_no_producer_id_no_end_of_the_last_epoch(rig: TransactionRig) -> None:
    last = opened(rig, EXHAUSTED_FROM)
    rig.has_ids = False
    assert rig.end(last, version=V2) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert rig.state == "Ongoing"
    rig.has_ids = True
    assert rig.end_v2(last) == (1001, 0)


def test_a_client_may_change_the_generation(rig: TransactionRig) -> None:
    producer = opened(rig)
    assert rig.end_v2(producer) == (1000, 1)
    assert rig.add((1000, 1)) is NONE
    assert rig.value().client_version == TV1
    assert rig.end((1000, 1)) is NONE
    assert rig.end_v2((1000, 0)) == (1000, 1)
    assert rig.end_v2((1000, 1), False) == (1000, 2)


def test_whom_a_timeout_has_fenced_adds_nothing(rig: TransactionRig) -> None:
    producer = rig.init()
    rig.coordinator.end_txn.holds.end(rig.check(producer, T0, adds=True).hold)
    rig.later(80_000)
    rig.settle()
    assert (rig.state, rig.value().producer_epoch) == ("CompleteAbort", 1)
    assert rig.markers == [((1000, 1, COORDINATOR_EPOCH, False), {T0})]
    assert rig.check(producer, T0, adds=True) is FENCED
    assert rig.add(producer) is FENCED


def test_nobody_is_the_producer_with_the_epoch_that_fences_the_last() -> None:
    """A Kafka with transaction.version 0 leaves the fenced producer with it."""
    rig = in_state(TransactionState.COMPLETE_ABORT)
    rig.write_record(rig.value()._replace(producer_epoch=LAST_EPOCH))
    guessed = (1000, LAST_EPOCH)
    assert rig.end(guessed, False, version=V2) is FENCED, "no epoch follows it"
    assert rig.add(guessed) is FENCED
    assert rig.init() == (1001, 0)


def test_that_it_is_over_is_written_as_often_as_it_takes(rig: TransactionRig) -> None:
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
def test_what_is_decided_gets_its_markers_from_the_next_coordinator(
    rig: TransactionRig, commit: bool
) -> None:
    producer = opened(rig)
    rig.ask_end(producer, commit)
    rig.decide()
    rig = rig.restarted()
    assert rig.state == ("PrepareCommit" if commit else "PrepareAbort")
    rig.settle()
    assert rig.markers == [((1000, 0, COORDINATOR_EPOCH, commit), {T0})]
    assert rig.end(producer, commit) is NONE


def test_markers_have_the_epoch_in_which_the_log_was_read(rig: TransactionRig) -> None:
    producer = opened(rig)
    rig.ask_end(producer)
    rig.decide()
    rig.reload()
    rig.settle()
    assert rig.markers == [((1000, 0, COORDINATOR_EPOCH + 1, True), {T0})]
