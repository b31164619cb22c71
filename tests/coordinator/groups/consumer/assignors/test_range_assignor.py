"""The assignor `range` by example. (`test_assignors_as_kafka.py` compares it with Kafka's.)"""

from __future__ import annotations

from mpbroker.coordinator.groups.consumer.assignors.group_spec import GroupSpec, Subscriber
from tests.support.assigned_groups import TOPICS, run

ONE, OTHER = TOPICS[:2]


def subscriber(*topics: bytes, instance_id: str | None = None) -> Subscriber:
    return Subscriber(instance_id, frozenset(topics), {})


def test_static_members_come_first_and_the_first_members_get_one_more() -> None:
    subscribers = {
        "a": subscriber(ONE),
        "c": subscriber(ONE, instance_id="y"),
        "b": subscriber(ONE, instance_id="z"),
    }
    assert run("range", GroupSpec(subscribers, {ONE: 8})) == {
        "c": {ONE: {0, 1, 2}},
        "b": {ONE: {3, 4, 5}},
        "a": {ONE: {6, 7}},
    }


def test_topics_with_as_many_partitions_are_assigned_alike() -> None:
    subscribers = {name: subscriber(ONE, OTHER) for name in "abc"}
    found = run("range", GroupSpec(subscribers, {ONE: 5, OTHER: 5}))
    assert all(held[ONE] == held[OTHER] for held in found.values())


def test_members_share_the_topics_to_which_they_subscribe() -> None:
    subscribers = {"a": subscriber(ONE), "b": subscriber(ONE, OTHER), "c": subscriber(OTHER)}
    assert run("range", GroupSpec(subscribers, {ONE: 1, OTHER: 3})) == {
        "a": {ONE: {0}},
        "b": {OTHER: {0, 1}},
        "c": {OTHER: {2}},
    }
