"""The assignor `uniform` where all members are subscribed to the same topics.

Loads differ by one partition at most, and no more partitions move than this requires.
(Kafka: UniformHomogeneousAssignmentBuilder.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, islice

from mpbroker.coordinator.groups.consumer.assignors.group_spec import (
    Assignment,
    GroupSpec,
    Pace,
    Sliced,
    sorted_topics,
)


def assign_homogeneous(spec: GroupSpec, topics: Iterable[bytes], pace: Pace) -> Sliced[dict[str, Assignment]]:
    """Assign all partitions of `topics` to the members, which are all subscribed to these.

    Members keep what they have up to their quota. Members below their quota get the other partitions: first
    those without an owner, by topic and number, then those that members above their quota gave up.
    """
    unowned: dict[bytes, set[int]] = {}
    for topic in (yield from sorted_topics(topics, lambda _: (), pace)):
        unowned[topic] = set(range(spec.partitions[topic]))
        if pace.is_over(2 + spec.partitions[topic] // 8):
            yield
    shares = _Shares(unowned, len(spec.subscribers))
    for member_id, member in spec.subscribers.items():
        shares.keep(member_id, member.assigned)
        if pace.is_over(4 + 3 * len(member.assigned)):
            yield
    left = ((topic, number) for topic, numbers in unowned.items() for number in sorted(numbers))
    free = chain(left, shares.revoked)
    for member_id, missing in shares.unfilled:
        shares.kept[member_id] = _with(shares.kept[member_id], islice(free, missing))
        if pace.is_over(4 + 2 * missing):
            yield
    return shares.kept


class _Shares:
    """Quotas, and what each member keeps.

    A quota is the number of partitions divided by the number of members. The remainder is how many members
    have a quota that is higher by one. `unowned`: the partitions of each topic; `keep` removes those that
    have an owner.
    """

    def __init__(self, unowned: Mapping[bytes, set[int]], members: int) -> None:
        self._unowned = unowned
        self._members_left = members
        self._quota, self._extras = divmod(sum(map(len, unowned.values())), members)
        self.kept: dict[str, Assignment] = {}
        self.revoked: list[tuple[bytes, int]] = []
        self.unfilled: list[tuple[str, int]] = []

    def keep(self, member_id: str, assigned: Assignment) -> None:
        """Let a member keep partitions up to its quota. Note the surplus, or how many more it may get."""
        room = self._quota + (self._extras > 0)
        changes: dict[bytes, Collection[int]] = {}
        for topic, numbers in assigned.items():
            unowned = self._unowned.get(topic, set())
            had = numbers
            if not had <= unowned:
                changes[topic] = had = numbers & unowned
            unowned -= had
            if len(had) > room:
                ascending = sorted(had)
                changes[topic] = ascending[:room]
                self.revoked += [(topic, number) for number in ascending[room:]]
            room = max(0, room - len(had))
        if self._extras:
            # A member that has room leaves the extra partition to one that has it already, unless all members
            # from here on are needed to take the extras.
            if room and self._members_left > self._extras:
                room -= 1
            else:
                self._extras -= 1
        self._members_left -= 1
        self.kept[member_id] = _replaced(assigned, changes) if changes else assigned
        if room:
            self.unfilled.append((member_id, room))


def _with(kept: Assignment, gained: Iterator[tuple[bytes, int]]) -> Assignment:
    """Return the assignment `kept` with the partitions `gained` added."""
    numbers: dict[bytes, list[int]] = {}
    for topic, partition in gained:
        if topic not in numbers:
            numbers[topic] = list(kept.get(topic, ()))
        numbers[topic].append(partition)
    return _replaced(kept, numbers)


def _replaced(assigned: Assignment, topics: Mapping[bytes, Collection[int]]) -> Assignment:
    """Return a copy of an assignment in which the topics in `topics` have the partitions given there."""
    replaced = {**assigned, **{topic: frozenset(partitions) for topic, partitions in topics.items()}}
    return {topic: partitions for topic, partitions in replaced.items() if partitions}
