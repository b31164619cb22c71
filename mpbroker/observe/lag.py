"""The lag of consumer groups: high watermarks less committed offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mpbroker.protocol.topic_names import TopicPartition


def lag_behind(end: int, committed: int) -> int:
    """Return the lag in a partition, at least 0. `committed` may be negative, or larger than `end`."""
    return max(end - max(committed, 0), 0)


class Ends:
    """The high watermarks of partitions at one moment."""

    def __init__(self, ends: Mapping[TopicPartition, int]) -> None:
        self.of = ends
        self._by_topic: dict[str, list[TopicPartition]] = {}
        for place in ends:
            self._by_topic.setdefault(place[0], []).append(place)

    def places(self, known: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the `known` partitions and all other partitions of their topics, sorted."""
        found = set(known)
        return sorted(
            found.union(*(self._by_topic.get(topic, ()) for topic in {place[0] for place in found}))
        )

    def lag(self, committed: Mapping[TopicPartition, int]) -> int | None:
        """Return a group's lag, summed over partitions with a commit; None if no partition has a commit."""
        lags = [lag_behind(self.of[place], offset) for place, offset in committed.items() if place in self.of]
        return sum(lags) if lags else None
