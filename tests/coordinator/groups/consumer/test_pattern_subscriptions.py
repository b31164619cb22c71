from __future__ import annotations

from mpbroker.protocol.errors import ErrorCode
from tests.support.consumer_group_rig import Consumer, error_of, settle
from tests.support.group_rig import GroupRig


def test_a_pattern_gets_the_topics_it_matches_now_and_later(rig: GroupRig) -> None:
    a = Consumer(rig, "a", topics=None, pattern="t.*")
    a.beat()
    assert len(a.owned) == 4
    rig.create("tt", 2)
    rig.create("other", 2)
    rig.later(11_000)
    settle(rig, a)
    assert len(a.owned) == 6


def test_topics_that_the_client_may_not_describe_are_left_out(rig: GroupRig) -> None:
    rig.denied = {"t"}
    a = Consumer(rig, "a", topics=None, pattern=".*")
    a.beat()
    assert len(a.owned) == 1


def test_an_invalid_pattern_changes_nothing(rig: GroupRig) -> None:
    a = Consumer(rig, "a", topics=None, pattern="(")
    assert error_of(a.beat()) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert rig.coordinator.manager.find("g") is None


def test_names_and_a_pattern_count_together(rig: GroupRig) -> None:
    a = Consumer(rig, "a", topics=("t",), pattern="u")
    settle(rig, a)
    assert len(a.owned) == 5
