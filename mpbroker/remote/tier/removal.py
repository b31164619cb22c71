"""What is removed from the store, and when: events first, objects some time later. Sans-I/O.

The objects of a segment are deleted mpbroker.remote.delete.delay.ms after the ledger has removed the segment.
A reader of an earlier state of the ledger has that long to finish. A deleted topic keeps its segments for a
day, in which it can be brought back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from mpbroker.ipc.metadata import TopicImage
from mpbroker.remote.ledger.events import (
    Event,
    LogStartMoved,
    SegmentsRemoved,
    TopicDeleted,
    TopicRestored,
    TopicSet,
)
from mpbroker.remote.ledger.state import RemoteState, RemovedSegment
from mpbroker.remote.tier.places import Place

TOPIC_DELAY_MS: Final = 24 * 3600 * 1000


def topic_set(topic: TopicImage) -> TopicSet:
    """Return the event that describes a topic."""
    return TopicSet(topic.name, topic.topic_id, len(topic.partitions), topic.configs)


def of_topics(state: RemoteState, topics: Mapping[bytes, TopicImage], now_ms: int) -> Iterator[Event]:
    """Yield the events of topics that were deleted, are there again or have changed.

    `topics` are all topics of the broker. A topic that it does not have is deleted, so pass what the
    coordinator has announced, not what is open.
    """
    for known in state.topics.values():
        topic = topics.get(known.topic_id)
        if topic is None and known.deleted_ms is None:
            yield TopicDeleted(known.topic_id)
        elif topic is None and known.deleted_ms is not None:
            if now_ms - known.deleted_ms >= TOPIC_DELAY_MS:
                yield from _removed(state, ((known.topic_id, number) for number in range(known.partitions)))
        elif topic is not None:
            if known.deleted_ms is not None:
                yield TopicRestored(known.topic_id)
            event = topic_set(topic)
            if (event.name, event.partitions, event.settings) != (
                known.name,
                known.partitions,
                known.settings,
            ):
                yield event


def of_partition(state: RemoteState, place: Place) -> Iterator[Event]:
    """Yield the events of a partition whose log start has moved, or whose segments are to be removed."""
    segments = state.segments_of(*place.key)
    if not segments:
        return
    if place.is_removed:
        yield from _removed(state, [place.key])
        return
    if place.log_start > state.log_starts.get(place.key, 0):
        yield LogStartMoved(place.topic_id, place.partition, place.log_start)
    below = tuple(one.segment_id for one in segments if one.end <= place.log_start)
    if below:
        yield SegmentsRemoved(place.topic_id, place.partition, below)


def due(state: RemoteState, now_ms: int, delay_ms: int) -> list[RemovedSegment]:
    """Return the removed segments whose objects are to be deleted now."""
    return [one for one in list(state.removed.values()) if now_ms - one.removed_ms >= delay_ms]


def _removed(state: RemoteState, keys: Iterable[tuple[bytes, int]]) -> Iterator[Event]:
    for topic_id, partition in keys:
        if segments := state.segments_of(topic_id, partition):
            yield SegmentsRemoved(topic_id, partition, tuple(one.segment_id for one in segments))
