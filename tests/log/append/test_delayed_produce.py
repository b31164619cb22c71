"""A produce waits for the disk as long as it says: only what lags times out, and the data stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.slots import SlotKind
from mpbroker.ipc.topology import COORDINATOR
from mpbroker.log.append.turn import Pause
from tests.support.log_rig import Result
from tests.support.log_writer import make_batch
from tests.support.stalled_flusher import MakeRig, Stalled
from tests.support.stepped_log import T0, settle

pytestmark = pytest.mark.usefixtures("tidy")
TIMED_OUT = 7


@pytest.fixture(name="stalled")
def _stalled(rig: MakeRig) -> Iterator[Stalled]:
    made = Stalled(rig, 2)
    yield made
    made.close()


@pytest.mark.parametrize("by_reference", [False, True])
def test_a_duplicate_waits_for_the_disk_as_long_as_the_original(stalled: Stalled, by_reference: bool) -> None:
    """Check that a duplicate is not acknowledged before the original is durable."""
    stalled.process.turn.for_tests(by_reference=by_reference)
    data = make_batch(2, producer=(9, 0, 0))
    stalled.stall()
    for _ in range(3):
        stalled.rig.job([(stalled.targets[0], data)])
        stalled.process.work(0)
        stalled.process.work(0)
        assert stalled.rig.replies() == []
    stalled.release()
    assert [reply.results[0].base_offset for reply in stalled.rig.replies()] == [0, 0, 0]
    assert stalled.rig.partition(stalled.targets[0][0]).high_watermark == 2


def test_only_the_partition_that_lags_times_out(stalled: Stalled) -> None:
    durable = make_batch(2, producer=(9, 0, 0))
    assert stalled.produce(durable)[0].error == 0
    stalled.stall()
    again_and_new = [(stalled.targets[0], durable), (stalled.targets[1], make_batch(3))]
    stalled.rig.job(again_and_new, timeout_ms=1)
    reply = stalled.wait()
    assert reply.kind == SlotKind.SEND
    assert reply.results == [Result(0, 0, T0 + 1, 0), Result(TIMED_OUT, 0, -1, 0)]
    assert stalled.count(Counter.COUNT_PRODUCES_EXPIRED) == 1
    assert stalled.count(Counter.COUNT_PRODUCES_DELAYED) == 0
    slot = stalled.targets[1][0]
    assert stalled.rig.partition(slot).high_watermark == 0
    stalled.release()
    assert stalled.rig.replies() == [], "answered once"
    now = stalled.rig.partition(slot)
    assert (now.high_watermark, now.log_end_offset) == (3, 3), "the data stays and becomes visible"


def test_the_slow_path_is_told_the_same(stalled: Stalled) -> None:
    stalled.stall()
    stalled.rig.job([(stalled.targets[0], make_batch())], timeout_ms=1, back=True)
    reply = stalled.wait()
    assert (reply.kind, [r.error for r in reply.results]) == (SlotKind.PRODUCED, [TIMED_OUT])
    stalled.release()
    assert stalled.rig.replies() == []


def test_who_has_time_waits_while_others_time_out(stalled: Stalled) -> None:
    stalled.stall()
    patient = stalled.rig.job([(stalled.targets[0], make_batch())], timeout_ms=60_000)
    hasty = stalled.rig.job([(stalled.targets[0], make_batch())], timeout_ms=1)
    now = stalled.rig.job([(stalled.targets[0], make_batch())], timeout_ms=0)
    answered = [stalled.wait(), stalled.wait()] if not (both := stalled.rig.replies()) else both
    assert {reply.request for reply in answered} == {hasty, now}
    assert {reply.results[0].error for reply in answered} == {TIMED_OUT}
    assert stalled.count(Counter.COUNT_PRODUCES_DELAYED) == 1
    stalled.release()
    (reply,) = stalled.rig.replies()
    assert (reply.request, reply.results[0].error, reply.results[0].base_offset) == (patient, 0, 0)
    assert stalled.count(Counter.COUNT_PRODUCES_DELAYED) == 0


def test_acks_1_does_not_wait(stalled: Stalled) -> None:
    stalled.stall()
    stalled.rig.job([(stalled.targets[0], make_batch())], timeout_ms=0, acks=1)
    assert stalled.wait().results[0].error == 0
    stalled.release()


def test_the_log_end_is_published_before_an_answer(stalled: Stalled) -> None:
    """Check that acks=1 acknowledges nothing that is out of range, and wakes nobody who waits for records."""
    slot = stalled.targets[0][0]
    marks, dirty = stalled.rig.memory.marks(), stalled.rig.memory.words("dirty")
    marks.mark(slot, 4)
    stalled.stall()
    stalled.rig.job([(stalled.targets[0], make_batch(3))], acks=1)
    assert stalled.wait().results[0].base_offset == 0
    now = stalled.rig.partition(slot)
    assert (now.high_watermark, now.last_stable_offset, now.log_end_offset) == (0, 0, 3)
    assert dirty.load(4) == 0
    stalled.release()
    now = stalled.rig.partition(slot)
    assert (now.high_watermark, now.last_stable_offset, now.log_end_offset) == (3, 3, 3)
    assert dirty.load(4) > 0


def test_the_marks_are_published_before_an_answer(stalled: Stalled) -> None:
    """Check it where Python answers a call while the answers of a finished round lie ready."""
    stalled.stall()
    stalled.rig.job([(stalled.targets[0], make_batch(3))])
    stalled.process.work(0)
    stalled.sync()
    stalled.rig.call(calls.TellMoves())
    turn = stalled.process.turn
    assert turn.run(0) == Pause.SLOT_FOR_PYTHON
    assert not stalled.is_answered()
    turn.send(COORDINATOR, bytes(64))
    assert stalled.is_answered()
    assert stalled.rig.partition(stalled.targets[0][0]).high_watermark == 3
    settle(stalled.process)


def test_a_sender_that_dies_while_its_produce_waits(stalled: Stalled) -> None:
    """Check that its fence lasts until its produce is durable, or has timed out."""
    stalled.stall()
    stalled.rig.job([(stalled.targets[0], make_batch())], timeout_ms=50)
    stalled.process.work(0)
    turn = stalled.process.turn
    turn.forget(stalled.rig.handler)
    assert turn.owes(stalled.rig.handler)
    assert stalled.wait().results[0].error == TIMED_OUT
    assert not turn.owes(stalled.rig.handler)
    stalled.release()


def test_the_data_of_a_timed_out_produce_survives_a_restart(rig: MakeRig) -> None:
    stalled = Stalled(rig)
    directory: Path = stalled.rig.directory
    stalled.stall()
    stalled.rig.job([(stalled.targets[0], make_batch(4))], timeout_ms=1)
    assert stalled.wait().results[0].error == TIMED_OUT
    stalled.release()
    stalled.process.manager.close_cleanly()
    stalled.close()
    (segment,) = directory.glob("t-0/*.log")
    assert segment.stat().st_size == len(make_batch(4))
