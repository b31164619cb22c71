"""The cleaner: compacts the partitions that log workers name, writing `.cleaned` files only.

(Kafka: CleanerThread.) It asks the log workers in turn for a task, cleans, passes each new segment to the log
worker, and asks again. Without a task it waits for `log.cleaner.backoff.ms`. One question is asked at a time.
If the cleaner or the log worker dies the task is void: its files are removed when the partition is next
cleaned or opened.

The main thread talks to the log workers and follows orders. A second thread cleans, on CPUs that no other
thread wants, so it may be suspended at any point. A third thread, of usual priority, makes all changes of
files for the second thread, and refuses them once the task is void. So other threads wait for the second
thread only while it holds the GIL, for a few instructions. Partitions with records older than
max.compaction.lag.ms are cleaned by the third thread, because it runs even if the machine is never idle.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc import calls
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.hangs import waits_for_disk
from mpbroker.ipc.lending import Lender
from mpbroker.ipc.process import MAX_SLEEP_MS, ProcessContext
from mpbroker.ipc.rings import RingPair
from mpbroker.ipc.rpc import RpcClient
from mpbroker.ipc.slots import unpack_call
from mpbroker.ipc.topology import CLEANER, is_log_worker, log_worker, log_worker_number
from mpbroker.log.compaction.cleaner import (
    Buffers,
    Cleaner,
    CleaningFailed,
    Disk,
    Result,
    at_once,
    remove_cleaned,
)
from mpbroker.log.io.pace import Pace, Stints, only_when_idle
from mpbroker.records.errors import RecordsError

# Below every process that clients wait for.
NICENESS = 10


def run(context: ProcessContext) -> int:
    """Clean until ordered to stop."""
    os.nice(NICENESS)
    return CleanerProcess(context).serve()


class Abandoned(Exception):
    """Raised when the task under way is void: a log worker died, or the cleaner is to stop."""


class LogWorkerClient:
    """A client of a log worker, for one question at a time. `lender` lends blocks of the cleaner's arena."""

    def __init__(self, context: ProcessContext, worker: int, lender: Lender) -> None:
        role = log_worker(worker)
        self._rings = rings = RingPair(context, role)
        theirs = context.memory.arena(role)
        self._client = RpcClient(lender, role, theirs, rings.push, context.call_numbers())
        self.is_up = context.is_alive(role)

    def has_answer(self) -> bool:
        return self._rings.waiting()

    def ask(self, message: calls.Message) -> list[calls.Message]:
        """Send a question. Return a list, which is empty until `receive` appends the answer."""
        answers: list[calls.Message] = []
        self._client.call(message, answers.append)
        self._rings.flush()
        return answers

    def receive(self) -> None:
        for slot in self._rings.take():
            self._client.answered(unpack_call(slot))
        self._rings.flush()

    def died(self) -> None:
        """Drop the question that waits for an answer, after the log worker died and was fenced."""
        self.is_up = False
        self._rings.drop()
        self._client.server_died()

    def welcome(self) -> None:
        self._rings.rebind()
        self.is_up = True


class CleanerProcess:
    def __init__(self, context: ProcessContext) -> None:
        self.context = context
        arena = context.memory.arena(CLEANER)
        arena.reset()
        lender = Lender(arena, CLEANER)
        self.logs = [
            LogWorkerClient(context, worker, lender) for worker in range(context.memory.sizes.log_workers)
        ]
        # The worker that gave the current task; the next question goes to its successor.
        self.giver = 0
        self._pace = Pace(lambda: self.config.log_cleaner_io_max_bytes_per_second)

    # Threads that are made for the first task: most brokers have none for long.
    @cached_property
    def _idle(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "cleaning", self._step_back)

    @cached_property
    def _usual(self) -> ThreadPoolExecutor:
        made = ThreadPoolExecutor(1, "cleaned")
        # Start it now: it inherits the priority of the thread that starts it, which must be the main thread.
        made.submit(lambda: None).result()
        return made

    @property
    def config(self) -> BrokerConfig:
        return self.context.config

    def serve(self) -> int:
        self.context.ready()
        while not self.context.must_stop():
            self.obey_order()
            try:
                if not self.clean_one():
                    is_up = all(log.is_up for log in self.logs)
                    self._sleep(self.config.log_cleaner_backoff_ms if is_up else MAX_SLEEP_MS)
            except Abandoned:
                continue
        self.context.stopped()
        return 0

    def _step_back(self) -> None:
        try:
            only_when_idle()
        except OSError as error:
            self.context.log.warning(
                "the cleaner cannot lower its priority (%s): sched_setscheduler and ioprio_set are "
                "forbidden to this process; compaction will slow down clients more",
                error,
            )

    def _result_of(self, future: Future[Result], *, gives_way: bool = True) -> Result:
        """Wait for another thread's result and return it. If `gives_way`, raise Abandoned on an order."""
        future.add_done_callback(lambda _: os.eventfd_write(self.context.bell.fd, 1))
        while not future.done():
            if gives_way:
                self._give_way()
            if waits_for_disk():
                self.context.counters.beat()
            self.context.bell.wait(MAX_SLEEP_MS, future.done)
        return future.result()

    # ---- orders ----

    def obey_order(self) -> None:
        """Obey the pending order, if any. Call this only while no task is open."""
        order = self.context.pending_order()
        if order is None:
            return
        if order.settings_changed:
            self.context.follow_settings()
        elif is_log_worker(order.role) and not order.leaving:
            log = self.logs[log_worker_number(order.role)]
            if order.alive:
                log.welcome()
            else:
                log.died()
        self.context.acknowledge_order()

    def _give_way(self) -> None:
        """Raise Abandoned if an order is pending, or the cleaner is to stop."""
        if self.context.must_stop() or self.context.pending_order() is not None:
            raise Abandoned

    def _sleep(self, for_ms: float) -> None:
        until = time.monotonic() + for_ms / 1000
        while (left := until - time.monotonic()) > 0:
            self._give_way()
            self.context.wait(self._has_answer, max(1, round(left * 1000)))
            for log in self.logs:
                log.receive()

    def _has_answer(self) -> bool:
        return any(log.has_answer() for log in self.logs)

    def _asked(self, message: calls.Message) -> calls.Message:
        """Ask the worker that gave the task, and return its answer. Raises Abandoned."""
        log = self.logs[self.giver]
        answers = log.ask(message)
        while not answers:
            self._give_way()
            self.context.wait(log.has_answer)
            log.receive()
        return answers[0]

    def _task(self) -> calls.ToClean | None:
        """Ask the log workers in turn until one has a task. Return the task; None if no worker has one."""
        for _ in self.logs:
            self.giver = (self.giver + 1) % len(self.logs)
            if self.logs[self.giver].is_up:
                task = self._asked(calls.FindToClean())
                if isinstance(task, calls.ToClean):
                    return task
        return None

    # ---- a task ----

    def clean_one(self) -> bool:
        """Ask for a task and do it. Return whether a task was done without failure. Raises Abandoned."""
        self.context.counters.set(Counter.COUNT_CLEANER_LAST_RUN_NS, time.monotonic_ns())
        task = self._task()
        if task is None:
            return False
        self.context.counters.set_status(f"cleaning {task.directory}")
        try:
            end = self._clean(task)
            ended = calls.CleaningEnded(task.ticket, end) if end >= 0 else None
        except Abandoned:
            raise
        except (CleaningFailed, RecordsError) as error:
            ended = calls.CleaningEnded(task.ticket, problem=str(error))
        except FileNotFoundError:
            # Retention or a deletion removed the files.
            ended = None
        except OSError as error:
            ended = calls.CleaningEnded(task.ticket, problem=str(error), errno=error.errno or errno.EIO)
        except MemoryError as error:
            ended = calls.CleaningEnded(task.ticket, problem=str(error), errno=errno.ENOMEM)
        except Exception as error:
            # Report a bug instead of dying of it: repeated deaths would stop the broker.
            self.context.log.exception("%s: cleaning failed", task.directory)
            ended = calls.CleaningEnded(task.ticket, problem=repr(error))
        finally:
            self.context.counters.set_status("waiting")
        # Not reached after Abandoned: the log worker may be about to put these files in place.
        self._tidy(Path(task.directory))
        if ended is not None:
            self._asked(ended)
        return ended is not None and not ended.problem

    def _clean(self, task: calls.ToClean) -> int:
        """Clean a partition. Return the offset below which it is now clean, -1 if the cleaning failed."""
        started, void = time.monotonic(), threading.Event()
        thread, disk = (self._usual, at_once) if task.must else (self._idle, self._disk(void))
        cleaner = Cleaner(task, self._buffers(), self._paced(void, rests=not task.must), disk)
        segments = cleaner.run()
        try:
            while (new := self._result_of(thread.submit(next, segments, None))) is not None:
                answer = self._asked(
                    calls.SwapSegments(task.ticket, new.bases, new.size, new.largest_ms, new.first_ms)
                )
                if not (isinstance(answer, calls.Swapped) and answer.done):
                    return -1
        finally:
            void.set()
            # Wait for a change of files that has begun: others may change them afterwards.
            self._result_of(self._usual.submit(lambda: None), gives_way=False)
        self._report(task, cleaner, time.monotonic() - started)
        return cleaner.end

    def _disk(self, void: threading.Event) -> Disk:
        usual = self._usual

        def on_disk(do: Callable[[], Result], /) -> Result:
            def unless_void() -> Result:
                if void.is_set():
                    raise Abandoned
                return do()

            return usual.submit(unless_void).result()

        return on_disk

    def _paced(self, void: threading.Event, *, rests: bool) -> Callable[[int, float], None]:
        """Return the `pace` of a Cleaner: a function that waits, to limit the rate of reads and writes.

        `rests`: the function also waits for as long as the disk was busy.
        """
        stints = Stints()

        def paced(count: int, disk_s: float) -> None:
            mark, rest_until = self._pace.take(count), time.monotonic() + (disk_s if rests else 0.0)
            stints.rest_if_due()
            while True:
                self.context.counters.beat()
                left_s = max(self._pace.left_s(mark), rest_until - time.monotonic(), 0)
                if void.wait(min(left_s, MAX_SLEEP_MS / 1000)):
                    raise Abandoned
                if left_s <= MAX_SLEEP_MS / 1000:
                    return

        return paced

    def _buffers(self) -> Buffers:
        config = self.config
        return Buffers(
            config.log_cleaner_dedupe_buffer_size,
            config.log_cleaner_io_buffer_load_factor,
            config.log_cleaner_io_buffer_size,
        )

    def _report(self, task: calls.ToClean, cleaner: Cleaner, took_s: float) -> None:
        found, counters = cleaner.statistics, self.context.counters
        counters.set(
            Counter.COUNT_CLEANER_RECOPY_PERCENT, 100 * found.bytes_written // max(found.bytes_read, 1)
        )
        counters.set(Counter.COUNT_CLEANER_BUFFER_PERCENT, round(100 * found.buffer_utilization))
        counters.set(Counter.COUNT_CLEANER_TIME_MS, round(took_s * 1000))
        self.context.log.info(
            "%s is clean up to offset %d: %d of %d bytes and %d of %d records are left, after %.1f s",
            task.directory,
            cleaner.end,
            found.bytes_written,
            found.bytes_read,
            found.records_kept,
            found.records_read,
            took_s,
        )

    def _tidy(self, directory: Path) -> None:
        try:
            remove_cleaned(directory)
        except OSError as error:
            # The topic was deleted, or the disk failed: the remaining files have no effect.
            self.context.log.debug("%s: %s", directory, error)
