"""Defines the input and the result of an assignor, and how it pauses.

An assignor is a generator. It yields about every millisecond, so that the coordinator can serve other
requests in between, and returns the assignments.
(Kafka: GroupSpec, MemberSubscription, PartitionAssignorException.)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from mpbroker.protocol.uuids import uuid_text

# Topic id -> numbers of partitions. A topic without partitions is left out.
Assignment: TypeAlias = Mapping[bytes, frozenset[int]]

T = TypeVar("T")
Sliced: TypeAlias = Generator[None, None, T]

# Steps of 0.1 to 0.3 microseconds.
STEPS_OF_A_SLICE: Final = 4_000


class PartitionAssignorError(Exception):
    """A member is subscribed to a topic whose partitions are unknown."""


class Subscriber(NamedTuple):
    """A member: the ids of all topics it is subscribed to, and its target assignment so far.

    Members with the same topics should share one set object: that saves hashing and comparing equal sets.
    """

    instance_id: str | None
    topics: frozenset[bytes]
    assigned: Assignment


class GroupSpec(NamedTuple):
    """Members by member id, and the number of partitions by topic id.

    The order of the members breaks ties. If a partition is assigned to several members, the first keeps it.
    """

    subscribers: Mapping[str, Subscriber]
    partitions: Mapping[bytes, int]


# Return the assignment of each member; where it does not change, the same object as `Subscriber.assigned`.
Assignor: TypeAlias = Callable[[GroupSpec], Sliced[dict[str, Assignment]]]


class Pace:
    """Counts steps of work and says when a slice is full: `if pace.is_over(steps): yield`."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = STEPS_OF_A_SLICE

    def is_over(self, steps: int) -> bool:
        self._left -= steps
        if self._left > 0:
            return False
        self._left = STEPS_OF_A_SLICE
        return True


def members_by_topics(members: Sequence[Subscriber], pace: Pace) -> Sliced[dict[frozenset[bytes], list[int]]]:
    """Return, for each set of topics, the ascending indices of the members subscribed to just these."""
    found: dict[frozenset[bytes], list[int]] = {}
    for index, member in enumerate(members):
        found.setdefault(member.topics, []).append(index)
        if pace.is_over(2):
            yield
    return found


def subscribers_by_topic(
    groups: Mapping[frozenset[bytes], list[int]], partitions: Mapping[bytes, int], pace: Pace
) -> Sliced[dict[bytes, list[int]]]:
    """Return the subscribers of each topic, ascending; topics with the same subscribers share one list.

    `groups` is what members_by_topics returned. Raises PartitionAssignorError.
    """
    numbers: dict[bytes, list[int]] = {}
    for number, topics in enumerate(groups):
        for topic in topics:
            numbers.setdefault(topic, []).append(number)
            if pace.is_over(1):
                yield
    members = list(groups.values())
    shared: dict[tuple[int, ...], list[int]] = {}
    found: dict[bytes, list[int]] = {}
    for topic, numbers_of in numbers.items():
        if topic not in partitions:
            raise PartitionAssignorError(
                f"topic id {uuid_text(topic)}: a member is subscribed to it, and its partitions are unknown"
            )
        key = tuple(numbers_of)
        if key not in shared:
            shared[key] = sorted(index for number in key for index in members[number])
        found[topic] = shared[key]
        if pace.is_over(2 + len(key) // 8):
            yield
    return found


def sorted_topics(
    topics: Iterable[bytes], rank: Callable[[bytes], tuple[Any, ...]], pace: Pace
) -> Sliced[list[bytes]]:
    """Return topic ids, sorted by rank and then by id.

    The work may pause between two groups of topics; topics of one rank and first byte are one group.
    """
    buckets: dict[tuple[Any, ...], list[bytes]] = {}
    for topic in topics:
        buckets.setdefault((*rank(topic), topic[0]), []).append(topic)
        if pace.is_over(3):
            yield
    found: list[bytes] = []
    for key in sorted(buckets):
        found += sorted(buckets[key])
        if pace.is_over(2 * len(buckets[key])):
            yield
    return found
