"""The assignor `uniform` where members are subscribed to different topics.

Partitions without an owner go to the least loaded subscribers. Then partitions move from the most to the
least loaded subscribers of each topic, until their loads differ by one or the most loaded have none of that
topic. Where subscriptions overlap this repeats for all topics, a limited number of times: the result is
nearly balanced. (Kafka: UniformHeterogeneousAssignmentBuilder.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from typing import Final

from mpbroker.coordinator.groups.consumer.assignors.group_spec import (
    Assignment,
    GroupSpec,
    Pace,
    Sliced,
    sorted_topics,
)

ROUNDS_MAX: Final = 16
NOBODY: Final = -1


def assign_heterogeneous(
    spec: GroupSpec, subscribers: Mapping[bytes, list[int]], pace: Pace
) -> Sliced[dict[str, Assignment]]:
    """Assign each topic's partitions to its `subscribers`, which are ascending indices into the members."""

    def rank(topic: bytes) -> tuple[float, int]:
        return -spec.partitions[topic] / len(subscribers[topic]), len(subscribers[topic])

    target = _Target(spec, subscribers, pace)
    yield from target.keep()
    topics = yield from sorted_topics(subscribers, rank, pace)
    yield from target.assign_unowned(topics)
    yield from target.balance([topic for topic in topics if len(subscribers[topic]) > 1])
    return (yield from target.assignments())


class _Target:
    """The owner of each partition, and the load (count of partitions) of each member. Members are indices."""

    def __init__(self, spec: GroupSpec, subscribers: Mapping[bytes, list[int]], pace: Pace) -> None:
        self._spec = spec
        self._members = list(spec.subscribers.values())
        self._subscribers = subscribers
        self._pace = pace
        self._owners: dict[bytes, list[int]] = {}
        self._loads = [0] * len(self._members)
        self._changed: set[int] = set()
        self._moves = 0

    def keep(self) -> Sliced[None]:
        """Let members keep their partitions of topics to which they are still subscribed."""
        for topic in self._subscribers:
            self._owners[topic] = [NOBODY] * self._spec.partitions[topic]
            if self._pace.is_over(1 + self._spec.partitions[topic] // 64):
                yield
        for index, member in enumerate(self._members):
            for topic, partitions in member.assigned.items():
                owners = self._owners[topic] if topic in member.topics else []
                for partition in partitions:
                    if partition < len(owners) and owners[partition] == NOBODY:
                        owners[partition] = index
                        self._loads[index] += 1
                    else:
                        self._changed.add(index)
                if self._pace.is_over(2 + len(partitions) // 2):
                    yield

    def assign_unowned(self, topics: Sequence[bytes]) -> Sliced[None]:
        loads = self._loads
        for topic in topics:
            owners = self._owners[topic]
            if NOBODY in owners:
                if self._pace.is_over(len(self._subscribers[topic]) // 2):
                    yield
                unowned = [number for number, owner in enumerate(owners) if owner == NOBODY]
                for partition, (_, taker) in zip(
                    unowned, _least_loaded(self._by_load(topic), loads), strict=False
                ):
                    owners[partition] = taker
                    loads[taker] += 1
                    self._changed.add(taker)
                    if self._pace.is_over(1):
                        yield
            if self._pace.is_over(1 + len(owners) // 32):
                yield

    def balance(self, topics: Sequence[bytes]) -> Sliced[None]:
        """Balance topic by topic, in rounds, until a round moves nothing; at most ROUNDS_MAX rounds."""
        # By list of subscribers: the number of moves made when these subscribers were last found balanced.
        balanced: dict[int, int] = {}
        last_moved = 0
        for turn, topic in enumerate(islice(cycle(topics), ROUNDS_MAX * len(topics))):
            if turn - last_moved == len(topics):
                return
            subscribers = self._subscribers[topic]
            if self._pace.is_over(1):
                yield
            if balanced.get(id(subscribers)) == self._moves:
                continue
            order = self._by_load(topic)
            if self._loads[order[-1]] - self._loads[order[0]] <= 1:
                balanced[id(subscribers)] = self._moves
            elif (yield from self._balance_topic(topic, order)):
                last_moved = turn
            if self._pace.is_over(len(order) // 2):
                yield

    def _by_load(self, topic: bytes) -> list[int]:
        return sorted(self._subscribers[topic], key=self._loads.__getitem__)

    def _balance_topic(self, topic: bytes, order: list[int]) -> Sliced[bool]:
        """Move the topic's partitions from the most to the least loaded. Return whether any was moved."""
        owners, loads = self._owners[topic], self._loads
        held: dict[int, list[int]] = {}
        for partition, owner in enumerate(owners):
            held.setdefault(owner, []).append(partition)
        moves = self._moves
        takers = _least_loaded(order, loads)
        for (high, giver), (low, taker) in zip(_most_loaded(order, loads, held), takers, strict=False):
            if high - low <= 1:
                break
            owners[held[giver].pop()] = taker
            loads[giver] -= 1
            loads[taker] += 1
            self._changed |= {giver, taker}
            self._moves += 1
            if self._pace.is_over(4):
                yield
        if self._pace.is_over(len(owners)):
            yield
        return self._moves > moves

    def assignments(self) -> Sliced[dict[str, Assignment]]:
        numbers: dict[int, dict[bytes, list[int]]] = {index: {} for index in self._changed}
        for topic, owners in self._owners.items():
            for partition, owner in enumerate(owners):
                if owner in numbers:
                    numbers[owner].setdefault(topic, []).append(partition)
            if self._pace.is_over(1 + len(owners)):
                yield
        found: dict[str, Assignment] = {}
        for index, (member_id, member) in enumerate(self._spec.subscribers.items()):
            found[member_id] = member.assigned
            if index in numbers:
                changed = {topic: frozenset(listed) for topic, listed in numbers[index].items()}
                # A partition may have come back to its former owner.
                if changed != member.assigned:
                    found[member_id] = changed
            if self._pace.is_over(2 + 3 * len(found[member_id])):
                yield
        return found


def _least_loaded(order: Sequence[int], loads: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield load and index of the least loaded member, then count one partition more for this member.

    The generator never ends, and does not change `loads`. `order` has the members by load; of equal loads,
    the first comes first.
    """
    load, end = loads[order[0]], 0
    while True:
        while end < len(order) and loads[order[end]] == load:
            end += 1
        for place in range(end):
            yield load, order[place]
        load += 1


def _most_loaded(
    order: list[int], loads: Sequence[int], held: Mapping[int, Sequence[int]]
) -> Iterator[tuple[int, int]]:
    """Yield load and index of the most loaded member, then count one partition less for this member.

    `order` has the members by load; of equal loads, the last comes first. A member that has no partition in
    `held` is not yielded, and moves to the end of `order`.
    """
    start = end = len(order)
    place, load = end - 1, 0
    while True:
        if place < start:
            load = loads[order[start - 1]] if 0 < start == end else load - 1
            while start > 0 and loads[order[start - 1]] == load:
                start -= 1
            place = end - 1
        if place < 0:
            return
        if held.get(order[place]):
            yield load, order[place]
        else:
            end -= 1
            order[place], order[end] = order[end], order[place]
        place -= 1
