"""Fetches that wait for bytes, parked under the partition table slots they read.

Each such slot has a waiting mark. It is set before the fetch looks again and cleared with the last fetch of
the slot. The log process publishes, then reads the marks, then moves our dirty word: either the second look
sees the new bytes or the dirty word moves. (Kafka: DelayedFetch.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from mpbroker.handlers.requests.purgatory import PURGE_INTERVAL, Purgatory, Watch
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.slots import Request
from shm.counters import CounterPage
from shm.marks import WaitingMarks
from shm.table import SlotTable

# Ended fetches are forgotten together, when there are this many more of them than of those that wait.
ENDED_MAX = 64


class ParkedFetch(Protocol):
    """A fetch that waits."""

    @property
    def slot(self) -> Request: ...

    def try_complete(self) -> bool: ...

    def expire(self) -> None: ...

    def cancel(self) -> None:
        """End the fetch of a closed connection; its processor still waits for the end of the lease."""

    def drop(self) -> None:
        """End the fetch because there is nobody to answer."""


class Fetches:
    """The parked fetches of a handler. `waiter` is the handler's number, its column in the marks."""

    def __init__(
        self,
        table: SlotTable,
        marks: WaitingMarks,
        waiter: int,
        counters: CounterPage,
        purge_interval: int = PURGE_INTERVAL,
    ) -> None:
        self._table = table
        self._marks = marks
        self._waiter = waiter
        self._counters = counters
        self._purgatory: Purgatory[int, ParkedFetch] = Purgatory(self._mark, self._unmark, purge_interval)
        self._seen: dict[int, int] = {}
        self._by_connection: dict[int, Watch[int, ParkedFetch]] = {}
        # Overwrite the counts of a predecessor.
        self._count()

    def __len__(self) -> int:
        return len(self._purgatory)

    def park(
        self, fetch: ParkedFetch, slots: Iterable[int], deadline_ms: int, parked: Callable[[], None]
    ) -> None:
        """Complete the fetch as soon as possible; call `parked` if that is not at once."""
        watch = self._purgatory.watch(fetch, slots, deadline_ms)
        if watch is None:
            return
        # A fetch has its connection for itself, so an entry with its id belongs to a past one.
        self._by_connection[fetch.slot.connection] = watch
        self._count()
        parked()

    def look(self) -> None:
        """Try the fetches of slots that changed since the last look. Call it when the dirty word moved."""
        moved = []
        for slot in self._purgatory.watched():
            version = self._table.version(slot)
            if version != self._seen.get(slot):
                self._seen[slot] = version
                moved.append(slot)
        if moved:
            self.check(moved)

    def look_at_all(self) -> None:
        """Try all fetches: a change of the metadata may have turned some into errors."""
        self.check(self._purgatory.watched())

    def check(self, slots: Iterable[int]) -> None:
        """Try the fetches of slots where something they wait for is there, or was read from the disk."""
        self._purgatory.check(*slots)
        self._sweep()

    def expire(self, now_ms: int) -> None:
        expired = self._purgatory.expire(now_ms)
        if expired:
            self._counters.add(Counter.COUNT_FETCHES_EXPIRED, expired)
            self._sweep()

    def expire_all(self) -> None:
        """Answer all fetches with what there is, but for those that wait for the disk: the process stops."""
        waiting, self._by_connection = self._by_connection, {}
        for watch in waiting.values():
            if (fetch := self._purgatory.cancel(watch)) is not None:
                fetch.expire()
        self._count()

    def expire_now(self, connection: int) -> None:
        """Expire the fetch of a connection before its time."""
        watch = self._by_connection.pop(connection, None)
        if watch is not None and (fetch := self._purgatory.cancel(watch)) is not None:
            fetch.expire()
        self._count()

    def release(self, connection: int) -> None:
        """Let go of the fetch of a connection, which is about to be answered."""
        watch = self._by_connection.pop(connection, None)
        if watch is not None:
            self._purgatory.cancel(watch)
            self._count()

    def next_deadline_ms(self) -> int | None:
        return self._purgatory.next_deadline_ms()

    def cancel(self, connection: int) -> None:
        """Cancel the fetch of a closed connection, which ends the lease of its request."""
        watch = self._by_connection.pop(connection, None)
        if watch is not None and (fetch := self._purgatory.cancel(watch)) is not None:
            fetch.cancel()
            self._count()

    def forget_processor(self, processor: int) -> None:
        for connection, watch in list(self._by_connection.items()):
            fetch = watch.operation
            if fetch is not None and fetch.slot.processor == processor:
                del self._by_connection[connection]
                self._purgatory.cancel(watch)
                fetch.drop()
        self._count()

    def _count(self) -> None:
        """Set the counters of fetches that wait."""
        self._counters.set(Counter.COUNT_FETCHES_DELAYED, len(self._purgatory))
        self._counters.set(Counter.COUNT_FETCHES_WATCHED, self._purgatory.entries)

    def _sweep(self) -> None:
        self._count()
        if len(self._by_connection) <= 2 * len(self._purgatory) + ENDED_MAX:
            return
        ended = [connection for connection, watch in self._by_connection.items() if watch.has_ended]
        for connection in ended:
            del self._by_connection[connection]

    def _mark(self, slot: int) -> None:
        self._marks.mark(slot, self._waiter)
        self._seen[slot] = self._table.version(slot)

    def _unmark(self, slot: int) -> None:
        self._marks.clear(slot, self._waiter)
        self._seen.pop(slot, None)
