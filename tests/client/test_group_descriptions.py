"""Groups and members as the two APIs describe them."""

from __future__ import annotations

import pytest

from mpbroker.client.group_descriptions import (
    Member,
    classic_group,
    consumer_group,
    places_text,
    state_of,
    subscription_text,
)
from mpbroker.protocol import messages as m
from mpbroker.protocol.consumer_protocol import encode_assignment

A, B, C = ("t", 0), ("t", 1), ("u", 0)


@pytest.mark.parametrize(
    ("epoch", "assigned", "target", "state"),
    [
        (5, [A, B], [B, A], "stable"),
        (5, [], [], "stable"),
        (5, [A], [A, B], "waiting"),
        (4, [A, C], [A, B], "revoking"),
        (4, [A], [A, B], "behind"),
        (4, [A], [A], "behind"),
        (-2, [A, C], [A], "away"),
    ],
)
def test_a_member_is_on_its_way_to_its_target(
    epoch: int, assigned: list[tuple[str, int]], target: list[tuple[str, int]], state: str
) -> None:
    assert state_of(epoch, 5, assigned, target) == state


def test_a_classic_group_has_readable_assignments_of_consumers_alone() -> None:
    of = m.DescribeGroupsResponse
    assigned = encode_assignment(0, {"t": [1, 0]})
    one = of.DescribedGroupMember("m", "i", "c", "/host", b"", assigned)
    found = [
        classic_group(of.DescribedGroup(0, None, "g", "Stable", kind, "range", [one]))
        for kind in ("consumer", "connect")
    ]
    assert found[0].members == [Member("m", "i", "c", "host", [A, B])]
    assert found[1].members == [Member("m", "i", "c", "host", [])]
    assert (found[0].type, found[0].epoch) == ("classic", None)


@pytest.mark.parametrize(("kind", "is_upgraded"), [(-1, None), (0, False), (1, True)])
def test_a_consumer_group_has_epochs_and_targets(kind: int, is_upgraded: bool | None) -> None:
    of = m.ConsumerGroupDescribeResponse

    def assignment(**topics: list[int]) -> m.ConsumerGroupDescribeResponse.Assignment:
        parts = [of.TopicPartitions(name.encode() * 16, name, found) for name, found in topics.items()]
        return of.Assignment(parts)

    one = of.Member(
        "m", None, None, 6, "c", "/host", ["u", "t"], "", assignment(), assignment(u=[0], t=[1, 0])
    )
    one.member_type = kind
    found = consumer_group(of.DescribedGroup(0, None, "g", "Reconciling", 7, 7, "uniform", [one]))
    assert (found.type, found.state, found.assignor, found.epoch) == ("consumer", "Reconciling", "uniform", 7)
    expected = Member("m", None, "c", "host", [], 6, "behind", [A, B, C], ["t", "u"], None, is_upgraded)
    assert found.members == [expected]


def test_texts_of_partitions_and_subscriptions() -> None:
    assert places_text([A, B, C]) == "t(0,1), u(0)"
    assert places_text([]) is None
    assert subscription_text(["t", "u"], "a.*") == "t, u, pattern a.*"
    assert subscription_text([], None) is None
