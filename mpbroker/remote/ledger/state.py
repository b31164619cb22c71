"""The state that follows from the events of a ledger.

One thread changes a state. Others may read it at any time: lists grow at their end, or are replaced.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import msgspec

from mpbroker.remote.ledger.events import (
    CutsRemoved,
    CutTaken,
    Event,
    Exported,
    LogStartMoved,
    ObjectsDeleted,
    Released,
    SegmentAdded,
    SegmentRevived,
    SegmentsRemoved,
    Shipped,
    SnapshotWritten,
    StandbyGone,
    StandbySet,
    Started,
    TakenOver,
    TopicDeleted,
    TopicRestored,
    TopicSet,
)
from mpbroker.storage.remote_segments import RemoteSegment, RemoteSegments


class EventRefused(ValueError):
    """Raised for an event that contradicts those before it."""


class RemoteTopic(msgspec.Struct, frozen=True):
    """A topic with what is known of it. `deleted_ms` is when it was deleted, None while it is there."""

    name: str
    topic_id: bytes
    partitions: int
    settings: dict[str, str]
    deleted_ms: int | None = None


class RemovedSegment(msgspec.Struct, frozen=True, gc=False):
    """A segment that was removed, whose objects may still be there."""

    segment: SegmentAdded
    removed_ms: int


class RemoteCut(msgspec.Struct, frozen=True):
    """A cut, and the time of its entry."""

    event: CutTaken
    time_ms: int


class NamedSnapshot(msgspec.Struct, frozen=True):
    """A snapshot that the ledger names, and the time of its entry."""

    event: SnapshotWritten
    time_ms: int


class RemoteState:
    """Topics by id, segments and log start offsets by (topic id, partition), removed segments by id.

    `cuts` are those that are kept, the oldest first. `bundles` are what they are made of, each with the
    `after` of the first cut that named it no longer, or None. `leader` is who writes the ledger, `standbys`
    are by broker id. `exported` says who has given the store to Apache Kafka. `snapshots` are those that the
    ledger names, `firsts` the entries that begin a start or a generation.
    """

    def __init__(self) -> None:
        self.topics: dict[bytes, RemoteTopic] = {}
        self.segments: dict[tuple[bytes, int], list[SegmentAdded]] = {}
        self.removed: dict[bytes, RemovedSegment] = {}
        self.log_starts: dict[tuple[bytes, int], int] = {}
        self.cuts: list[RemoteCut] = []
        self.bundles: dict[bytes, int | None] = {}
        self.leader: Started | TakenOver | None = None
        self.is_released = False
        self.exported: Exported | None = None
        self.standbys: dict[int, StandbySet] = {}
        self.snapshots: list[NamedSnapshot] = []
        self.firsts: list[int] = []
        # Of `Shipped`: the last number, and (number, id of the object or b"") of those that no cut has.
        self.shipped_number = 0
        self.shipped: list[tuple[int, bytes]] = []

    @property
    def trimmed_before(self) -> int:
        """Return the entry below which entries may be missing, because they were trimmed."""
        return self.snapshots[-1].event.first if self.snapshots else 0

    @property
    def last_shipped(self) -> int:
        """Return the last number that `Shipped` may have had: a cut may have some that the ledger has not."""
        return max(self.shipped_number, self.cuts[-1].event.shipped if self.cuts else 0)

    @property
    def shipped_numbers(self) -> frozenset[int]:
        """Return the numbers of what was shipped after the newest cut, and that no restore has undone."""
        return frozenset(number for number, _ in self.shipped)

    def segments_of(self, topic_id: bytes, partition: int) -> Sequence[SegmentAdded]:
        """Return the segments of a partition, by offset."""
        return self.segments.get((topic_id, partition), ())

    def remote_segments(self, topic_id: bytes, partition: int) -> RemoteSegments:
        """Return what the partition's file of remote segments has to say."""
        return segments_file(self.segments_of(topic_id, partition))

    def check(self, events: Sequence[Event]) -> None:
        """Raise EventRefused if one of the events contradicts the state after those before it."""
        begins = events[0] if events else None
        if self.exported is not None and not (isinstance(begins, TakenOver) and begins.imported):
            raise EventRefused(f"{begins} follows {self.exported}: only an import may")
        topics: ChainMap[bytes, RemoteTopic] = ChainMap({}, self.topics)
        log_starts: ChainMap[tuple[bytes, int], int] = ChainMap({}, self.log_starts)
        added: dict[tuple[bytes, int], list[SegmentAdded]] = {}
        gone: set[bytes] = set()
        firsts: dict[tuple[bytes, int], int] = {}
        shipped = self.shipped_number
        for event in events:
            match event:
                case TopicSet():
                    known = topics.get(event.topic_id)
                    _expect(known is None or known.deleted_ms is None, event)
                    topics[event.topic_id] = _topic(event)
                case TopicDeleted():
                    topics[event.topic_id] = _deleted(_known(topics, event, is_deleted=False), 0)
                case TopicRestored():
                    topics[event.topic_id] = _deleted(_known(topics, event, is_deleted=True), None)
                case SegmentAdded():
                    _known(topics, event, is_deleted=False)
                    new = added.setdefault(event.key, [])
                    newest_first = chain(reversed(new), reversed(self.segments_of(*event.key)))
                    ends = (one.end for one in newest_first if one.segment_id not in gone)
                    _expect(next(ends, 0) <= event.base < event.end, event)
                    new.append(event)
                case SegmentsRemoved():
                    segments = chain(self.segments_of(*event.key), added.get(event.key, ()))
                    doomed = set(event.segment_ids)
                    _expect(gone.isdisjoint(doomed) and _has(segments, doomed), event)
                    gone |= doomed
                case SegmentRevived(one):
                    _known(topics, one, is_deleted=False)
                    there = (now for now in self.segments_of(*one.key) if now.segment_id not in gone)
                    first = firsts.get(one.key, next((now.base for now in there), one.end))
                    _expect(one.base < one.end <= first, event)
                    firsts[one.key] = one.base
                case LogStartMoved():
                    _expect(log_starts.get(event.key, 0) <= event.offset, event)
                    log_starts[event.key] = event.offset
                case Shipped():
                    _expect(shipped < event.number, event)
                    shipped = event.number
                case _:
                    pass

    def apply(self, events: Iterable[Event], time_ms: int) -> None:
        """Change the state by events that `check` has let through. `time_ms` is their entry's time."""
        for event in events:
            match event:
                case SegmentAdded():
                    self.segments.setdefault(event.key, []).append(event)
                case SegmentsRemoved():
                    self._remove(event, time_ms)
                case SegmentRevived(one):
                    self.segments[one.key] = [one, *self.segments_of(*one.key)]
                    # The tier tells where the log starts now.
                    self.log_starts.pop(one.key, None)
                case ObjectsDeleted():
                    for segment_id in event.segment_ids:
                        self.removed.pop(segment_id, None)
                case TopicSet():
                    self.topics[event.topic_id] = _topic(event)
                case TopicDeleted():
                    self.topics[event.topic_id] = _deleted(self.topics[event.topic_id], time_ms)
                    self._forget_if_empty(event.topic_id)
                case TopicRestored():
                    if (topic := self.topics.get(event.topic_id)) is not None:
                        self.topics[event.topic_id] = _deleted(topic, None)
                case LogStartMoved():
                    # The topic may be forgotten: then nothing would forget this.
                    if event.topic_id in self.topics:
                        self.log_starts[event.key] = event.offset
                case CutTaken():
                    self.cuts = [*self.cuts, RemoteCut(event, time_ms)]
                    self.bundles |= dict.fromkeys(event.added)
                    self.bundles |= dict.fromkeys(event.dropped, event.after)
                    self.shipped = [one for one in self.shipped if one[0] > event.shipped]
                case CutsRemoved():
                    self.cuts = [one for one in self.cuts if one.event.cut_id not in event.cut_ids]
                    for bundle_id in event.bundle_ids:
                        self.bundles.pop(bundle_id, None)
                case Started() | TakenOver():
                    self._led_by(event)
                case StandbySet():
                    self.standbys = {**self.standbys, event.broker_id: event}
                case StandbyGone():
                    self.standbys = _without(self.standbys, event.broker_id)
                case Released():
                    self.is_released = True
                case Exported():
                    self.exported = event
                case SnapshotWritten():
                    kept = [one for one in self.snapshots if one.event.seq >= event.first]
                    self.snapshots = [*kept, NamedSnapshot(event, time_ms)]
                case Shipped():
                    self.shipped_number = event.number
                    self.shipped.append((event.number, event.object_id))

    def _led_by(self, event: Started | TakenOver) -> None:
        self.leader, self.is_released = event, False
        is_restored = isinstance(event, TakenOver) and not event.by_standby
        if isinstance(event, TakenOver):
            self.exported = None
            self._undo_after(event)
        self.standbys = {} if is_restored else _without(self.standbys, event.broker_id)

    def _undo_after(self, event: TakenOver) -> None:
        """Forget cuts that are younger than the one that was restored: no restore may choose them.

        Their bundles stay until the next cut drops them.
        """
        cut_ids = [one.event.cut_id for one in self.cuts]
        if event.cut_id in cut_ids:
            self.cuts = self.cuts[: cut_ids.index(event.cut_id) + 1]
        if event.shipped >= 0:
            self.shipped = [one for one in self.shipped if one[0] <= event.shipped]

    def _remove(self, event: SegmentsRemoved, time_ms: int) -> None:
        doomed = set(event.segment_ids)
        left = []
        for segment in self.segments_of(*event.key):
            if segment.segment_id in doomed:
                self.removed[segment.segment_id] = RemovedSegment(segment, time_ms)
            else:
                left.append(segment)
        if left:
            self.segments[event.key] = left
        else:
            self.segments.pop(event.key, None)
            self._forget_if_empty(event.topic_id)

    def _forget_if_empty(self, topic_id: bytes) -> None:
        """Forget a deleted topic that has no segments: nothing is there to bring back."""
        topic = self.topics.get(topic_id)
        if topic is None or topic.deleted_ms is None:
            return
        keys = [(topic_id, partition) for partition in range(topic.partitions)]
        if not any(key in self.segments for key in keys):
            del self.topics[topic_id]
            for key in keys:
                self.log_starts.pop(key, None)


def segments_file(segments: Iterable[SegmentAdded]) -> RemoteSegments:
    """Return what a partition's file of remote segments has to say of these."""
    return RemoteSegments(
        RemoteSegment(one.base, one.end, one.size, one.largest_ms, one.segment_id) for one in segments
    )


def _without(standbys: dict[int, StandbySet], broker_id: int) -> dict[int, StandbySet]:
    return {key: one for key, one in standbys.items() if key != broker_id}


def _topic(event: TopicSet) -> RemoteTopic:
    return RemoteTopic(event.name, event.topic_id, event.partitions, event.settings)


def _deleted(topic: RemoteTopic, deleted_ms: int | None) -> RemoteTopic:
    return msgspec.structs.replace(topic, deleted_ms=deleted_ms)


def _known(
    topics: Mapping[bytes, RemoteTopic],
    event: TopicDeleted | TopicRestored | SegmentAdded,
    *,
    is_deleted: bool,
) -> RemoteTopic:
    topic = topics.get(event.topic_id)
    if topic is None or (topic.deleted_ms is not None) != is_deleted:
        raise EventRefused(f"{event} is about a topic that is {'not deleted' if is_deleted else 'not there'}")
    return topic


def _has(segments: Iterable[SegmentAdded], segment_ids: set[bytes]) -> bool:
    """Tell whether all these segments are there. The oldest ones are found first: those are removed."""
    left = set(segment_ids)
    for segment in segments:
        if not left:
            break
        left.discard(segment.segment_id)
    return not left


def _expect(holds: bool, event: Event) -> None:
    if not holds:
        raise EventRefused(f"{event} contradicts what the ledger has")
