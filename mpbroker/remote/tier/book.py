"""Gathers events for the ledger, and has the partitions' files follow what is in it. Threads may share it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.metadata import TopicImage
from mpbroker.remote.cuts.cutter import Cut
from mpbroker.remote.ledger.events import Event, SegmentAdded, SegmentsRemoved
from mpbroker.remote.ledger.ledger import Ledger
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.tier.outage import Outage
from mpbroker.remote.tier.places import Key, Place
from mpbroker.remote.tier.remote_files import RemoteFiles
from mpbroker.remote.tier.removal import topic_set
from mpbroker.storage.remote_segments import NO_SEGMENTS
from shm.clock import wall_ms
from shm.counters import CounterPage


class Book:
    """The ledger, with the events that wait for its next entry. `interval_ms()` lies between two entries."""

    def __init__(
        self,
        ledger: Ledger,
        files: RemoteFiles,
        counters: CounterPage,
        outage: Outage,
        interval_ms: Callable[[], int],
    ) -> None:
        self.ledger = ledger
        self._files = files
        self._counters = counters
        self._outage = outage
        self._interval_ms = interval_ms
        self._lock = threading.RLock()
        self._places: Mapping[Key, Place] = {}
        self._ready: list[Event] = []
        # What the ledger was given, and may have or not.
        self._given: list[Event] = []
        # The ends of partitions with segments in these two.
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
        """Make the files right of all partitions that are open now. Call it when all events are in."""
        with self._lock:
            self._places = {place.key: place for place in places}
            for place in self._places.values():
                if not self._files.is_right(place):
                    self._files.write(place, self.state.remote_segments(*place.key))

    def hide(self, place: Place) -> bool:
        """Have a partition's file name no segments, until `follow` or `commit`; return whether it names none.

        To be called before all segments are removed. The store may take the event late, after the partition
        is tiered again: no local segment may be deleted meanwhile because of what will be removed.
        """
        with self._lock:
            is_hidden = self._files.write(place, NO_SEGMENTS)
            self._files.changed([place.key])
            return is_hidden

    def add(self, events: Iterable[Event]) -> None:
        """Have the next entry say this."""
        with self._lock:
            self._ready += events

    def add_segment(self, event: SegmentAdded, topic: TopicImage) -> None:
        """Have the next entry tell of an uploaded segment, and of its topic before that."""
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
        """Return when the ledger has all events. Raises Fenced; StoreError, then the next call goes on."""
        with self._lock:
            events, self._ready = self._ready, []
            self._given += events
            self._next = time.monotonic() + self._interval_ms() / 1000
            self.ledger.append(events)
            given, self._given = self._given, []
            self._ends.clear()
            if given:
                self._committed(given)

    def commit_cut(self, cut: Cut) -> None:
        """Have the ledger name a cut. Raises as `commit` does."""
        with self._lock:
            self.commit()
            self.add([cut.event(self.state, self.ledger.seq)])
            self.commit()

    def check_fence(self) -> None:
        """Return if nobody else has written to the ledger. Raises Fenced, StoreError."""
        with self._lock:
            self.commit()
            self.ledger.check_fence()

    def snapshot_if_due(self) -> None:
        """Raises StoreError, OSError."""
        with self._lock:
            self.ledger.snapshot_if_due()

    def _committed(self, events: Iterable[Event]) -> None:
        self._outage.succeeded()
        changed = set()
        for event in events:
            if isinstance(event, SegmentAdded | SegmentsRemoved):
                changed.add(event.key)
            if isinstance(event, SegmentAdded):
                self._counters.add(Counter.COUNT_REMOTE_COPIED_SEGMENTS)
                self._counters.add(Counter.COUNT_REMOTE_COPIED_BYTES, event.size)
        self._counters.set(Counter.COUNT_REMOTE_COMMITTED_MS, wall_ms())
        self._files.changed(changed)
        for key in changed:
            if (place := self._places.get(key)) is not None:
                self._files.write(place, self.state.remote_segments(*key))
