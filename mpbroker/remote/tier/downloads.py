"""Downloads of windows from the object store into the cache, for the handlers that ask for them.

Everything here runs in the thread of the tier's loop, which never waits for the store: its requests are jobs
of other threads (`download_jobs`). The windows after those of a sequential reader are downloaded ahead.
(Kafka: RemoteLogReader, RemoteIndexCache; caches of chunks in plug-ins.)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc import calls
from mpbroker.protocol.errors import ErrorCode
from mpbroker.remote.layout.indexes import split_indexes
from mpbroker.remote.ledger.events import SegmentAdded
from mpbroker.remote.store.object_store import ObjectStore
from mpbroker.remote.tier.cache import Cached, IndexesKey, PartitionKey, RemoteCache
from mpbroker.remote.tier.download_jobs import DownloadJobs, EdgeKey, Job, Then
from mpbroker.remote.tier.window_reads import (
    StoredPartition,
    Window,
    key_of,
    read_first,
    read_indexes,
    read_window,
)
from mpbroker.remote.tier.windows import WINDOW_BYTES, SegmentWindows
from shm.clock import monotonic_ms

# Windows that are downloaded ahead of a reader in sequence, if the cache has room for more than these.
AHEAD: Final = 2
AHEAD_FROM_BYTES: Final = 4 * WINDOW_BYTES
# Memory for indexes of segments.
INDEX_BYTES_MAX: Final = 64 << 20
# Ends of the last windows of a partition, which tell readers in sequence.
ENDS_MAX: Final = 16
PARTITIONS_MAX: Final = 1024

Answer = Callable[[calls.Message], object]


@dataclass(frozen=True)
class _Asked:
    message: calls.RemoteWindow
    answer: Answer
    # Whether the answer has had to wait for a download.
    waited: bool = False


class Downloads:
    """The windows that handlers ask for. `partition_of(slot, generation)` returns what the store has of one.

    Whoever asks calls `jobs.step` until the answer is there. Other threads call `wake` when that is due.
    """

    def __init__(
        self,
        store: ObjectStore,
        cache: RemoteCache,
        partition_of: Callable[[int, int], StoredPartition | None],
        config: BrokerConfig,
        wake: Callable[[], object],
        now_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._store = store
        self._cache = cache
        self._partition_of = partition_of
        self._config = config
        self.jobs = DownloadJobs(cache, config, wake, now_ms)
        self._known: OrderedDict[IndexesKey, SegmentWindows] = OrderedDict()
        self._known_bytes = 0
        self._ends: OrderedDict[PartitionKey, OrderedDict[int, None]] = OrderedDict()

    def asked(self, message: calls.RemoteWindow, answer: Answer) -> None:
        """Answer a call when the window is in the cache, or cannot be brought there."""
        self._proceed(_Asked(message, answer))
        self.jobs.begin()

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
        windows = self._windows(partition, segment, go_on)
        if windows is None:
            return
        offset = max(message.offset, segment.base)
        if message.timestamp_ms >= 0:
            offset = max(offset, windows.offset_of_time(message.timestamp_ms))
        if (edge := windows.unsure(offset)) is not None:
            self._look(Window(partition, segment, windows, edge), go_on)
            return
        window = Window(partition, segment, windows, windows.find(offset))
        cached = self._cache.find(window.key)
        if cached is None:
            self._download(window, go_on)
        elif cached.end <= offset and window.number + 1 < len(windows):
            # The offset lies in a gap before the next window.
            windows.learn(window.number + 1, cached.end)
            self._proceed(asked)
        else:
            self.jobs.totals.hits += not asked.waited
            asked.answer(calls.RemoteWindowReady(cached.base, cached.end, str(cached.path)))
            self._look_ahead(window, cached)

    # ---- what a job brings

    def _windows(
        self, partition: StoredPartition, segment: SegmentAdded, then: Then, *, is_ahead: bool = False
    ) -> SegmentWindows | None:
        """Return a segment's windows; if its indexes are not in memory, return None and call `then` later."""
        key = IndexesKey(*key_of(partition, segment))
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known
        cached = self._cache.find(key)
        if cached is not None:
            with_indexes = _read_cached(cached, segment)
            if with_indexes is not None:
                return self._keep(key, partition, segment, with_indexes)
        path, size = self._cache.new_path(), sum(segment.index_sizes)

        def done(result: object) -> None:
            assert isinstance(result, bytes)
            self._cache.put(key, path, size)
            self._keep(key, partition, segment, result)

        job = Job(key, size, path, lambda: read_indexes(self._store, segment, path), done)
        self.jobs.add(job, then, is_ahead=is_ahead)
        return None

    def _keep(
        self, key: IndexesKey, partition: StoredPartition, segment: SegmentAdded, indexes: bytes
    ) -> SegmentWindows:
        parts = split_indexes(indexes, segment.index_sizes)
        made = SegmentWindows(segment.base, segment.end, segment.size, parts.offset, parts.time)
        for number in range(len(made)):
            cached = self._cache.peek(Window(partition, segment, made, number).key)
            if cached is not None:
                made.learn(number, cached.base)
                made.learn(number + 1, cached.end)
        self._known[key] = made
        self._known_bytes += made.memory_bytes
        while self._known_bytes > INDEX_BYTES_MAX and len(self._known) > 1:
            self._known_bytes -= self._known.popitem(last=False)[1].memory_bytes
        return made

    def _look(self, window: Window, then: Then) -> None:
        def done(result: object) -> None:
            assert isinstance(result, int)
            window.windows.learn(window.number, result)

        key = EdgeKey(*key_of(window.partition, window.segment), window.number)
        self.jobs.add(Job(key, 0, None, lambda: read_first(self._store, window), done), then)

    def _download(self, window: Window, then: Then, *, is_ahead: bool = False) -> None:
        path = self._cache.new_path()

        def done(result: object) -> None:
            assert isinstance(result, tuple)
            base, end = result
            self._cache.put(window.key, path, window.range.size, base, end)
            window.windows.learn(window.number, base)
            window.windows.learn(window.number + 1, end)

        job = Job(window.key, window.range.size, path, lambda: read_window(self._store, window, path), done)
        self.jobs.add(job, then, is_ahead=is_ahead)

    # ---- ahead of readers

    def _look_ahead(self, window: Window, cached: Cached) -> None:
        """Download the windows after this one if a reader has come here from the one before."""
        ends = self._ends.setdefault(window.partition.key, OrderedDict())
        self._ends.move_to_end(window.partition.key)
        if len(self._ends) > PARTITIONS_MAX:
            self._ends.popitem(last=False)
        is_sequential = cached.base in ends
        ends[cached.end] = None
        ends.move_to_end(cached.end)
        if len(ends) > ENDS_MAX:
            ends.popitem(last=False)
        if is_sequential and self._config.mpbroker_remote_cache_bytes >= AHEAD_FROM_BYTES:
            self._download_after(window, AHEAD)

    def _download_after(self, window: Window, left: int) -> None:
        """Download the `left` windows after a window, whose number may be -1."""
        window = window._replace(number=window.number + 1)
        if window.number == len(window.windows):
            partition = window.partition
            segment = partition.find(window.segment.end)
            if segment is None:
                return
            go_on = partial(self._download_first, partition, segment, left)
            windows = self._windows(partition, segment, go_on, is_ahead=True)
            if windows is None:
                return
            window = Window(partition, segment, windows, 0)
        if window.key not in self._cache:
            self._download(window, lambda _error: None, is_ahead=True)
        if left > 1:
            self._download_after(window, left - 1)

    def _download_first(
        self, partition: StoredPartition, segment: SegmentAdded, left: int, error: Exception | None
    ) -> None:
        """Download the first windows of a segment whose indexes have come."""
        windows = self._known.get(IndexesKey(*key_of(partition, segment)))
        if error is None and windows is not None:
            self._download_after(Window(partition, segment, windows, -1), left)


def _read_cached(cached: Cached, segment: SegmentAdded) -> bytes | None:
    """Return the indexes of a segment from the cache; None if they are not whole."""
    try:
        indexes = cached.path.read_bytes()
    except OSError:
        return None
    return indexes if len(indexes) == sum(segment.index_sizes) else None
