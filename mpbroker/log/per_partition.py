"""A number of each of many partitions, by topic and partition: 8 bytes for one, where a dict has 150.

Partitions of a topic are numbered from 0 on, so that theirs stand in an array. What is far behind the others,
as a name in a file may say, does not make the array any longer: it stands in a dict.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping, MutableMapping
from typing import TypeVar, cast

Topic = TypeVar("Topic", bound=Hashable)
ABSENT = -1
# Partitions that may be missing before one that is put behind them.
GAP_MOST = 64


class PerPartition(MutableMapping[tuple[Topic, int], int]):
    """No number is negative."""

    __slots__ = ("_count", "_far", "_near")

    def __init__(self, numbers: Mapping[tuple[Topic, int], int] | None = None) -> None:
        self._near: dict[Topic, array[int]] = {}
        self._far: dict[tuple[Topic, int], int] = {}
        self._count = 0
        if numbers is not None:
            self.put_all(numbers)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[Topic, int]]:
        for topic, numbers in self._near.items():
            for partition, number in enumerate(numbers):
                if number != ABSENT:
                    yield topic, partition
        yield from self._far

    def __contains__(self, key: object) -> bool:
        topic, partition = cast(tuple[Topic, int], key)
        numbers = self._near.get(topic)
        is_near = numbers is not None and 0 <= partition < len(numbers) and numbers[partition] != ABSENT
        return is_near or key in self._far

    def __getitem__(self, key: tuple[Topic, int]) -> int:
        numbers = self._near.get(key[0])
        if numbers is not None and 0 <= key[1] < len(numbers) and (number := numbers[key[1]]) != ABSENT:
            return number
        return self._far[key]

    def __setitem__(self, key: tuple[Topic, int], number: int) -> None:
        topic, partition = key
        if number < 0 or partition < 0:
            raise ValueError(f"{key} has the number {number}")
        if key not in self:
            self._count += 1
        numbers = self._near.get(topic)
        there = len(numbers) if numbers is not None else 0
        if key in self._far or partition > there + GAP_MOST:
            self._far[key] = number
            return
        if numbers is None:
            numbers = self._near[topic] = array("q")
        if partition >= there:
            numbers.extend([ABSENT] * (partition + 1 - there))
        numbers[partition] = number

    def __delitem__(self, key: tuple[Topic, int]) -> None:
        if self._far.pop(key, None) is None:
            if key not in self:
                raise KeyError(key)
            numbers = self._near[key[0]]
            numbers[key[1]] = ABSENT
            while numbers and numbers[-1] == ABSENT:
                numbers.pop()
            if not numbers:
                del self._near[key[0]]
        self._count -= 1

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PerPartition) and self._near == other._near and self._far == other._far:
            return True
        return isinstance(other, Mapping) and len(self) == len(other) and dict(self) == dict(other)

    def put_all(self, numbers: Mapping[tuple[Topic, int], int]) -> None:
        for key, number in numbers.items():
            self[key] = number

    def copy(self) -> PerPartition[Topic]:
        made: PerPartition[Topic] = PerPartition()
        made._near = {topic: numbers[:] for topic, numbers in self._near.items()}
        made._far, made._count = self._far.copy(), self._count
        return made

    def of(self, topic: Topic) -> Iterable[int]:
        """The partitions of a topic that have a number."""
        near = [n for n, number in enumerate(self._near.get(topic, ())) if number != ABSENT]
        return near + [partition for other, partition in self._far if other == topic]
