"""Queues events, writes them into the ledger, then updates the partitions' files. Thread-safe."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.metadata import TopicImage
from mpbroker.remote.cuts.cutter import Cut
from mpbroker.remote.ledger.events import Event, SegmentAdded, SegmentsRemoved, Started
from mpbroker.remote.ledger.ledger import Fenced, Ledger
from mpbroker.remote.ledger.registrations import Registration
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.tier.leadership import Leadership
from mpbroker.remote.tier.outage import Outage
from mpbroker.remote.tier.places import Key, Place
from mpbroker.remote.tier.remote_files import RemoteFiles
from mpbroker.remote.tier.removal import topic_set
from mpbroker.storage.remote_segments import NO_SEGMENTS
from shm.clock import wall_ms
from shm.counters import CounterPage

T = TypeVar("T")


class Book:
    """The ledger, with a queue of events for its next entry. `interval_ms()`: the least time between entries.

    A thread of its own makes all requests of the ledger. Threads that wait for it may have a lower priority,
    and the lease must not depend on that. The thread that commits writes the partitions' files.
    """

    def __init__(
        self,
        ledger: Ledger,
        files: RemoteFiles,
        counters: CounterPage,
        outage: Outage,
        leadership: Leadership,
        interval_ms: Callable[[], int],
    ) -> None:
        self.ledger = ledger
        self._files = files
        self._counters = counters
        self._outage = outage
        self._leadership = leadership
        self._interval_ms = interval_ms
        self._thread = ThreadPoolExecutor(1, "ledger")
        # The thread begins now, to have the priority of the one that makes this object.
        self._thread.submit(int).result()
        self._lock = threading.RLock()
        self._places: Mapping[Key, Place] = {}
        self._ready: list[Event] = []
        # The ledger's thread alone uses it: events that the ledger was given, and may have or not.
        self._given: list[Event] = []
        # Events that the ledger has, and the partitions' files may lack.
        self._in: deque[Event] = deque()
        # The ends of partitions with segments in these three.
        self._ends: dict[Key, int] = {}
        self._next = 0.0

    @property
    def state(self) -> RemoteState:
        return self.ledger.state

    def end_of(self, key: Key) -> int:
        """Return the end of the segments of a partition that are in the ledger."""
        segments = self.state.segments_of(*key)
        return segments[-1].end if segments else 0

    def end_with_ready(self, key: Key) -> int:
        """Return the end of the segments of a partition that are in the ledger, or on their way there."""
        return self._ends.get(key) or self.end_of(key)

    def follow(self, places: Iterable[Place]) -> None:
        """Write the files of all open partitions. Call this when the ledger has all events."""
        with self._lock:
            self._places = {place.key: place for place in places}
            for place in self._places.values():
                if not self._files.is_right(place):
                    self._files.write(place, self.state.remote_segments(*place.key))

    def hide(self, place: Place) -> bool:
        """Empty the segments in a partition's file until `follow` or `commit`; return False on an error.

        To be called before all segments are removed. The store may take the event late, after the partition
        is tiered again: no local segment may be deleted meanwhile because of what will be removed.
        """
        with self._lock:
            is_hidden = self._files.write(place, NO_SEGMENTS)
            self._files.changed([place.key])
            return is_hidden

    def add(self, events: Iterable[Event]) -> None:
        """Queue events for the next entry."""
        with self._lock:
            self._ready += events

    def add_segment(self, event: SegmentAdded, topic: TopicImage) -> None:
        """Queue the event of an uploaded segment, and the event of its topic before that."""
        described = topic_set(topic)
        with self._lock:
            if event.topic_id not in self.state.topics and described not in self._ready:
                self._ready.append(described)
            self._ready.append(event)
            self._ends[event.key] = event.end

    def commit_if_due(self) -> None:
        """Do what `commit` does, if the last entry is long enough ago."""
        if time.monotonic() >= self._next:
            self.commit()

    def commit(self) -> None:
        """Write all queued events into the ledger. Raises Fenced, or StoreError: the events stay queued."""
        self.in_turn(self._commit)
        self._settle()

    def renew(self) -> None:
        """Put an entry into the ledger, also if there are no events. Raises as `commit` does."""
        self.in_turn(lambda: self._append(is_renewal=True))

    def commit_cut(self, cut: Cut) -> None:
        """Have the ledger name a cut. Raises as `commit` does."""

        def commit() -> None:
            self._commit()
            self._append([cut.event(self.state, self.ledger.seq)])

        self.in_turn(commit)
        self._settle()

    def follow_standbys(self, found: Iterable[Registration], started: Started) -> Sequence[int]:
        """Have the ledger name the standbys that are there; return who is gone. Raises as `commit`.

        `started` is what the ledger is to say of this broker.
        """
        return self.in_turn(lambda: self._leadership.follow(found, self._append, started))

    def check_fence(self) -> None:
        """Check that no other broker has written to the ledger. Raises Fenced, StoreError."""
        self.commit()
        self.in_turn(self._check_fence)

    def snapshot_if_due(self) -> None:
        """Write a snapshot if one is due, and have the ledger name one a day. Raises as `commit` does."""
        made = self.in_turn(self.ledger.due_snapshot)
        if made is not None:
            self.ledger.write_snapshot(made)
            self.add(made.events)
            self.commit()

    def in_turn(self, do: Callable[[], T]) -> T:
        """Call a function in the ledger's thread; return its result, or raise its exception."""
        return self._thread.submit(do).result()

    def _commit(self) -> None:
        with self._lock:
            events, self._ready = self._ready, []
            self._next = time.monotonic() + self._interval_ms() / 1000
        self._append(events)

    def _append(self, events: Sequence[Event] = (), *, is_renewal: bool = False) -> None:
        self._given += events
        before = self.ledger.seq
        try:
            self.ledger.append(events, is_renewal=is_renewal)
        except Fenced as fenced:
            self._leadership.lost(fenced)
            raise
        finally:
            # Some entries may be in although the last one failed.
            if self.ledger.seq != before:
                self._leadership.renewed()
                self._counters.set(Counter.COUNT_REMOTE_COMMITTED_MS, wall_ms())
        self._in += self._given
        self._given = []

    def _check_fence(self) -> None:
        try:
            self.ledger.check_fence()
        except Fenced as fenced:
            self._leadership.lost(fenced)
            raise

    def _settle(self) -> None:
        """Write the files of partitions whose segments have changed in the ledger."""
        with self._lock:
            events = []
            while self._in:
                events.append(self._in.popleft())
            if events:
                self._committed(events)

    def _committed(self, events: Iterable[Event]) -> None:
        self._outage.succeeded()
        changed = set()
        for event in events:
            if isinstance(event, SegmentAdded | SegmentsRemoved):
                changed.add(event.key)
            if isinstance(event, SegmentAdded):
                self._counters.add(Counter.COUNT_REMOTE_COPIED_SEGMENTS)
                self._counters.add(Counter.COUNT_REMOTE_COPIED_BYTES, event.size)
                if self._ends.get(event.key) == event.end:
                    del self._ends[event.key]
        self._files.changed(changed)
        for key in changed:
            if (place := self._places.get(key)) is not None:
                self._files.write(place, self.state.remote_segments(*key))
