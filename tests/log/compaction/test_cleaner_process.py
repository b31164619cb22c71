"""The cleaner as a process: which of its threads does what, and when it leaves the CPU to others."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc import calls
from mpbroker.ipc.process import Order, ProcessContext
from mpbroker.ipc.topology import CLEANER
from mpbroker.log.compaction import cleaner as cleaning
from mpbroker.log.compaction import cleaner_process
from mpbroker.log.compaction.cleaner_process import Abandoned, CleanerProcess
from tests.support.compacted_segments import Segments
from tests.support.full_disk import failing_with
from tests.support.handler_rig import shared_memory
from tests.support.polling import PATIENCE_S


class Scripted(CleanerProcess):
    """One task, and a log worker that agrees with all."""

    def __init__(self, context: ProcessContext, task: calls.ToClean) -> None:
        super().__init__(context)
        self.task = task
        self.asked: list[calls.Message] = []

    def _task(self) -> calls.ToClean:
        return self.task

    def _asked(self, message: calls.Message) -> calls.Message:
        self.asked.append(message)
        return calls.Swapped(True)


@pytest.fixture(name="segments")
def _segments(tmp_path: Path) -> Segments:
    log = Segments(tmp_path)
    for value in (b"1", b"2", b"3"):
        log.append([(b"a", value), (b"b", value)])
    log.roll()
    return log


@pytest.fixture(name="context")
def _context(segments: Segments) -> Iterator[ProcessContext]:
    with shared_memory() as memory:
        yield ProcessContext(CLEANER, memory, BrokerConfig(log_dirs=(str(segments.directory),)))


def to_clean(log: Segments, *, must: bool = False) -> calls.ToClean:
    return replace(log.task(), must=must)


class Watched:
    """The scheduling classes of the threads that judge records, and of those that change files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.judging: set[int] = set()
        self.changing: set[int] = set()
        self.io_classes: set[int] = set()
        for owner, name, noted in (
            (cleaning, "map_plain", self.judging),
            (cleaning.os, "pwrite", self.changing),
            (cleaning.os, "fsync", self.changing),
            (cleaning, "remove_cleaned", self.changing),
        ):
            monkeypatch.setattr(owner, name, self._noting(getattr(owner, name), noted))

    def _noting(self, do: Any, noted: set[int]) -> Any:
        def noting(*given: Any) -> Any:
            noted.add(os.sched_getscheduler(0))
            if noted is self.judging:
                self.io_classes.add(int(psutil.Process(threading.get_native_id()).ionice().ioclass))
            return do(*given)

        return noting


def test_what_nobody_waits_for_is_cleaned_when_a_cpu_is_idle(
    context: ProcessContext, segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that files are changed by a thread of usual priority, which does not stop in the middle."""
    process = Scripted(context, to_clean(segments))
    watched = Watched(monkeypatch)
    assert process.clean_one()
    assert watched.judging == {os.SCHED_IDLE}
    assert watched.io_classes == {psutil.IOPRIO_CLASS_BE}
    assert watched.changing == {os.SCHED_OTHER}
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert process.asked[-1] == calls.CleaningEnded(1, segments.end)


def test_what_is_older_than_it_may_be_is_cleaned_on_a_machine_that_is_never_idle(
    context: ProcessContext, segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Scripted(context, to_clean(segments, must=True))
    watched = Watched(monkeypatch)
    assert process.clean_one()
    assert watched.judging == watched.changing == {os.SCHED_OTHER}
    assert process.asked[-1] == calls.CleaningEnded(1, segments.end)


def test_who_may_not_step_back_cleans_all_the_same(
    context: ProcessContext,
    segments: Segments,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(cleaner_process, "only_when_idle", failing_with(errno.EPERM))
    process = Scripted(context, to_clean(segments))
    with caplog.at_level(logging.WARNING):
        assert process.clean_one()
    assert "sched_setscheduler and ioprio_set are forbidden" in caplog.text


@pytest.mark.parametrize("must", [False, True])
def test_an_order_to_stop_ends_it_in_either_thread(
    context: ProcessContext, segments: Segments, must: bool
) -> None:
    process = Scripted(context, to_clean(segments, must=must))
    context.memory.words("orders").store(CLEANER, Order.STOP)
    with pytest.raises(Abandoned):
        process.clean_one()
    assert process.asked == []


def test_nobody_waits_for_who_gets_no_cpu(
    context: ProcessContext, segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that orders are followed while the cleaning thread has no CPU, and that its late work is void."""
    process = Scripted(context, to_clean(segments))
    stands, goes_on = threading.Event(), threading.Event()
    clean_plain = cleaning.map_plain

    def standing(*given: Any) -> Any:
        stands.set()
        assert goes_on.wait(PATIENCE_S)
        return clean_plain(*given)

    def stop() -> None:
        assert stands.wait(PATIENCE_S)
        context.memory.words("orders").store(CLEANER, Order.STOP)
        context.bell.ring()

    monkeypatch.setattr(cleaning, "map_plain", standing)
    ordering = threading.Thread(target=stop)
    ordering.start()
    with pytest.raises(Abandoned):
        process.clean_one()
    ordering.join()
    assert not goes_on.is_set()
    before = sorted(segments.directory.iterdir())
    goes_on.set()
    process._idle.shutdown()
    assert sorted(segments.directory.iterdir()) == before


def test_a_void_task_changes_no_file(context: ProcessContext, segments: Segments) -> None:
    process = Scripted(context, to_clean(segments))
    void, done = threading.Event(), []
    disk = process._disk(void)
    disk(lambda: done.append(1))
    void.set()
    with pytest.raises(Abandoned):
        disk(lambda: done.append(2))
    assert done == [1]


def test_a_disk_that_takes_long_is_no_cleaner_that_hangs(
    context: ProcessContext, segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the cleaner counts as alive while a thread waits for the disk, and only then."""
    process = Scripted(context, to_clean(segments))
    waits, looks, done = [True], [0], threading.Event()
    monkeypatch.setattr(cleaner_process, "MAX_SLEEP_MS", 1)

    def look() -> bool:
        looks[0] += 1
        if looks[0] == 5:
            waits[0] = False
        if looks[0] == 8:
            done.set()
        return waits[0]

    monkeypatch.setattr(cleaner_process, "waits_for_disk", look)
    before = context.counters.turns
    process._result_of(process._usual.submit(done.wait))
    assert context.counters.turns == before + 4


def test_the_disk_is_left_alone_for_as_long_as_it_was_at_work(
    context: ProcessContext, segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, now, waits = Scripted(context, to_clean(segments)), [100.0], []

    class Void(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waits.append(timeout)
            now[0] += timeout
            return self.is_set()

    void = Void()
    monkeypatch.setattr(cleaner_process.time, "monotonic", lambda: now[0])
    paced = process._paced(void, rests=True)
    paced(1000, 0.0)
    assert waits == [pytest.approx(0.0)]
    paced(1000, 0.003)
    assert waits[1:] == [pytest.approx(0.003)]
    before = context.counters.turns
    paced(1000, 3.5 * cleaner_process.MAX_SLEEP_MS / 1000)
    assert now[0] == pytest.approx(100.003 + 3.5 * cleaner_process.MAX_SLEEP_MS / 1000)
    assert context.counters.turns == before + 4, "it counts as alive all the while"
    void.set()
    with pytest.raises(Abandoned):
        paced(1000, 60.0)
