"""Transactions when something goes wrong by a fault of ours: one request has to do with it, or one id."""

from __future__ import annotations

import struct

import pytest

from mpbroker.coordinator.transactions.pending_step import Action, PendingStep
from mpbroker.coordinator.transactions.transaction import LAST_EPOCH
from mpbroker.protocol.errors import ErrorCode
from tests.support.transaction_rig import TransactionRig, code_of, opened

T0, T1 = ("t", 0), ("t", 1)
NONE = ErrorCode.NONE


def test_a_fault_ends_the_waits_of_that_id_alone() -> None:
    rig = TransactionRig()
    producer = opened(rig)
    rig.ask_end(producer)
    waiting = rig.ask_add(producer, T1)
    rig.coordinator.refuse_waiters("x", 77)
    assert code_of(rig.answers[77]) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert waiting not in rig.answers
    rig.coordinator.refuse_waiters("x")
    assert rig.added(waiting) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    rig.coordinator.refuse_waiters("nobody")


@pytest.mark.parametrize("is_delayed", [False, True])
def test_a_step_that_cannot_be_written_is_not_under_way(
    is_delayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = TransactionRig()
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


def test_a_timer_that_goes_wrong_is_no_other_ids_affair(caplog: pytest.LogCaptureFixture) -> None:
    rig = TransactionRig()
    producer = opened(rig)
    rig.ask_end(producer)
    waiting = rig.ask_add(producer, T1)

    def fails() -> None:
        raise RuntimeError("a fault")

    rig.coordinator.timers.set(("wait", "x", "?"), rig.now_ms, fails)
    rig.coordinator.timers.set("all", rig.now_ms, fails)
    rig.coordinator.tick()
    assert rig.added(waiting) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert caplog.text.count("RuntimeError: a fault") == 2


def test_a_step_that_goes_wrong_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    rig = TransactionRig()
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
