"""The assignor `uniform` where members are subscribed to different topics."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from random import Random

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mpbroker.coordinator.groups.consumer.assignors.group_spec import Assignment, GroupSpec, Subscriber
from tests.support.assigned_groups import (
    TOPICS,
    is_homogeneous,
    loads,
    next_group,
    random_group,
    run,
    with_assigned,
)
from tests.support.forms import rounds

ONE, TWO = TOPICS[:2]


def better_moves(spec: GroupSpec, found: Mapping[str, Assignment]) -> list[tuple[bytes, str, str]]:
    """Return what could still move from one member to another one with two partitions less."""
    load = loads(found)
    return [
        (topic, giver, taker)
        for giver, taker in permutations(found, 2)
        for topic in found[giver]
        if topic in spec.subscribers[taker].topics and load[giver] - load[taker] > 1
    ]


@settings(max_examples=rounds(300))
@given(random=st.builds(Random, st.integers()))
def test_no_single_move_would_balance_better(random: Random) -> None:
    spec = random_group(random)
    spec = next_group(random, with_assigned(spec, run("uniform", spec)))
    assume(not is_homogeneous(spec))
    assert better_moves(spec, run("uniform", spec)) == []


def test_topics_with_many_partitions_for_few_members_are_assigned_first() -> None:
    subscribers = {
        "a": Subscriber(None, frozenset((ONE,)), {}),
        "b": Subscriber(None, frozenset((ONE, TWO)), {}),
    }
    assert run("uniform", GroupSpec(subscribers, {ONE: 6, TWO: 4})) == {
        "a": {ONE: {0, 1, 2, 3, 4}},
        "b": {ONE: {5}, TWO: {0, 1, 2, 3}},
    }


def test_a_member_keeps_what_nobody_else_may_have() -> None:
    held = {ONE: frozenset(range(9)), TWO: frozenset((0, 1))}
    subscribers = {
        "a": Subscriber(None, frozenset((ONE, TWO)), held),
        "b": Subscriber(None, frozenset((TWO,)), {ONE: frozenset((0,))}),
    }
    assert run("uniform", GroupSpec(subscribers, {ONE: 9, TWO: 2})) == {
        "a": {ONE: set(range(9))},
        "b": {TWO: {0, 1}},
    }


def test_a_member_that_gets_back_what_another_one_had_too_is_unchanged() -> None:
    held = {ONE: frozenset((3,)), TWO: frozenset((0,))}
    subscribers = {
        "a": Subscriber(None, frozenset((ONE,)), {ONE: frozenset(range(4))}),
        "b": Subscriber(None, frozenset((ONE, TWO)), held),
    }
    found = run("uniform", GroupSpec(subscribers, {ONE: 4, TWO: 1}))
    assert found["a"] == {ONE: {0, 1, 2}}
    assert found["b"] is held
