"""Produce in transactions: what the coordinator is asked, and what may be appended then."""

from __future__ import annotations

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.handlers.produce import transaction_checks
from mpbroker.handlers.produce.verified_partitions import VerifiedPartitions
from mpbroker.ipc.calls import CheckedTransaction, CheckTransaction, Failed
from mpbroker.ipc.process import LOG_FENCE_CLOSE
from mpbroker.ipc.slots import SlotKind
from mpbroker.ipc.topology import COORDINATOR, log_worker
from mpbroker.protocol.errors import ErrorCode
from tests.support.handler_rig import Rig, fence, rig
from tests.support.handler_transactions import (
    HOLD,
    TOPIC,
    TV1,
    TV2,
    ask,
    asked,
    batch,
    ended,
    errors,
    kinds,
    request,
    say,
    send,
)

READY = (TOPIC,)


# ---- what is asked, and what may be appended


@pytest.mark.parametrize("version", range(3, 14))
def test_the_coordinator_is_asked_before_the_append(ready: Rig, version: int) -> None:
    call, message = ask(ready, version, request((1, batch())))
    assert message == CheckTransaction("tx", 9, 1, [("t", 1)], version >= TV2)
    assert ready.log.take() == []
    say(ready, call, 0, hold=0 if version >= TV2 else HOLD)
    assert ready.coordinator.take() == []
    (appended,) = ready.append()
    assert (appended.slot, appended.producer_id, appended.base_sequence) == (1, 9, 4)
    assert errors(ready, version) == [0]
    assert ended(ready) == ([] if version >= TV2 else [HOLD])


@pytest.mark.parametrize("acks", [-1, 0, 1])
@pytest.mark.parametrize("version", [TV1, TV2])
def test_acks_are_those_of_the_request(ready: Rig, version: int, acks: int) -> None:
    call, _ = ask(ready, version, request((0, batch()), acks=acks))
    say(ready, call, 0, hold=HOLD)
    (job,) = ready.log.take()
    assert job.acks == acks
    ready.log.append(job)
    ready.turn()
    assert kinds(ready) == [SlotKind.SEND if acks else SlotKind.NOOP]
    assert ended(ready) == [HOLD]


def test_a_refused_batch_without_acks_closes_the_connection(ready: Rig) -> None:
    call, _ = ask(ready, TV2, request((0, batch()), acks=0))
    say(ready, call, ErrorCode.TRANSACTION_ABORTABLE)
    assert kinds(ready) == [SlotKind.CLOSE]
    assert ready.log.take() == []


TOLD = {
    ErrorCode.PRODUCER_FENCED: lambda _: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: lambda _: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE: lambda _: ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE: lambda version: (
        ErrorCode.TRANSACTION_ABORTABLE if version >= 11 else ErrorCode.INVALID_TXN_STATE
    ),
    ErrorCode.CONCURRENT_TRANSACTIONS: lambda version: (
        ErrorCode.CONCURRENT_TRANSACTIONS if version >= 12 else ErrorCode.NOT_ENOUGH_REPLICAS
    ),
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: lambda _: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: lambda _: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_COORDINATOR: lambda _: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NETWORK_EXCEPTION: lambda _: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.UNKNOWN_SERVER_ERROR: lambda _: ErrorCode.UNKNOWN_SERVER_ERROR,
}


@pytest.mark.parametrize("version", [3, 10, 11, 12, 13])
@pytest.mark.parametrize("code", TOLD)
def test_errors_as_the_version_knows_them(ready: Rig, code: ErrorCode, version: int) -> None:
    """Check it for errors of a partition, and of the whole check."""
    whole = [] if code in transaction_checks.LOADING else [Failed(code, "")]
    for answer in (CheckedTransaction([code]), *whole):
        call, _ = ask(ready, version, request((0, batch())))
        ready.reply(call, answer)
        assert errors(ready, version) == [TOLD[code](version)]
        assert ready.log.take() == []


@pytest.mark.parametrize("code", transaction_checks.LOADING)
def test_a_coordinator_that_loads_is_asked_again(
    ready: Rig, monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    """Check that the batch waits: after an error the client's next batches would be out of order."""
    monkeypatch.setattr(transaction_checks, "ASK_AGAIN_MS", 60_000)
    questions = ready.handler.broker.transactions
    send(ready, TV2, request((0, batch())))
    for _ in range(3):
        call, message = asked(ready)
        ready.reply(call, Failed(code, ""))
        due_ms = questions.next_deadline_ms()
        assert due_ms is not None
        questions.ask_again(due_ms - 1)
        assert questions.next_deadline_ms() == due_ms
        questions.ask_again(due_ms)
        ready.handler.flush()
    call, again = asked(ready)
    assert again == message
    say(ready, call, 0)
    ready.append()
    assert errors(ready, TV2) == [0]
    assert len(questions) == 0


def test_one_that_loads_for_too_long_is_an_error(ready: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_checks, "LOADING_MS", 0)
    call, _ = ask(ready, TV2, request((0, batch())))
    ready.reply(call, Failed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ""))
    assert errors(ready, TV2) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert len(ready.handler.broker.transactions) == 0


def test_the_handler_wakes_up_to_ask_again(ready: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ready.handler.sleep_ms() > 0
    monkeypatch.setattr(ready.handler.broker.transactions, "next_deadline_ms", lambda: 1)
    assert ready.handler.sleep_ms() == 0


def test_nobody_asks_again_for_one_that_is_lost(ready: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_checks, "ASK_AGAIN_MS", 60_000)
    questions = ready.handler.broker.transactions
    call, _ = ask(ready, TV2, request((0, batch())))
    ready.reply(call, Failed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ""))
    fence(ready, log_worker(0), alive=False, stage=LOG_FENCE_CLOSE)
    assert kinds(ready) == [SlotKind.CLOSE]
    due_ms = questions.next_deadline_ms()
    assert due_ms is not None
    questions.ask_again(due_ms)
    ready.handler.flush()
    assert ready.coordinator.take() == []
    assert (len(questions), questions.next_deadline_ms()) == (0, None)


def test_one_partition_does_not_suffer_from_another(ready: Rig) -> None:
    """Check it beside partitions outside of the transaction, and beside batches that are bad."""
    broken = bytearray(batch())
    broken[-1] ^= 1
    outside = batch(transactional=False)
    for third, expected in ((bytes(broken), 2), (outside, 0)):
        call, message = ask(ready, TV1, request((0, batch()), (1, batch(key=b"other")), (2, third)))
        assert message.partitions == [("t", 0), ("t", 1)]
        say(ready, call, ErrorCode.TRANSACTION_ABORTABLE, 0, hold=HOLD)
        assert [one.slot for one in ready.append()] == ([1] if expected else [1, 2])
        assert errors(ready, TV1) == [ErrorCode.TRANSACTION_ABORTABLE, 0, expected]
        assert ended(ready) == [HOLD]


@pytest.mark.parametrize("version", [3, 7, 12, 13])
@pytest.mark.parametrize("acks", [-1, 0])
def test_batches_of_nobodys_transaction_are_refused(ready: Rig, version: int, acks: int) -> None:
    """Check that the whole request is refused, as in Kafka."""
    both = request((0, batch()), (1, batch(transactional=False)), transactional_id=None, acks=acks)
    send(ready, version, both)
    if acks:
        assert errors(ready, version) == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2
    else:
        assert kinds(ready) == [SlotKind.CLOSE]
    assert ready.coordinator.take() == []
    assert ready.log.take() == []


@pytest.mark.parametrize("version", [3, 12, 13])
def test_batches_outside_of_the_transaction_ask_nobody(ready: Rig, version: int) -> None:
    send(ready, version, request((0, batch(transactional=False))))
    assert ready.coordinator.take() == []
    ready.append()
    assert errors(ready, version) == [0]


@pytest.mark.parametrize("other", [batch(producer=10), batch(epoch=2)])
def test_two_producers_in_a_request_are_refused(ready: Rig, other: bytes) -> None:
    send(ready, TV2, request((0, batch()), (1, other)))
    assert errors(ready, TV2) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
    send(ready, TV2, request((0, batch()), (1, other), acks=0))
    assert kinds(ready) == [SlotKind.CLOSE]
    assert ready.coordinator.take() == []
    assert ready.log.take() == []


@pytest.mark.parametrize("version", [TV1, TV2])
def test_nobody_is_asked_without_verification_but_to_add(version: int) -> None:
    with rig(BrokerConfig(transaction_partition_verification_enable=False)) as ready:
        ready.publish(TOPIC)
        send(ready, version, request((0, batch())))
        if version >= TV2:
            call, message = asked(ready)
            assert message.adds
            say(ready, call, 0)
        ready.append()
        assert errors(ready, version) == [0]
        assert ready.coordinator.take() == []


# ---- what was granted


def grant(ready: Rig, *batches: tuple[int, bytes], hold: int = 0) -> list[tuple[str, int]]:
    """A request that the coordinator lets through; what it was asked for."""
    send(ready, TV2, request(*batches))
    calls = ready.coordinator.take()
    for call, message in calls:
        say(ready, call, *[0] * len(message.partitions), hold=hold)
    ready.append()
    assert set(errors(ready, TV2)) == {0}
    return [one for _, message in calls for one in message.partitions]


def test_what_was_granted_is_not_asked_for_again_in_that_epoch(ready: Rig) -> None:
    assert grant(ready, (0, batch())) == [("t", 0)]
    assert grant(ready, (0, batch())) == []
    assert grant(ready, (0, batch()), (1, batch())) == [("t", 1)]
    assert grant(ready, (0, batch(producer=10))) == [("t", 0)]
    assert grant(ready, (0, batch()), (1, batch())) == []
    assert grant(ready, (0, batch(epoch=2))) == [("t", 0)]
    # Of the epoch before nothing is known any more.
    assert grant(ready, (1, batch(epoch=2))) == [("t", 1)]


def test_what_is_held_or_refused_is_asked_for_again(ready: Rig) -> None:
    """Check that only verified partitions are remembered: a hold means that the epoch may stay."""
    for _ in range(2):
        assert grant(ready, (0, batch()), hold=HOLD) == [("t", 0)]
        assert ended(ready) == [HOLD]
    for _ in range(2):
        call, _ = ask(ready, TV2, request((1, batch())))
        say(ready, call, ErrorCode.CONCURRENT_TRANSACTIONS)
        assert errors(ready, TV2) == [ErrorCode.CONCURRENT_TRANSACTIONS]


def test_what_was_granted_outlives_the_coordinator(ready: Rig) -> None:
    grant(ready, (0, batch()))
    fence(ready, COORDINATOR, alive=False)
    assert grant(ready, (0, batch())) == []


def test_old_clients_ask_each_time(ready: Rig) -> None:
    grant(ready, (0, batch()))
    for hold in (5, 6):
        call, message = ask(ready, TV1, request((0, batch())))
        assert not message.adds
        say(ready, call, 0, hold=hold)
        ready.append()
        assert errors(ready, TV1) == [0]
        assert ended(ready) == [hold]


def test_the_memory_of_what_was_granted_is_bounded() -> None:
    granted = VerifiedPartitions(most_places=4)
    for producer in range(3):
        for slot in range(2):
            granted.add(producer, 0, (slot, 1))
            granted.add(producer, 0, (slot, 1))
    assert len(granted) == 4
    assert [granted.has(producer, 0, (0, 1)) for producer in range(3)] == [False, True, True]
    # Who begins another transaction is not the oldest any more.
    granted.add(1, 1, (0, 1))
    granted.add(1, 1, (1, 1))
    granted.add(3, 0, (0, 1))
    assert [granted.has(*who, (0, 1)) for who in ((1, 1), (2, 0), (3, 0))] == [True, False, True]
    assert not granted.has(1, 0, (0, 1))
    assert not granted.has(1, 1, (0, 2))
    for slot in range(5):
        granted.add(4, 0, (slot, 1))
    assert len(granted) == 0
