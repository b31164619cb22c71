"""Runs downloads by threads: urgent ones first, as fast as settings and room in the cache allow.

The thread of the tier's loop has all state here and never waits for the store; the others run jobs. Calls
that need the same job share it, and a job goes on when no call waits for it any more.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from mpbroker.config.broker import BrokerConfig
from mpbroker.records.errors import CorruptBatch
from mpbroker.remote.store.object_store import StoreError
from mpbroker.remote.tier.cache import IndexesKey, PartitionKey, RemoteCache, WindowKey
from shm.clock import monotonic_ms

log = logging.getLogger("mpbroker.remote")

TRIES: Final = 3
# Before the second try, and twice as long before the third.
BACKOFF_S: Final = 0.25
# While a job waits for the quota or for room in the cache.
RETRY_MS: Final = 50
# A second's bytes that were not used are all that may be used later.
QUOTA_S: Final = 1.0

Then = Callable[[Exception | None], None]
"""What to do when a job has ended; with the error if it failed."""


class EdgeKey(NamedTuple):
    """The first offset of a window, which must be looked up."""

    partition: PartitionKey
    segment_base: int
    segment_id: bytes
    number: int


JobKey = WindowKey | IndexesKey | EdgeKey


@dataclass
class Totals:
    """What was downloaded, and how often a window that was asked for was in the cache."""

    fetches: int = 0
    fetched_bytes: int = 0
    errors: int = 0
    hits: int = 0


@dataclass
class Job:
    """Work of a thread: `run` may be called again after an error, and `done` takes its result.

    `size`: the bytes that it puts into the cache, at first at `path`.
    """

    key: JobKey
    size: int
    path: Path | None
    run: Callable[[], object]
    done: Callable[[object], None]
    then: list[Then] = field(default_factory=list)


class DownloadJobs:
    """The jobs that wait and run. `wake` is called by the threads to have the loop call `step`."""

    def __init__(
        self,
        cache: RemoteCache,
        config: BrokerConfig,
        wake: Callable[[], object],
        now_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._cache = cache
        self._config = config
        self._wake = wake
        self._now_ms = now_ms
        # Every job by its key. It is in one of the two queues as long as no thread has it.
        self._jobs: dict[JobKey, Job] = {}
        self._urgent: OrderedDict[JobKey, Job] = OrderedDict()
        self._ahead: OrderedDict[JobKey, Job] = OrderedDict()
        self._running = 0
        self._threads: list[threading.Thread] = []
        self._to_run: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[tuple[Job, object]] = queue.SimpleQueue()
        self._stops = threading.Event()
        self._allowed = config.remote_log_manager_fetch_max_bytes_per_second * QUOTA_S
        self._allowed_at_ms = now_ms()
        self._is_failing = False
        self.totals = Totals()

    def step(self) -> None:
        """Go on with what threads have ended, and begin what waits."""
        while not self._ended.empty():
            job, result = self._ended.get()
            self._running -= 1
            self._end(job, result)
        self.begin()

    def next_ms(self) -> int | None:
        """Return in how many ms `step` must be called, if no thread wakes the loop before; None: never."""
        return RETRY_MS if self._urgent or self._ahead else None

    @property
    def cache_bytes(self) -> int:
        """Return the size of what is kept, and of what will be."""
        return self._cache.bytes

    @property
    def is_busy(self) -> bool:
        """Return whether a download waits or is under way."""
        return bool(self._jobs)

    def close(self) -> None:
        """Let the threads end, each after its present request to the store. They are not waited for."""
        self._stops.set()
        for _ in self._threads:
            self._to_run.put(None)

    def add(self, job: Job, then: Then, *, is_ahead: bool = False) -> None:
        """Queue a job, or wait for the one with its key, which may become urgent now."""
        known = self._jobs.get(job.key)
        if known is None:
            waiting = self._ahead if is_ahead else self._urgent
            self._jobs[job.key] = waiting[job.key] = known = job
        elif not is_ahead and self._ahead.pop(job.key, None) is not None:
            self._urgent[job.key] = known
        known.then.append(then)

    def begin(self) -> None:
        """Give jobs to threads, as far as threads, the quota and room in the cache allow."""
        while self._running < self._config.remote_log_reader_threads and (self._urgent or self._ahead):
            is_urgent = bool(self._urgent)
            waiting = self._urgent if is_urgent else self._ahead
            job = next(iter(waiting.values()))
            if not self._is_allowed():
                return
            if job.size and not self._cache.promise(job.size):
                if is_urgent:
                    return
                del waiting[job.key], self._jobs[job.key]
                continue
            del waiting[job.key]
            self._allowed -= job.size
            self._running += 1
            self._to_run.put(job)
            if len(self._threads) < self._running:
                self._start_thread()

    def _is_allowed(self) -> bool:
        """Return whether the quota allows to begin a download. What was allowed may then be exceeded."""
        now_ms, rate = self._now_ms(), self._config.remote_log_manager_fetch_max_bytes_per_second
        earned = rate * (now_ms - self._allowed_at_ms) / 1000
        self._allowed, self._allowed_at_ms = min(self._allowed + earned, rate * QUOTA_S), now_ms
        return self._allowed >= 0

    def _end(self, job: Job, result: object) -> None:
        del self._jobs[job.key]
        error: Exception | None = None
        if not isinstance(result, Exception):
            try:
                job.done(result)
            except OSError as failed:
                # The disk is full, or broken. `put` has ended the promise.
                error = failed
                self._cache.give_up(0, job.path)
        else:
            error = result
            self._cache.give_up(job.size, job.path)
        self.totals.fetches += 1
        if error is None:
            self.totals.fetched_bytes += job.size
        else:
            self.totals.errors += 1
        if error is not None and not self._is_failing:
            log.error("a download from the object store failed %d times: %s", TRIES, error)
        elif error is None and self._is_failing:
            log.info("downloads from the object store succeed again")
        self._is_failing = error is not None
        for then in job.then:
            then(error)

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name="remote reader", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _run(self) -> None:
        while (job := self._to_run.get()) is not None:
            self._ended.put((job, self._tried(job)))
            self._wake()

    def _tried(self, job: Job) -> object:
        """Return the result of a job, or the error of its last try."""
        backoff_s = BACKOFF_S
        for left in reversed(range(TRIES)):
            try:
                return job.run()
            except (StoreError, CorruptBatch, OSError, ValueError) as error:
                if not left or self._stops.wait(backoff_s):
                    return error
                backoff_s *= 2
            except Exception as error:
                # A bug must not leave readers waiting for ever.
                log.exception("a download failed")
                return error
        raise AssertionError("the last try returns")
