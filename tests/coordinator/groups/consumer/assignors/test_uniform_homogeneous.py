"""The assignor `uniform` where all members have the same subscription."""

from __future__ import annotations

from random import Random

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mpbroker.coordinator.groups.consumer.assignors.group_spec import GroupSpec, Subscriber
from tests.support.assigned_groups import (
    TOPICS,
    is_homogeneous,
    kept_partitions,
    loads,
    next_group,
    random_group,
    run,
    with_assigned,
)
from tests.support.forms import rounds

TOPIC, OTHER = TOPICS[:2]


def most_that_can_stay(spec: GroupSpec) -> int:
    """Count the partitions that stay at their member where loads are even and no more than needed move."""
    had = [
        sum(len(numbers) for topic, numbers in one.assigned.items() if topic in one.topics)
        for one in spec.subscribers.values()
    ]
    topics = next(iter(spec.subscribers.values())).topics
    quota, extras = divmod(sum(spec.partitions[topic] for topic in topics), len(had))
    return sum(min(each, quota) for each in had) + min(extras, sum(each > quota for each in had))


@settings(max_examples=rounds(300))
@given(random=st.builds(Random, st.integers()))
def test_loads_are_even_and_no_more_partitions_move_than_that_needs(random: Random) -> None:
    spec = random_group(random)
    spec = next_group(random, with_assigned(spec, run("uniform", spec)))
    assume(is_homogeneous(spec))
    found = run("uniform", spec)
    assert max(loads(found).values()) - min(loads(found).values()) <= 1
    assert kept_partitions(spec, found) == most_that_can_stay(spec)


def test_the_extra_partition_stays_where_it_is() -> None:
    """The first member could take one more, too."""
    topics = frozenset((TOPIC,))
    subscribers = {
        "a": Subscriber(None, topics, {TOPIC: frozenset((0,))}),
        "b": Subscriber(None, topics, {TOPIC: frozenset((1, 2))}),
        "c": Subscriber(None, topics, {}),
    }
    assert run("uniform", GroupSpec(subscribers, {TOPIC: 4})) == {
        "a": {TOPIC: {0}},
        "b": {TOPIC: {1, 2}},
        "c": {TOPIC: {3}},
    }


def test_a_member_below_its_quota_gets_new_partitions_then_those_of_others() -> None:
    topics = frozenset((TOPIC, OTHER))
    subscribers = {
        "a": Subscriber(None, topics, {TOPIC: frozenset((3, 1, 2, 0))}),
        "b": Subscriber(None, topics, {TOPICS[5]: frozenset((7,))}),
    }
    found = run("uniform", GroupSpec(subscribers, {TOPIC: 4, OTHER: 2, TOPICS[5]: 9}))
    assert found == {"a": {TOPIC: {0, 1, 2}}, "b": {TOPIC: {3}, OTHER: {0, 1}}}
