"""What the assignors share: slices, subscribers by topic, the order of topics."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from mpbroker.coordinator.groups.consumer.assignors.group_spec import (
    STEPS_OF_A_SLICE,
    Pace,
    Subscriber,
    members_by_topics,
    sorted_topics,
    subscribers_by_topic,
)
from tests.support.assigned_groups import TOPICS

T = TypeVar("T")


def result(slices: Generator[None, None, T]) -> tuple[T, int]:
    """Return what a generator returns, and how often it paused."""
    pauses = 0
    while True:
        try:
            next(slices)
        except StopIteration as ended:
            return ended.value, pauses
        pauses += 1


def test_a_slice_is_over_when_its_steps_are_done() -> None:
    pace = Pace()
    assert [pace.is_over(STEPS_OF_A_SLICE // 2) for _ in range(4)] == [False, True, False, True]
    assert pace.is_over(5 * STEPS_OF_A_SLICE)
    assert not pace.is_over(1)


def test_topics_with_the_same_subscribers_share_a_list() -> None:
    a, b, c = TOPICS[:3]
    subscriptions = (frozenset((a, b, c)), frozenset((c,)), frozenset((a, b, c)), frozenset[bytes]())
    members = [Subscriber(None, topics, {}) for topics in subscriptions]
    groups, _ = result(members_by_topics(members, Pace()))
    assert groups == {subscriptions[0]: [0, 2], subscriptions[1]: [1], subscriptions[3]: [3]}
    found, _ = result(subscribers_by_topic(groups, dict.fromkeys((a, b, c), 1), Pace()))
    assert found == {a: [0, 2], b: [0, 2], c: [0, 1, 2]}
    assert found[a] is found[b]


def test_topics_are_sorted_by_rank_then_by_id_with_pauses() -> None:
    topics = [(number * 0x9E3779B97F4A7C15 % 2**128).to_bytes(16) for number in range(10_000)]
    found, pauses = result(sorted_topics(topics, lambda topic: (topic[-1] % 2,), Pace()))
    assert found == sorted(topics, key=lambda topic: (topic[-1] % 2, topic))
    assert pauses > 5
