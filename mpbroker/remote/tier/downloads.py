"""Downloads of windows from the object store into the cache, for the handlers that ask for them.

One thread, that of the tier's loop, has all state here and never waits for the store; the others run jobs:
read the indexes of a segment, look where a window's offsets begin, download a window. Calls that
need the same job share it, and a job goes on when no call waits for it any more. The windows after those of a
sequential reader are downloaded ahead. (Kafka: RemoteLogReader, RemoteIndexCache; caches of
chunks in plugins.)
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from mpbroker.ipc import calls
from mpbroker.protocol.errors import ErrorCode
from mpbroker.records.errors import CorruptBatch
from mpbroker.remote.store.object_store import ObjectStore, StoreError
from mpbroker.remote.tier.cache import Cached, IndexesKey, PartitionKey, RemoteCache, WindowKey
from mpbroker.remote.tier.download import (
    StoredPartition,
    StoredSegment,
    read_first,
    read_indexes,
    read_window,
)
from mpbroker.remote.tier.windows import WINDOW_BYTES, SegmentWindows
from shm.clock import monotonic_ms

log = logging.getLogger("mpbroker.remote")

TRIES: Final = 3
# Before the second try, and twice as long before the third.
BACKOFF_S: Final = 0.25
# Windows that are downloaded ahead of a reader in sequence, if the cache has room for more than these.
AHEAD: Final = 2
AHEAD_FROM_BYTES: Final = 4 * WINDOW_BYTES
# While a job waits for the quota or for room in the cache.
RETRY_MS: Final = 50
# Memory for indexes of segments.
INDEX_BYTES_MAX: Final = 64 << 20
# Ends of the last windows of a partition, which tell readers in sequence.
ENDS_MAX: Final = 16
PARTITIONS_MAX: Final = 1024
# A second's bytes that were not used are all that may be used later.
QUOTA_S: Final = 1.0

Answer = Callable[[calls.Message], object]


class Settings(Protocol):
    """The settings that downloads follow; they may change."""

    @property
    def remote_log_reader_threads(self) -> int: ...
    @property
    def remote_log_manager_fetch_max_bytes_per_second(self) -> int: ...
    @property
    def mpbroker_remote_cache_bytes(self) -> int: ...


class _EdgeKey(NamedTuple):
    """The first offset of a window, which must be looked up."""

    partition: PartitionKey
    segment_base: int
    segment_id: bytes
    number: int


_JobKey = WindowKey | IndexesKey | _EdgeKey


@dataclass
class Totals:
    """What was downloaded, and how often a window that was asked for was in the cache."""

    fetches: int = 0
    fetched_bytes: int = 0
    errors: int = 0
    hits: int = 0


@dataclass(frozen=True)
class _Asked:
    message: calls.RemoteWindow
    answer: Answer
    # Whether the answer has had to wait for a download.
    waited: bool = False


@dataclass
class _Job:
    """Work of a thread: `run` may be called again after an error, and `done` takes its result.

    `size`: the bytes that it puts into the cache, at first at `path`.
    """

    key: _JobKey
    size: int
    path: Path | None
    run: Callable[[], object]
    done: Callable[[object], None]
    # What to do when it has ended; with the error if it failed.
    then: list[Callable[[Exception | None], None]] = field(default_factory=list)


class Downloads:
    """The windows that handlers ask for. `partition_of(slot, generation)` returns what the store has of one.

    `wake` is called by the threads to have the loop call `step`.
    """

    def __init__(
        self,
        store: ObjectStore,
        cache: RemoteCache,
        partition_of: Callable[[int, int], StoredPartition | None],
        settings: Settings,
        wake: Callable[[], object],
        now_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._store = store
        self._cache = cache
        self._partition_of = partition_of
        self._settings = settings
        self._wake = wake
        self._now_ms = now_ms
        # Every job by its key. It is in one of the two queues as long as no thread has it.
        self._jobs: dict[_JobKey, _Job] = {}
        self._urgent: OrderedDict[_JobKey, _Job] = OrderedDict()
        self._ahead: OrderedDict[_JobKey, _Job] = OrderedDict()
        self._running = 0
        self._threads: list[threading.Thread] = []
        self._to_run: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[tuple[_Job, object]] = queue.SimpleQueue()
        self._stops = threading.Event()
        self._known: OrderedDict[IndexesKey, SegmentWindows] = OrderedDict()
        self._known_bytes = 0
        self._ends: OrderedDict[PartitionKey, OrderedDict[int, None]] = OrderedDict()
        self._allowed = settings.remote_log_manager_fetch_max_bytes_per_second * QUOTA_S
        self._allowed_at_ms = now_ms()
        self._is_failing = False
        self.totals = Totals()

    # ---- the loop's view

    def asked(self, message: calls.RemoteWindow, answer: Answer) -> None:
        """Answer a call when the window is in the cache, or cannot be brought there."""
        self._proceed(_Asked(message, answer))
        self._begin_jobs()

    def step(self) -> None:
        """Go on with what threads have ended, and begin what waits."""
        while not self._ended.empty():
            job, result = self._ended.get()
            self._running -= 1
            self._end(job, result)
        self._begin_jobs()

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

    # ---- an asked window

    def _proceed(self, asked: _Asked, error: Exception | None = None) -> None:
        """Answer the call if all is cached; else begin the next job, which calls this method again."""
        message = asked.message
        if error is not None:
            asked.answer(calls.Failed(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
            return
        partition = self._partition_of(message.slot, message.slot_generation)
        if partition is None:
            asked.answer(
                calls.Failed(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the tier does not know the partition")
            )
            return
        segment = partition.find(message.offset)
        if segment is None:
            text = f"the object store has no segment of {partition.name} with offset {message.offset}"
            asked.answer(calls.Failed(ErrorCode.KAFKA_STORAGE_ERROR, text))
            return
        go_on = partial(self._proceed, replace(asked, waited=True))
        windows = self._windows(partition, segment, self._urgent, go_on)
        if windows is None:
            return
        offset = max(message.offset, segment.base)
        if message.timestamp_ms >= 0:
            offset = max(offset, windows.offset_of_time(message.timestamp_ms))
        if (edge := windows.unsure(offset)) is not None:
            self._look(partition, segment, windows, edge, go_on)
            return
        number = windows.find(offset)
        cached = self._cache.find(_key(partition, segment, windows, number))
        if cached is None:
            self._download(partition, segment, windows, number, self._urgent, go_on)
        elif cached.end <= offset and number + 1 < len(windows):
            # The offset lies in a gap before the next window.
            windows.learn(number + 1, cached.end)
            self._proceed(asked)
        else:
            self.totals.hits += not asked.waited
            asked.answer(calls.RemoteWindowReady(cached.base, cached.end, str(cached.path)))
            self._look_ahead(partition, segment, windows, number, cached)

    def _windows(
        self,
        partition: StoredPartition,
        segment: StoredSegment,
        at: OrderedDict[_JobKey, _Job],
        then: Callable[[Exception | None], None],
    ) -> SegmentWindows | None:
        """Return a segment's windows; if its indexes are not in memory, return None and call `then` later."""
        key = IndexesKey(partition.key, segment.base, segment.segment_id)
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known
        cached = self._cache.find(key)
        if cached is not None:
            with_indexes = _read_cached(cached, segment)
            if with_indexes is not None:
                return self._keep(key, partition, segment, with_indexes)
        path = self._cache.new_path()
        size = segment.sizes.total

        def run() -> object:
            return read_indexes(self._store, segment, path)

        def done(result: object) -> None:
            assert isinstance(result, bytes)
            self._cache.put(key, path, size)
            self._keep(key, partition, segment, result)

        self._begin(_Job(key, size, path, run, done), at, then)
        return None

    def _keep(
        self, key: IndexesKey, partition: StoredPartition, segment: StoredSegment, indexes: bytes
    ) -> SegmentWindows:
        parts = segment.sizes.split(indexes)
        made = SegmentWindows(segment.base, segment.end, segment.size, parts.offset, parts.time)
        for number in range(len(made)):
            cached = self._cache.peek(_key(partition, segment, made, number))
            if cached is not None:
                made.learn(number, cached.base)
                made.learn(number + 1, cached.end)
        self._known[key] = made
        self._known_bytes += made.memory_bytes
        while self._known_bytes > INDEX_BYTES_MAX and len(self._known) > 1:
            self._known_bytes -= self._known.popitem(last=False)[1].memory_bytes
        return made

    def _look(
        self,
        partition: StoredPartition,
        segment: StoredSegment,
        windows: SegmentWindows,
        number: int,
        then: Callable[[Exception | None], None],
    ) -> None:
        position = windows.byte_range(number).position

        def done(result: object) -> None:
            assert isinstance(result, int)
            windows.learn(number, result)

        key = _EdgeKey(partition.key, segment.base, segment.segment_id, number)
        job = _Job(key, 0, None, lambda: read_first(self._store, segment, position), done)
        self._begin(job, self._urgent, then)

    def _download(
        self,
        partition: StoredPartition,
        segment: StoredSegment,
        windows: SegmentWindows,
        number: int,
        at: OrderedDict[_JobKey, _Job],
        then: Callable[[Exception | None], None],
    ) -> None:
        key, size = _key(partition, segment, windows, number), windows.byte_range(number).size
        path = self._cache.new_path()

        def run() -> object:
            return read_window(self._store, partition, segment, windows, number, path)

        def done(result: object) -> None:
            assert isinstance(result, tuple)
            base, end = result
            self._cache.put(key, path, size, base, end)
            windows.learn(number, base)
            windows.learn(number + 1, end)

        self._begin(_Job(key, size, path, run, done), at, then)

    # ---- ahead of readers

    def _look_ahead(
        self,
        partition: StoredPartition,
        segment: StoredSegment,
        windows: SegmentWindows,
        number: int,
        cached: Cached,
    ) -> None:
        """Download the windows after this one if a reader has come here from the one before."""
        ends = self._ends.setdefault(partition.key, OrderedDict())
        self._ends.move_to_end(partition.key)
        if len(self._ends) > PARTITIONS_MAX:
            self._ends.popitem(last=False)
        is_sequential = cached.base in ends
        ends[cached.end] = None
        ends.move_to_end(cached.end)
        if len(ends) > ENDS_MAX:
            ends.popitem(last=False)
        if is_sequential and self._settings.mpbroker_remote_cache_bytes >= AHEAD_FROM_BYTES:
            self._download_after(partition, segment, windows, number, AHEAD)

    def _download_after(
        self,
        partition: StoredPartition,
        segment: StoredSegment,
        windows: SegmentWindows,
        number: int,
        left: int,
    ) -> None:
        """Download the `left` windows after window `number` of a segment, which may be -1."""
        number += 1
        if number == len(windows):
            following = partition.find(segment.end)
            if following is None:
                return
            go_on = partial(self._download_first, partition, following, left)
            found = self._windows(partition, following, self._ahead, go_on)
            if found is None:
                return
            segment, windows, number = following, found, 0
        if _key(partition, segment, windows, number) not in self._cache:
            self._download(partition, segment, windows, number, self._ahead, lambda _error: None)
        if left > 1:
            self._download_after(partition, segment, windows, number, left - 1)

    def _download_first(
        self, partition: StoredPartition, segment: StoredSegment, left: int, error: Exception | None
    ) -> None:
        """Download the first windows of a segment whose indexes have come."""
        windows = self._known.get(IndexesKey(partition.key, segment.base, segment.segment_id))
        if error is None and windows is not None:
            self._download_after(partition, segment, windows, -1, left)

    # ---- jobs

    def _begin(
        self, job: _Job, at: OrderedDict[_JobKey, _Job], then: Callable[[Exception | None], None]
    ) -> None:
        """Queue a job, or wait for the one with its key, which may become urgent now."""
        known = self._jobs.get(job.key)
        if known is None:
            self._jobs[job.key] = at[job.key] = known = job
        elif at is self._urgent and self._ahead.pop(job.key, None) is not None:
            self._urgent[job.key] = known
        known.then.append(then)

    def _begin_jobs(self) -> None:
        """Give jobs to threads, as far as threads, the quota and room in the cache allow."""
        while self._running < self._settings.remote_log_reader_threads and (self._urgent or self._ahead):
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
        now_ms, rate = self._now_ms(), self._settings.remote_log_manager_fetch_max_bytes_per_second
        earned = rate * (now_ms - self._allowed_at_ms) / 1000
        self._allowed, self._allowed_at_ms = min(self._allowed + earned, rate * QUOTA_S), now_ms
        return self._allowed >= 0

    def _end(self, job: _Job, result: object) -> None:
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
        thread = threading.Thread(target=self._run_jobs, name="remote reader", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _run_jobs(self) -> None:
        while (job := self._to_run.get()) is not None:
            self._ended.put((job, self._tried(job)))
            self._wake()

    def _tried(self, job: _Job) -> object:
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


def _key(
    partition: StoredPartition, segment: StoredSegment, windows: SegmentWindows, number: int
) -> WindowKey:
    return WindowKey(partition.key, segment.base, segment.segment_id, windows.byte_range(number).position)


def _read_cached(cached: Cached, segment: StoredSegment) -> bytes | None:
    """Return the indexes of a segment from the cache; None if they are not whole."""
    try:
        indexes = cached.path.read_bytes()
    except OSError:
        return None
    return indexes if len(indexes) == segment.sizes.total else None
