"""Steps that are refused or fail, and transactional ids that are read again."""

from __future__ import annotations

import struct

import pytest

from mpbroker.coordinator.runtime.partitions import LoadState
from mpbroker.coordinator.transactions.steps import LAST_EPOCH, Action, PendingStep
from mpbroker.protocol.errors import ErrorCode
from tests.support.transaction_rig import PARTITIONS, TransactionRig, code_of, opened

T0, T1 = ("t", 0), ("t", 1)
NONE = ErrorCode.NONE
NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR


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
def test_what_is_refused_has_never_been(rig: TransactionRig, refused: ErrorCode, told: ErrorCode) -> None:
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


def test_whoever_waits_when_the_log_is_gone_is_told_to_ask_again(rig: TransactionRig) -> None:
    producer = opened(rig)
    writing, waiting = rig.ask_end(producer), rig.ask_add(producer, T1)
    rig.reload()
    assert code_of(rig.answers[writing]) is NOT_COORDINATOR
    assert rig.added(waiting) is NOT_COORDINATOR
    assert rig.end(producer) is NONE


def test_a_producer_id_that_comes_after_the_log_is_gone_is_nobodys(rig: TransactionRig) -> None:
    rig.delayed_ids = []
    waiter = rig.ask_init()
    (then,) = rig.delayed_ids
    rig.reload()
    then(5)
    assert code_of(rig.answers[waiter]) is NOT_COORDINATOR
    assert not len(rig.coordinator.state)


def test_a_partition_that_cannot_be_read(rig: TransactionRig) -> None:
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


def test_before_anything_is_known(rig: TransactionRig) -> None:
    rig.coordinator.unload()
    assert rig.coordinator.partitions.states is None
    assert code_of(rig.answers[rig.ask_init()]) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert rig.check((1, 0)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    rig.coordinator.partitions.open(0)
    assert code_of(rig.answers[rig.ask_init()]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert rig.add((1, 0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    rig.coordinator.partitions.open(PARTITIONS)
    assert rig.coordinator.partitions.states == [LoadState.LOADING] * PARTITIONS


@pytest.mark.parametrize("is_delayed", [False, True])
def test_a_step_that_cannot_be_written_is_not_under_way(
    rig: TransactionRig, is_delayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.init()
    rig.write_record(rig.value()._replace(producer_epoch=LAST_EPOCH - 1))
    ids = rig.delayed_ids = [] if is_delayed else None

    def write(*_: object) -> None:
        raise struct.error("it has no room")

    with monkeypatch.context() as patched:
        patched.setattr(rig.queue, "append", write)
        waiters = [rig.ask_init(), rig.ask_add((1000, LAST_EPOCH - 1), T0)]
        for then in ids or ():
            then(5)
        assert code_of(rig.answers[waiters[0]]) is ErrorCode.UNKNOWN_SERVER_ERROR
        assert rig.added(waiters[1]) is ErrorCode.UNKNOWN_SERVER_ERROR
    rig.delayed_ids = None
    assert rig.init() == (next(rig.next_ids) - 1, 0)


def test_a_step_that_goes_wrong_is_answered(rig: TransactionRig, caplog: pytest.LogCaptureFixture) -> None:
    producer = rig.init()
    writing = rig.ask_add(producer, T0)
    heard: list[ErrorCode] = []

    def fails() -> None:
        raise RuntimeError("a fault")

    def attempt() -> Action | None:
        transaction = rig.coordinator.state.find("x")
        assert transaction is not None
        return None if transaction.is_busy else fails

    rig.coordinator.state.submit(PendingStep("x", attempt, heard.append, None))
    ending = rig.ask_end(producer)
    rig.settle()
    assert heard == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert (rig.added(writing), code_of(rig.answers[ending])) == (NONE, NONE)
    assert caplog.text.count("RuntimeError: a fault") == 1
