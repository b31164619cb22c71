"""A produce waits for the disk as long as it says: only what lags times out, and the data stays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.slots import SlotKind
from mpbroker.ipc.topology import LOG
from tests.log.append.test_turn import T0, Broker, settle
from tests.support.log_rig import Reply, Result
from tests.support.polling import until

pytestmark = pytest.mark.usefixtures("tidy")
TIMED_OUT = 7
MakeRig = Callable[..., Any]


def eventfds() -> set[int]:
    found = set()
    for link in list(Path("/proc/self/fd").iterdir()):
        try:
            if "[eventfd]" in str(link.readlink()):
                found.add(int(link.name))
        except FileNotFoundError:
            continue  # the listing's own descriptor, closed already
    return found


def other_threads() -> list[Path]:
    return [task for task in Path("/proc/self/task").iterdir() if task.name != str(os.getpid())]


def is_asleep(task: Path) -> bool:
    """Whether it waits for somebody, and not for the disk or a processor; or has ended just now."""
    try:
        text = (task / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return text[text.rindex(")") + 2] == "S"


def until_asleep() -> None:
    until(lambda: all(is_asleep(task) for task in other_threads()), "all threads sleep")


class Stalled(Broker):
    """A broker whose disk takes its time: the flusher thread is not woken until `release`."""

    def __init__(self, rig: MakeRig, partitions: int = 1) -> None:
        made = rig()
        before = eventfds()
        super().__init__(made, partitions)
        # The other one wakes the thread that syncs in the background.
        self.wake_fd, _ = sorted(eventfds() - before)
        self.thread_waits_at = -1

    def stall(self) -> None:
        """The thread goes on reading the descriptor it had; what is written from now on goes nowhere."""
        until_asleep()
        self.thread_waits_at = os.dup(self.wake_fd)
        nowhere = os.eventfd(0)
        os.dup2(nowhere, self.wake_fd)
        os.close(nowhere)

    def release(self) -> None:
        """The thread takes the round that it missed, and goes on with the descriptor that is there now."""
        os.eventfd_write(self.thread_waits_at, 1)
        os.close(self.thread_waits_at)
        self.thread_waits_at = -1
        settle(self.process)

    def wait(self) -> Reply:
        until(self.is_answered, "an answer", lambda: self.process.work(5))
        (reply,) = self.rig.replies()
        return reply

    def is_answered(self) -> bool:
        return self.rig.from_log.waiting() > 0 or self.rig.produced.waiting() > 0

    def count(self, counter: Counter) -> int:
        return self.rig.memory.counters(LOG).get(counter)

    def close(self) -> None:
        if self.thread_waits_at >= 0:
            os.dup2(self.thread_waits_at, self.wake_fd)
            os.close(self.thread_waits_at)
        super().close()


@pytest.fixture(name="stalled")
def _stalled(rig: MakeRig) -> Iterator[Stalled]:
    made = Stalled(rig, 2)
    yield made
    made.close()


@pytest.mark.parametrize("by_reference", [False, True])
def test_a_duplicate_waits_for_the_disk_as_long_as_the_original(
    stalled: Stalled, batch: Callable[..., bytes], by_reference: bool
) -> None:
    """Its sender would take for kept what a power cut takes back."""
    stalled.process.turn.for_tests(by_reference=by_reference)
    data = batch(2, producer=(9, 0, 0))
    stalled.stall()
    for _ in range(3):
        stalled.rig.job([(stalled.targets[0], data)])
        stalled.process.work(0)
        stalled.process.work(0)
        assert stalled.rig.replies() == []
    stalled.release()
    assert [reply.results[0].base_offset for reply in stalled.rig.replies()] == [0, 0, 0]
    assert stalled.rig.partition(stalled.targets[0][0]).high_watermark == 2


def test_only_the_partition_that_lags_times_out(stalled: Stalled, batch: Callable[..., bytes]) -> None:
    durable = batch(2, producer=(9, 0, 0))
    assert stalled.produce(durable)[0].error == 0
    stalled.stall()
    again_and_new = [(stalled.targets[0], durable), (stalled.targets[1], batch(3))]
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


def test_the_slow_path_is_told_the_same(stalled: Stalled, batch: Callable[..., bytes]) -> None:
    stalled.stall()
    stalled.rig.job([(stalled.targets[0], batch())], timeout_ms=1, back=True)
    reply = stalled.wait()
    assert (reply.kind, [r.error for r in reply.results]) == (SlotKind.PRODUCED, [TIMED_OUT])
    stalled.release()
    assert stalled.rig.replies() == []


def test_who_has_time_waits_while_others_time_out(stalled: Stalled, batch: Callable[..., bytes]) -> None:
    stalled.stall()
    patient = stalled.rig.job([(stalled.targets[0], batch())], timeout_ms=60_000)
    hasty = stalled.rig.job([(stalled.targets[0], batch())], timeout_ms=1)
    now = stalled.rig.job([(stalled.targets[0], batch())], timeout_ms=0)
    answered = [stalled.wait(), stalled.wait()] if not (both := stalled.rig.replies()) else both
    assert {reply.request for reply in answered} == {hasty, now}
    assert {reply.results[0].error for reply in answered} == {TIMED_OUT}
    assert stalled.count(Counter.COUNT_PRODUCES_DELAYED) == 1
    stalled.release()
    (reply,) = stalled.rig.replies()
    assert (reply.request, reply.results[0].error, reply.results[0].base_offset) == (patient, 0, 0)
    assert stalled.count(Counter.COUNT_PRODUCES_DELAYED) == 0


def test_acks_1_does_not_wait(stalled: Stalled, batch: Callable[..., bytes]) -> None:
    stalled.stall()
    stalled.rig.job([(stalled.targets[0], batch())], timeout_ms=0, acks=1)
    assert stalled.wait().results[0].error == 0
    stalled.release()


def test_a_sender_that_dies_while_its_produce_waits(stalled: Stalled, batch: Callable[..., bytes]) -> None:
    """Its fence is not over before what it asked for is durable, or its time is up."""
    stalled.stall()
    stalled.rig.job([(stalled.targets[0], batch())], timeout_ms=50)
    stalled.process.work(0)
    turn = stalled.process.turn
    turn.forget(stalled.rig.handler)
    assert turn.owes(stalled.rig.handler)
    assert stalled.wait().results[0].error == TIMED_OUT
    assert not turn.owes(stalled.rig.handler)
    stalled.release()


def test_the_data_of_a_timed_out_produce_survives_a_restart(
    rig: MakeRig, batch: Callable[..., bytes]
) -> None:
    stalled = Stalled(rig)
    directory: Path = stalled.rig.directory
    stalled.stall()
    stalled.rig.job([(stalled.targets[0], batch(4))], timeout_ms=1)
    assert stalled.wait().results[0].error == TIMED_OUT
    stalled.release()
    stalled.process.manager.close_cleanly()
    stalled.close()
    (segment,) = directory.glob("t-0/*.log")
    assert segment.stat().st_size == len(batch(4))
