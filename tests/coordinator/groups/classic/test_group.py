"""The topics of a group's subscriptions."""

from __future__ import annotations

import pytest

from mpbroker.coordinator.groups.classic.group import (
    SUBSCRIBED_MAX,
    SUBSCRIPTION_MAX,
    Group,
    Member,
)
from tests.support.group_rig import subscription


def group_of(metadata: bytes, members: int = 1) -> Group:
    group = Group("g")
    for number in range(members):
        group.add(Member(str(number), None, "c", "/", 1, 1, (("range", metadata),)), "consumer")
    group.next_generation(0)
    return group


@pytest.mark.parametrize(
    ("metadata", "is_read"),
    [
        (subscription("t"), True),
        # Later fields are not read.
        (subscription("t")[:-4], True),
        (subscription("t")[:-5], False),
        (subscription(*["t"] * SUBSCRIPTION_MAX), True),
        (subscription(*["t"] * (SUBSCRIPTION_MAX + 1)), False),
    ],
)
def test_a_group_whose_subscriptions_cannot_be_read_counts_as_subscribed_to_all(
    metadata: bytes, is_read: bool
) -> None:
    group = group_of(metadata)
    assert group.is_subscribed_to("t")
    assert group.is_subscribed_to("another") == (not is_read)


@pytest.mark.parametrize(
    "members", [SUBSCRIBED_MAX // SUBSCRIPTION_MAX, SUBSCRIBED_MAX // SUBSCRIPTION_MAX + 1]
)
def test_a_group_with_too_many_topics_counts_as_subscribed_to_all(members: int) -> None:
    group = group_of(subscription(*["t"] * SUBSCRIPTION_MAX), members)
    assert group.is_subscribed_to("t")
    assert group.is_subscribed_to("another") == (members * SUBSCRIPTION_MAX > SUBSCRIBED_MAX)
