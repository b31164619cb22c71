"""The purgatory: requests that wait for an event on a key, or for their time to run out. Sans-I/O.

Each operation ends exactly once: completed because a key it watches was checked, expired at its deadline, or
cancelled. An operation that ends is removed from the lists of all its keys at once. (Kafka purges ended
operations when more than `purge.interval.requests` have gathered.) Only the timer of an ended operation
stays; such timers are purged when they are more than `purge_interval` and more than half of all timers.
Deadlines are exact to the millisecond, in one heap instead of Kafka's hierarchical wheel, since a handler has
few timers. (Kafka: DelayedOperation, DelayedOperationPurgatory, SystemTimer.)
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)
Op = TypeVar("Op", bound="Operation")

# The heap is rebuilt when more than this many of its entries, and more than half of them, belong to
# operations that have ended. (fetch.purgatory.purge.interval.requests)
PURGE_INTERVAL = 1000
# The deadline of an operation that only an event ends.
NEVER_MS = 1 << 62


class Operation(Protocol):
    """An operation that can wait.

    `try_complete`, called whenever a key is checked, ends the operation and returns True if its condition
    holds. `expire` always ends the operation; it is called at most once, and never after `try_complete` has
    returned True.
    """

    def try_complete(self) -> bool: ...

    def expire(self) -> None: ...


class Watch(Generic[K, Op]):
    """An operation that waits, with its keys and its deadline. `operation` is None when it has ended."""

    __slots__ = ("deadline_ms", "keys", "operation")

    def __init__(self, operation: Op, keys: tuple[K, ...], deadline_ms: int) -> None:
        self.operation: Op | None = operation
        self.keys = keys
        self.deadline_ms = deadline_ms

    @property
    def has_ended(self) -> bool:
        return self.operation is None


class Purgatory(Generic[K, Op]):
    """Operations that wait for keys.

    `on_first(key)` is called when a first operation waits for a key, `on_last(key)` when the last one ends.
    """

    def __init__(
        self,
        on_first: Callable[[K], None] = lambda _key: None,
        on_last: Callable[[K], None] = lambda _key: None,
        purge_interval: int = PURGE_INTERVAL,
    ) -> None:
        self._on_first = on_first
        self._on_last = on_last
        # Dicts as ordered sets: the operation that has waited longest is tried first.
        self._by_key: dict[K, dict[Watch[K, Op], None]] = {}
        self._timers: list[tuple[int, int, Watch[K, Op]]] = []
        self._order = itertools.count()
        self._purge_interval = purge_interval
        self._alive = 0
        # Kafka's PurgatorySize: an operation counts once for each key.
        self.entries = 0

    def __len__(self) -> int:
        """Return the number of operations that wait; Kafka's NumDelayedOperations."""
        return self._alive

    def watched(self) -> list[K]:
        return list(self._by_key)

    def watch(self, operation: Op, keys: Iterable[K], deadline_ms: int) -> Watch[K, Op]:
        """Park the operation. The caller must then try it once more, since an event may have come before."""
        watch = Watch(operation, tuple(dict.fromkeys(keys)), deadline_ms)
        self._alive += 1
        self.entries += len(watch.keys)
        for key in watch.keys:
            watchers = self._by_key.get(key)
            if watchers is None:
                watchers = self._by_key[key] = {}
                self._on_first(key)
            watchers[watch] = None
        heapq.heappush(self._timers, (deadline_ms, next(self._order), watch))
        return watch

    def check(self, *keys: K) -> int:
        """Try all operations that wait for any of the keys, each once; return how many were completed."""
        completed = 0
        for watch in dict.fromkeys(watch for key in keys for watch in self._by_key.get(key, ())):
            if watch.operation is not None and watch.operation.try_complete():
                # It may have cancelled itself.
                self.cancel(watch)
                completed += 1
        return completed

    def cancel(self, watch: Watch[K, Op]) -> Op | None:
        """Forget and return the operation without completing it; return None if it had ended."""
        return None if watch.operation is None else self._end(watch)

    def expire(self, now_ms: int) -> int:
        """Expire the operations that are due; return how many."""
        expired = 0
        while self._timers and (self._timers[0][2].has_ended or self._timers[0][0] <= now_ms):
            watch = heapq.heappop(self._timers)[2]
            if not watch.has_ended:
                self._end(watch).expire()
                expired += 1
        return expired

    def next_deadline_ms(self) -> int | None:
        """Return the next deadline, None if nothing waits."""
        while self._timers and self._timers[0][2].has_ended:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _end(self, watch: Watch[K, Op]) -> Op:
        """End the wait; return its operation, which the watch forgets."""
        operation, watch.operation = watch.operation, None
        assert operation is not None
        self._alive -= 1
        self.entries -= len(watch.keys)
        for key in watch.keys:
            watchers = self._by_key[key]
            del watchers[watch]
            if not watchers:
                del self._by_key[key]
                self._on_last(key)
        watch.keys = ()
        dead = len(self._timers) - self._alive
        if dead > self._purge_interval and dead > self._alive:
            self._timers = [timer for timer in self._timers if not timer[2].has_ended]
            heapq.heapify(self._timers)
        return operation
