"""Transactions when something goes wrong by a fault of ours: one request has to do with it, or one id."""

from __future__ import annotations

import struct

import pytest

from mpbroker.coordinator.transactions.transaction import LAST_EPOCH
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import HeartbeatRequest
from tests.coordinator.transaction_world import World, code_of, opened

T0, T1 = ("t", 0), ("t", 1)
NONE = ErrorCode.NONE


def test_a_fault_ends_the_waits_of_that_id_alone() -> None:
    world = World()
    producer = opened(world)
    world.ask_end(producer)
    waiting = world.ask_add(producer, T1)
    world.coordinator.went_wrong("x", 77)
    assert code_of(world.answers[77]) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert waiting not in world.answers
    world.coordinator.went_wrong("x")
    assert world.added(waiting) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.coordinator.went_wrong("nobody")


@pytest.mark.parametrize("is_delayed", [False, True])
def test_a_step_that_cannot_be_written_is_not_under_way(
    is_delayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.init()
    world.write_record(world.value()._replace(producer_epoch=LAST_EPOCH - 1))
    ids = world.delayed_ids = [] if is_delayed else None

    def write(*_: object) -> None:
        raise struct.error("it has no room")

    with monkeypatch.context() as patched:
        patched.setattr(world.journal, "write", write)
        waiters = [world.ask_init(), world.ask_add((1000, LAST_EPOCH - 1), T0)]
        for then in ids or ():
            then(5)
        assert code_of(world.answers[waiters[0]]) is ErrorCode.UNKNOWN_SERVER_ERROR
        assert world.added(waiters[1]) is ErrorCode.UNKNOWN_SERVER_ERROR
    world.delayed_ids = None
    assert world.init() == (next(world.next_ids) - 1, 0)


def test_a_timer_that_goes_wrong_is_no_other_ids_affair(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    producer = opened(world)
    world.ask_end(producer)
    waiting = world.ask_add(producer, T1)

    def fails() -> None:
        raise RuntimeError("a fault")

    world.coordinator.timers.set(("wait", "x", "?"), world.now_ms, fails)
    world.coordinator.timers.set("all", world.now_ms, fails)
    world.coordinator.tick()
    assert world.added(waiting) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert caplog.text.count("RuntimeError: a fault") == 2


def test_a_turn_that_goes_wrong_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    producer = world.init()
    writing = world.ask_add(producer, T0)
    heard: list[ErrorCode] = []

    def fails() -> bool:
        raise RuntimeError("a fault")

    def attempt() -> bool:
        transaction = world.coordinator.manager.find("x")
        assert transaction is not None
        return not transaction.is_busy and fails()

    world.coordinator.manager.submit("x", attempt, heard.append, None)
    ending = world.ask_end(producer)
    world.settle()
    assert heard == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert (world.added(writing), code_of(world.answers[ending])) == (NONE, NONE)
    assert caplog.text.count("RuntimeError: a fault") == 1


def test_another_coordinators_request_is_refused() -> None:
    world = World()
    assert world.answers[world.ask(HeartbeatRequest("g"), 4)] is ErrorCode.UNSUPPORTED_VERSION
