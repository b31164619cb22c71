"""The topics of a group's subscriptions."""

from __future__ import annotations

import pytest

from mpbroker.coordinator.groups.classic.group import (
    SUBSCRIBED_MAX,
    SUBSCRIPTION_MAX,
    Group,
    Member,
    topics_in,
)
from mpbroker.protocol.wire import MalformedMessage
from tests.support.group_rig import subscription


def test_the_topics_of_a_subscription() -> None:
    assert topics_in(subscription("a", "topic")) == ["a", "topic"]
    assert topics_in(subscription()) == []
    for cut in range(len(subscription("ab")) - 4):
        with pytest.raises(MalformedMessage):
            topics_in(subscription("ab")[:cut])


def test_a_subscription_has_a_bound() -> None:
    assert len(topics_in(subscription(*["t"] * SUBSCRIPTION_MAX))) == SUBSCRIPTION_MAX
    with pytest.raises(MalformedMessage, match="more than"):
        topics_in(subscription(*["t"] * (SUBSCRIPTION_MAX + 1)))


@pytest.mark.parametrize(
    "members", [SUBSCRIBED_MAX // SUBSCRIPTION_MAX, SUBSCRIBED_MAX // SUBSCRIPTION_MAX + 1]
)
def test_a_group_with_too_many_topics_counts_as_subscribed_to_all(members: int) -> None:
    group = Group("g")
    metadata = subscription(*["t"] * SUBSCRIPTION_MAX)
    for number in range(members):
        group.add(Member(str(number), None, "c", "/", 1, 1, (("range", metadata),)), "consumer")
    group.next_generation(0)
    assert group.is_subscribed_to("t")
    assert group.is_subscribed_to("another") == (members * SUBSCRIPTION_MAX > SUBSCRIBED_MAX)
