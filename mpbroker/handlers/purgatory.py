"""Where requests wait for something to happen to a key, or for their time to run out. Sans-I/O.

Each operation ends exactly once: completed because a key it watches was checked, expired at its deadline, or
cancelled. One that ends leaves the lists of all its keys at once, so none that is over is watched (Kafka
finds those when more than `purge.interval.requests` have gathered); what stays is its place among the timers,
and that is what is purged at the same interval here. Deadlines are kept to the millisecond in one heap, not
in Kafka's hierarchical wheel: a heap is exact, and a handler has few timers. (Kafka: DelayedOperation,
DelayedOperationPurgatory, SystemTimer.)
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)

# The heap is rebuilt when more than this many of its entries, and more than half of them, belong to
# operations that have ended. (fetch.purgatory.purge.interval.requests)
PURGE_INTERVAL = 1000


class Operation(Protocol):
    """What can wait. `try_complete` ends it if what it waits for is there and says so, whenever a key is
    checked; `expire` ends it in any case, at most once, and never after a true `try_complete`.
    """

    def try_complete(self) -> bool: ...

    def expire(self) -> None: ...


class Watch(Generic[K]):
    """An operation that waits."""

    __slots__ = ("deadline_ms", "ended", "keys", "operation")

    def __init__(self, operation: Operation, keys: tuple[K, ...], deadline_ms: int) -> None:
        self.operation = operation
        self.keys = keys
        self.deadline_ms = deadline_ms
        self.ended = False


class Purgatory(Generic[K]):
    """`on_first(key)`: before the first that waits for a key looks again; `on_last(key)`: once none does."""

    def __init__(
        self,
        on_first: Callable[[K], None] = lambda _key: None,
        on_last: Callable[[K], None] = lambda _key: None,
        purge_interval: int = PURGE_INTERVAL,
    ) -> None:
        self._on_first = on_first
        self._on_last = on_last
        # Dicts as ordered sets: who waits longest is looked at first.
        self._by_key: dict[K, dict[Watch[K], None]] = {}
        self._timers: list[tuple[int, int, Watch[K]]] = []
        self._order = itertools.count()
        self._purge_interval = purge_interval
        self._alive = 0
        # Kafka's PurgatorySize: an operation counts once for each key.
        self.entries = 0

    def __len__(self) -> int:
        """Operations that wait; Kafka's NumDelayedOperations."""
        return self._alive

    def watched(self) -> list[K]:
        return list(self._by_key)

    def watch(self, operation: Operation, keys: Iterable[K], deadline_ms: int) -> Watch[K] | None:
        """Parks the operation unless it can be completed now; None if it was.

        It is tried once more after all keys are watched: what happened between the two looks would be missed
        otherwise.
        """
        if operation.try_complete():
            return None
        watch = Watch(operation, tuple(dict.fromkeys(keys)), deadline_ms)
        self._alive += 1
        self.entries += len(watch.keys)
        for key in watch.keys:
            watchers = self._by_key.get(key)
            if watchers is None:
                watchers = self._by_key[key] = {}
                self._on_first(key)
            watchers[watch] = None
        if operation.try_complete():
            self._end(watch)
            return None
        heapq.heappush(self._timers, (deadline_ms, next(self._order), watch))
        return watch

    def check(self, *keys: K) -> int:
        """Something happened to the keys: tries all that wait for any of them, each once; returns how many
        were completed.
        """
        completed = 0
        for watch in dict.fromkeys(watch for key in keys for watch in self._by_key.get(key, ())):
            if not watch.ended and watch.operation.try_complete():
                self._end(watch)
                completed += 1
        return completed

    def cancel(self, watch: Watch[K]) -> bool:
        """Forgets the operation without completing it; False if it had ended."""
        if watch.ended:
            return False
        self._end(watch)
        return True

    def expire(self, now_ms: int) -> int:
        """Expires what is due; returns how many."""
        expired = 0
        while self._timers and (self._timers[0][2].ended or self._timers[0][0] <= now_ms):
            watch = heapq.heappop(self._timers)[2]
            if not watch.ended:
                self._end(watch)
                watch.operation.expire()
                expired += 1
        return expired

    def next_deadline_ms(self) -> int | None:
        """When `expire` has something to do next."""
        while self._timers and self._timers[0][2].ended:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _end(self, watch: Watch[K]) -> None:
        watch.ended = True
        self._alive -= 1
        self.entries -= len(watch.keys)
        for key in watch.keys:
            watchers = self._by_key[key]
            del watchers[watch]
            if not watchers:
                del self._by_key[key]
                self._on_last(key)
        dead = len(self._timers) - self._alive
        if dead > self._purge_interval and dead > self._alive:
            self._timers = [timer for timer in self._timers if not timer[2].ended]
            heapq.heapify(self._timers)
