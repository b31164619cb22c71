"""Fetches that wait for bytes, parked under the partition table slots they read.

A slot's waiting mark is set before a fetch polls again, and cleared with the last fetch of the slot. The log
process publishes new bytes, reads the marks, then changes this handler's dirty word. So either the second
poll finds the new bytes or the dirty word changes. (Kafka: DelayedFetch.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from mpbroker.handlers.requests.purgatory import PURGE_INTERVAL, Purgatory, Watch
from mpbroker.handlers.requests.response import PendingRequest
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.slots import Request
from shm.counters import CounterPage
from shm.marks import WaitingMarks
from shm.table import SlotTable


class ParkedFetch(Protocol):
    """A request that waits for bytes: a `purgatory.Operation` with the context of the request."""

    @property
    def context(self) -> PendingRequest: ...

    def try_complete(self) -> bool: ...

    def expire(self) -> None: ...


class Fetches:
    """The parked fetches of a handler. `waiter` is the handler's number, under which it sets marks."""

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
        self._versions: dict[int, int] = {}
        self._by_connection: dict[int, Watch[int, ParkedFetch]] = {}
        # Overwrite the counts of a predecessor.
        self._count()

    def __len__(self) -> int:
        return len(self._purgatory)

    def park(self, fetch: ParkedFetch, slots: Iterable[int], deadline_ms: int) -> None:
        """Park a fetch and mark its slots. The caller must then try the fetch once more."""
        # A fetch has its connection for itself, so an entry with its id belongs to a past one.
        connection = fetch.context.slot.connection
        self._by_connection[connection] = self._purgatory.watch(fetch, slots, deadline_ms)
        self._count()

    def poll(self) -> None:
        """Try the fetches of slots that changed since the last poll. Call this after a dirty word changed."""
        moved = []
        for slot in self._purgatory.watched():
            version = self._table.version(slot)
            if version != self._versions.get(slot):
                self._versions[slot] = version
                moved.append(slot)
        if moved:
            self._purgatory.check(*moved)
            self._count()

    def poll_all(self) -> None:
        """Try all fetches, since some may have to be answered with errors after a change of the metadata."""
        self.check(self._purgatory.watched())

    def check(self, slots: Iterable[int]) -> None:
        """Try the fetches parked under these slots."""
        self._purgatory.check(*slots)
        self._count()

    def expire(self, now_ms: int) -> None:
        expired = self._purgatory.expire(now_ms)
        if expired:
            self._counters.add(Counter.COUNT_FETCHES_EXPIRED, expired)
            self._count()

    def expire_all(self) -> None:
        """Answer all fetches except those that wait for the disk, because the process stops."""
        waiting, self._by_connection = self._by_connection, {}
        for watch in waiting.values():
            if (fetch := self._purgatory.cancel(watch)) is not None:
                fetch.expire()
        self._count()

    def expire_now(self, connection: int) -> None:
        """Expire the fetch of a connection before its deadline."""
        watch = self._by_connection.pop(connection, None)
        if watch is not None and (fetch := self._purgatory.cancel(watch)) is not None:
            fetch.expire()
        self._count()

    def release(self, request: Request) -> None:
        """Forget the parked fetch of a request that has ended, if there is one."""
        watch = self._by_connection.get(request.connection)
        if watch is not None and (watch.operation is None or watch.operation.context.slot is request):
            del self._by_connection[request.connection]
            self._purgatory.cancel(watch)
            self._count()

    def next_deadline_ms(self) -> int | None:
        return self._purgatory.next_deadline_ms()

    def cancel(self, connection: int) -> None:
        """Cancel the fetch of a closed connection; the processor gets the request's block back."""
        watch = self._by_connection.pop(connection, None)
        if watch is not None and (fetch := self._purgatory.cancel(watch)) is not None:
            fetch.context.cancel()
            self._count()

    def forget_processor(self, processor: int) -> None:
        for connection, watch in list(self._by_connection.items()):
            fetch = watch.operation
            if fetch is not None and fetch.context.slot.processor == processor:
                del self._by_connection[connection]
                self._purgatory.cancel(watch)
                fetch.context.end()
        self._count()

    def _count(self) -> None:
        """Set the counters of fetches that wait."""
        self._counters.set(Counter.COUNT_FETCHES_DELAYED, len(self._purgatory))
        self._counters.set(Counter.COUNT_FETCHES_WATCHED, self._purgatory.entries)

    def _mark(self, slot: int) -> None:
        self._marks.mark(slot, self._waiter)
        self._versions[slot] = self._table.version(slot)

    def _unmark(self, slot: int) -> None:
        self._marks.clear(slot, self._waiter)
        self._versions.pop(slot, None)
