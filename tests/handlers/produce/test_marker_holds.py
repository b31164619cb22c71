"""A transaction whose end waits for a Produce: every hold ends once, whoever dies in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mpbroker.handlers.calls.patient_client import SUCCESSOR_MS
from mpbroker.ipc.process import LOG_FENCE_ANSWER, LOG_FENCE_CLOSE, LOG_FENCE_RESUME
from mpbroker.ipc.slots import SlotKind
from mpbroker.ipc.topology import COORDINATOR, log_worker
from mpbroker.protocol.errors import ErrorCode
from shm.arena import ArenaFull
from shm.clock import monotonic_ms
from tests.support.handler_rig import PROCESSOR, Rig, fence, rig
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


def held(ready: Rig, *parts: int) -> None:
    """A request of TV1 that the coordinator has let through."""
    call, message = ask(ready, TV1, request(*((part, batch()) for part in parts or (0,))))
    say(ready, call, *[0] * len(message.partitions), hold=HOLD)


def test_a_hold_ends_when_nothing_may_be_appended(ready: Rig) -> None:
    call, _ = ask(ready, TV1, request((0, batch())))
    say(ready, call, ErrorCode.TRANSACTION_ABORTABLE, hold=HOLD)
    assert errors(ready, TV1) == [ErrorCode.TRANSACTION_ABORTABLE]
    assert ended(ready) == [HOLD]


def test_a_hold_ends_when_the_log_refuses(ready: Rig) -> None:
    held(ready)
    (job,) = ready.log.take()
    ready.log.append(job, error=ErrorCode.INVALID_PRODUCER_EPOCH)
    ready.turn()
    assert errors(ready, TV1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert ended(ready) == [HOLD]


def test_a_hold_ends_when_the_answer_is_nonsense(ready: Rig) -> None:
    call, _ = ask(ready, TV1, request((0, batch())))
    say(ready, call, 0, 0, hold=HOLD)
    assert errors(ready, TV1) == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert ended(ready) == [HOLD]
    assert ready.log.take() == []


@pytest.mark.parametrize("error", [ArenaFull("no room"), RuntimeError("broken")])
def test_a_hold_ends_when_the_append_fails(
    ready: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(ready.handler.broker.log, "append", broken)
    held(ready)
    expected = SlotKind.CLOSE if isinstance(error, ArenaFull) else SlotKind.SEND
    assert kinds(ready) == [expected]
    assert ended(ready) == [HOLD]


def test_a_hold_ends_when_its_processor_has_died_before_the_answer(ready: Rig) -> None:
    call, _ = ask(ready, TV1, request((0, batch())))
    fence(ready, PROCESSOR, alive=False)
    say(ready, call, 0, hold=HOLD)
    assert ended(ready) == [HOLD]
    assert ready.log.take() == []
    assert len(ready.handler.broker.transactions) == 0


def test_a_hold_ends_when_its_processor_dies_over_the_append(ready: Rig) -> None:
    held(ready)
    fence(ready, PROCESSOR, alive=False)
    assert ended(ready) == []
    ready.append()
    assert ended(ready) == [HOLD]


def fill(ready: Rig, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Fill the arena for appends until the returned function is called."""
    jobs = ready.handler.broker.log
    append_now = jobs._append

    def full(*_: object) -> None:
        raise ArenaFull("full")

    monkeypatch.setattr(jobs, "_append", full)
    return lambda: monkeypatch.setattr(jobs, "_append", append_now)


def test_a_hold_lasts_while_the_append_waits_for_room(ready: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    make_room = fill(ready, monkeypatch)
    held(ready)
    assert ended(ready) == []
    make_room()
    ready.turn()
    ready.append()
    assert errors(ready, TV1) == [0]
    assert ended(ready) == [HOLD]


def test_a_hold_ends_with_the_processor_of_an_append_that_waits(
    ready: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_room = fill(ready, monkeypatch)
    held(ready)
    fence(ready, PROCESSOR, alive=False)
    make_room()
    assert ended(ready) == [HOLD]
    assert ready.log.take() == []


def test_a_hold_ends_when_its_append_has_waited_for_too_long(
    ready: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(ready, monkeypatch)
    held(ready)
    ready.handler.broker.waiting.give_up()
    ready.handler.flush()
    assert kinds(ready) == [SlotKind.CLOSE]
    assert ended(ready) == [HOLD]


def test_the_end_of_a_hold_is_told_again_when_there_was_no_memory_for_it(
    ready: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(ready)
    coordinator = ready.handler.broker.coordinator
    lend = coordinator.client._lender.lend

    def full(*_: object) -> None:
        raise ArenaFull("full")

    monkeypatch.setattr(coordinator.client._lender, "lend", full)
    ready.append()
    assert errors(ready, TV1) == [0]
    assert ended(ready) == []
    assert ready.handler.sleep_ms() < 100
    monkeypatch.setattr(coordinator.client._lender, "lend", lend)
    ready.turn()
    assert ended(ready) == [HOLD]
    ready.turn()
    assert ended(ready) == []


# ---- the log worker dies


def test_the_log_worker_dies_while_the_coordinator_is_asked(ready: Rig) -> None:
    """Check that the handler drops the request: the processors take it for lost and reuse its memory."""
    call, _ = ask(ready, TV1, request((0, batch())))
    fence(ready, log_worker(0), alive=False, stage=LOG_FENCE_CLOSE)
    assert kinds(ready) == [SlotKind.CLOSE]
    assert len(ready.handler.broker.transactions) == 1
    fence(ready, log_worker(0), alive=False, stage=LOG_FENCE_RESUME)
    ready.welcome(log_worker(0))
    say(ready, call, 0, hold=HOLD)
    assert ready.log.take() == []
    assert ended(ready) == [HOLD]
    assert len(ready.handler.broker.transactions) == 0


def test_a_hold_lasts_until_a_dead_log_worker_has_a_successor() -> None:
    """Check that no marker comes before a part of the request that another worker may still have."""
    with rig(log_workers=2) as ready:
        ready.publish(TOPIC)
        held(ready, 0, 1)
        fence(ready, log_worker(1), alive=False, stage=LOG_FENCE_CLOSE)
        assert kinds(ready) == [SlotKind.CLOSE]
        assert ended(ready) == []
        for stage in (LOG_FENCE_ANSWER, LOG_FENCE_RESUME):
            fence(ready, log_worker(1), alive=False, stage=stage)
            assert ended(ready) == []
        ready.welcome(log_worker(1))
        assert ended(ready) == [HOLD]


# ---- the coordinator dies


def test_its_successor_is_asked_once_more(ready: Rig) -> None:
    _, first = ask(ready, TV2, request((0, batch())))
    fence(ready, COORDINATOR, alive=False)
    assert ready.processor.replies() == []
    ready.welcome(COORDINATOR)
    call, again = asked(ready)
    assert again == first
    say(ready, call, 0)
    ready.append()
    assert errors(ready, TV2) == [0]


def test_over_a_question_at_which_two_died_the_connection_is_closed(ready: Rig) -> None:
    """Check that the connection is closed.

    Behind an error the client's next batches would overtake this one.
    """
    ask(ready, TV2, request((0, batch())))
    fence(ready, COORDINATOR, alive=False)
    ready.welcome(COORDINATOR)
    asked(ready)
    fence(ready, COORDINATOR, alive=False)
    assert kinds(ready) == [SlotKind.CLOSE]
    assert ready.handler.intake.open == {}


@pytest.mark.parametrize("was_asked", [True, False])
def test_without_a_successor_the_connection_is_closed(ready: Rig, was_asked: bool) -> None:
    if not was_asked:
        fence(ready, COORDINATOR, alive=False)
    send(ready, TV1, request((0, batch())))
    if was_asked:
        asked(ready)
        fence(ready, COORDINATOR, alive=False)
    ready.handler.broker.coordinator.expire(monotonic_ms() + SUCCESSOR_MS - 500)
    assert kinds(ready) == []
    ready.no_successor_comes()
    assert kinds(ready) == [SlotKind.CLOSE]
    assert len(ready.handler.broker.transactions) == 0


def test_a_successor_hears_when_the_holds_of_before_are_over(ready: Rig) -> None:
    """Check that it ends no transaction of TV1 before that, and ignores hold numbers of its predecessor."""
    assert ready.coordinator.holds_ended == 1
    held(ready)
    fence(ready, COORDINATOR, alive=False)
    ready.welcome(COORDINATOR)
    ready.turn()
    assert ended(ready) == []
    assert ready.coordinator.holds_ended == 1
    ready.append()
    assert errors(ready, TV1) == [0]
    assert ended(ready) == []
    assert ready.coordinator.holds_ended == 2
    # Its own holds end as ever.
    held(ready)
    ready.append()
    assert errors(ready, TV1) == [0]
    assert ended(ready) == [HOLD]
    assert ready.coordinator.holds_ended == 2


def test_what_is_over_before_there_is_a_successor_is_told_at_once(ready: Rig) -> None:
    held(ready)
    fence(ready, COORDINATOR, alive=False)
    ready.append()
    assert errors(ready, TV1) == [0]
    assert ready.coordinator.holds_ended == 1
    ready.welcome(COORDINATOR)
    ready.turn()
    assert ended(ready) == []
    assert ready.coordinator.holds_ended == 2


def test_one_that_dies_before_it_has_heard_is_no_end_of_it(ready: Rig) -> None:
    """Kill coordinator and log worker at once, and check that holds are over when both have successors."""
    held(ready)
    fence(ready, COORDINATOR, alive=False)
    fence(ready, log_worker(0), alive=False, stage=LOG_FENCE_CLOSE)
    fence(ready, log_worker(0), alive=False, stage=LOG_FENCE_RESUME)
    ready.welcome(COORDINATOR)
    ready.turn()
    assert ended(ready) == []
    assert ready.coordinator.holds_ended == 1
    ready.welcome(log_worker(0))
    ready.turn()
    assert ended(ready) == []
    assert ready.coordinator.holds_ended == 2


# ---- connections


def test_a_closed_connection_does_not_stop_the_append(ready: Rig) -> None:
    """Check that the handler keeps the block until the answer ends the lease, as for every Produce."""
    call, _ = ask(ready, TV1, request((0, batch())))
    ready.processor.cancel(7)
    ready.turn()
    assert ready.processor.replies() == []
    say(ready, call, 0, hold=HOLD)
    (appended,) = ready.append()
    assert appended.producer_id == 9
    assert errors(ready, TV1) == [0]
    assert ended(ready) == [HOLD]


def test_nobody_waits_for_one_that_waits_for_the_coordinator(ready: Rig) -> None:
    call, _ = ask(ready, TV2, request((0, batch())), connection=1)
    send(ready, TV2, request((0, batch(transactional=False)), transactional_id=None), connection=2)
    (job,) = ready.log.take()
    assert job.connection == 2
    ready.log.append(job)
    say(ready, call, 0)
    ready.append()
    assert errors(ready, TV2) == [0]


def test_a_handler_that_goes_answers_first(ready: Rig) -> None:
    held(ready)
    assert ready.handler.has_unfinished()
    ready.append()
    assert errors(ready, TV1) == [0]
    assert ended(ready) == [HOLD]
    assert not ready.handler.has_unfinished()
