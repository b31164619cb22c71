"""Groups of the consumer protocol, made at random, for their assignors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random

from mpbroker.coordinator.groups.consumer.assignors.assignors import ASSIGNORS
from mpbroker.coordinator.groups.consumer.assignors.group_spec import Assignment, GroupSpec, Subscriber

# Java iterates over a HashSet of so many ids that differ in the last byte in their order, as we do.
TOPICS = [bytes([*[0] * 15, number]) for number in range(12)]


def run(assignor: str, spec: GroupSpec) -> dict[str, Assignment]:
    """Return what the assignor returns in the end."""
    slices = ASSIGNORS[assignor](spec)
    while True:
        try:
            next(slices)
        except StopIteration as ended:
            found: dict[str, Assignment] = ended.value
            return found


def with_assigned(spec: GroupSpec, assigned: Mapping[str, Assignment]) -> GroupSpec:
    subscribers = {
        member: one._replace(assigned=assigned.get(member, {})) for member, one in spec.subscribers.items()
    }
    return GroupSpec(subscribers, spec.partitions)


def random_group(random: Random) -> GroupSpec:
    """Make a group without assignments; half of them are homogeneous."""
    partitions = {
        topic: random.choice((1, 2, 3, 5, 8, 20)) for topic in random.sample(TOPICS, random.randint(1, 12))
    }
    subscriptions = [_subscription(random, partitions) for _ in range(random.choice((1, 1, 1, 2, 3, 9)))]
    members = [f"member {random.randrange(10**6):06d}" for _ in range(random.choice((1, 2, 3, 5, 12)))]
    subscribers = {
        # An instance is one member. Text would put instances last.
        member: Subscriber(
            f"static {member[::-1]}" if random.random() < 0.3 else None, random.choice(subscriptions), {}
        )
        for member in members
    }
    return GroupSpec(subscribers, dict(sorted(partitions.items())))


def _subscription(random: Random, partitions: Mapping[bytes, int]) -> frozenset[bytes]:
    return frozenset(
        random.sample(sorted(partitions), random.randint(random.random() > 0.1, len(partitions)))
    )


def next_group(random: Random, spec: GroupSpec) -> GroupSpec:
    """Make what becomes of a group: members, subscriptions and topics change, assignments are kept."""
    other = random_group(random)
    partitions = {
        topic: count + random.choice((0, 0, 3))
        for topic, count in {**other.partitions, **spec.partitions}.items()
    }
    kept = {member: one for member, one in spec.subscribers.items() if random.random() < 0.8}
    subscriptions = [one.topics for one in (*spec.subscribers.values(), *other.subscribers.values())]
    if random.random() < 0.5:
        subscriptions = [random.choice(subscriptions)]
    members = list({**kept, **dict(list(other.subscribers.items())[: random.randint(0, 3)])}.items())
    random.shuffle(members)
    change = random.random() < 0.5 or len(subscriptions) == 1
    subscribers = {
        member: one._replace(topics=random.choice(subscriptions)) if change else one
        for member, one in members
    }
    return GroupSpec(subscribers, dict(sorted(partitions.items())))


def is_homogeneous(spec: GroupSpec) -> bool:
    return len({one.topics for one in spec.subscribers.values()}) == 1


def loads(assignments: Mapping[str, Assignment]) -> Counter[str]:
    return Counter({member: sum(map(len, held.values())) for member, held in assignments.items()})


def kept_partitions(spec: GroupSpec, assignments: Mapping[str, Assignment]) -> int:
    """Count the partitions that stay at their member."""
    return sum(
        len(numbers & assignments[member].get(topic, frozenset()))
        for member, one in spec.subscribers.items()
        for topic, numbers in one.assigned.items()
    )
