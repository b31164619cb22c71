"""A map from partitions to numbers. A dict per topic saves a tuple per partition."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, MutableMapping
from typing import TypeVar

_Topic = TypeVar("_Topic", bound=Hashable)
# Numbers are offsets and slots.
_TOO_LARGE = 1 << 63


class PartitionMap(MutableMapping[tuple[_Topic, int], int]):
    """Numbers by (topic, partition); neither partition nor number is negative."""

    __slots__ = ("_topics",)

    def __init__(self, numbers: Mapping[tuple[_Topic, int], int] | None = None) -> None:
        self._topics: dict[_Topic, dict[int, int]] = {}
        if numbers is not None:
            self.update(numbers)

    def __getitem__(self, key: tuple[_Topic, int]) -> int:
        return self._topics[key[0]][key[1]]

    def __setitem__(self, key: tuple[_Topic, int], number: int) -> None:
        """Raise ValueError if the partition or the number is negative, or the number is no int64."""
        topic, partition = key
        if partition < 0 or not 0 <= number < _TOO_LARGE:
            raise ValueError(f"{key} has the number {number}")
        self._topics.setdefault(topic, {})[partition] = number

    def __delitem__(self, key: tuple[_Topic, int]) -> None:
        topic = self._topics[key[0]]
        del topic[key[1]]
        if not topic:
            del self._topics[key[0]]

    def __iter__(self) -> Iterator[tuple[_Topic, int]]:
        return ((topic, partition) for topic, partitions in self._topics.items() for partition in partitions)

    def __len__(self) -> int:
        return sum(len(partitions) for partitions in self._topics.values())

    def copy(self) -> PartitionMap[_Topic]:
        made: PartitionMap[_Topic] = PartitionMap()
        made._topics = {topic: partitions.copy() for topic, partitions in self._topics.items()}
        return made

    def of(self, topic: _Topic) -> list[int]:
        """Return the partitions of a topic that have a number."""
        return list(self._topics.get(topic, ()))
