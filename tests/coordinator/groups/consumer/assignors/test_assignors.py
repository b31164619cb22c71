"""What holds for every assignor, whatever the group."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpbroker.coordinator.groups.consumer.assignors.assignors import ASSIGNORS
from mpbroker.coordinator.groups.consumer.assignors.group_spec import (
    Assignment,
    GroupSpec,
    PartitionAssignorError,
    Subscriber,
)
from tests.support.assigned_groups import TOPICS, next_group, random_group, run, with_assigned
from tests.support.forms import rounds

BOTH = pytest.mark.parametrize("assignor", ASSIGNORS)
CHANGES = 4


def assert_assigned(spec: GroupSpec, found: dict[str, Assignment]) -> None:
    """Each partition that has a subscriber has one owner, which is one."""
    assert found.keys() == spec.subscribers.keys()
    assigned = [
        (topic, number)
        for member, held in found.items()
        for topic, numbers in held.items()
        for number in numbers
        if topic in spec.subscribers[member].topics
    ]
    subscribed = frozenset[bytes]().union(*(one.topics for one in spec.subscribers.values()))
    wanted = [(topic, number) for topic in subscribed for number in range(spec.partitions[topic])]
    assert sorted(assigned) == sorted(wanted)
    assert sum(len(numbers) for held in found.values() for numbers in held.values()) == len(wanted)
    assert all(numbers for held in found.values() for numbers in held.values())


@BOTH
@settings(max_examples=rounds(200))
@given(random=st.builds(Random, st.integers()))
def test_each_partition_has_one_owner_and_a_second_call_changes_nothing(
    assignor: str, random: Random
) -> None:
    spec = random_group(random)
    for _ in range(CHANGES):
        found = run(assignor, spec)
        assert_assigned(spec, found)
        spec = with_assigned(spec, found)
        again = run(assignor, spec)
        assert all(again[member] is found[member] for member in found)
        spec = next_group(random, spec)


@BOTH
@settings(max_examples=rounds(200))
@given(random=st.builds(Random, st.integers()))
def test_targets_that_overlap_or_name_too_much_are_put_right(assignor: str, random: Random) -> None:
    """A crash between the records of a target leaves some members with the former one."""
    spec = random_group(random)
    targets = {}
    for member in spec.subscribers:
        topics = random.sample(sorted(spec.partitions), k=random.randint(0, min(3, len(spec.partitions))))
        targets[member] = {topic: _some_partitions(random, spec.partitions[topic]) for topic in topics}
    found = run(assignor, with_assigned(spec, targets))
    assert_assigned(spec, found)
    assert all(found[member] is target for member, target in targets.items() if found[member] == target)


def _some_partitions(random: Random, count: int) -> frozenset[int]:
    """Return partitions of a topic, seldom also one that it does not have."""
    numbers = range(count + (random.random() < 0.1))
    return frozenset(random.sample(numbers, k=random.randint(1, count)))


@BOTH
def test_a_group_without_members_or_topics_has_nothing_assigned(assignor: str) -> None:
    assert run(assignor, GroupSpec({}, {TOPICS[0]: 3})) == {}
    nothing: Assignment = {}
    spec = GroupSpec({"member": Subscriber(None, frozenset(), nothing)}, {TOPICS[0]: 3})
    assert run(assignor, spec)["member"] is nothing


@BOTH
@pytest.mark.parametrize("others", [TOPICS[:2], TOPICS[:1]])
def test_an_unknown_topic_is_an_error(assignor: str, others: list[bytes]) -> None:
    subscribers = {
        "a": Subscriber(None, frozenset(TOPICS[:2]), {}),
        "b": Subscriber(None, frozenset(others), {}),
    }
    with pytest.raises(PartitionAssignorError, match=r"topic id AAAAAAAAAAAAAAAAAAAAAQ: .* unknown"):
        run(assignor, GroupSpec(subscribers, {TOPICS[0]: 1}))


@BOTH
@pytest.mark.parametrize("subscriptions", [1, 2])
def test_a_large_group_is_assigned_in_slices(assignor: str, subscriptions: int) -> None:
    """Their number grows with members, topics and partitions."""
    partitions = {number.to_bytes(16): 4 for number in range(1_000)}
    topics = [frozenset(list(partitions)[:-place]) for place in range(1, subscriptions + 1)]
    members = {f"{i}": Subscriber(None, topics[i % subscriptions], {}) for i in range(500)}
    small = {member: members[member] for member in list(members)[:10]}
    slices = [sum(1 for _ in ASSIGNORS[assignor](GroupSpec(each, partitions))) for each in (small, members)]
    assert 2 <= slices[0] <= slices[1] <= 500
