from __future__ import annotations

import pytest

from mpbroker.coordinator.groups.consumer import regular_expressions
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
    a.beat()
    assert len(a.owned) == 4  # what it names is first
    settle(rig, a)
    assert len(a.owned) == 5


def test_a_pattern_that_cannot_be_resolved_keeps_its_topics(
    rig: GroupRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = Consumer(rig, "a", topics=None, pattern=".*")
    settle(rig, a)
    monkeypatch.setattr(regular_expressions, "MATCHES_MAX", 2)
    rig.create("tt", 2)
    rig.later(11_000)
    settle(rig, a)
    assert len(a.owned) == 5
    monkeypatch.undo()
    rig.create("other", 1)
    rig.later(11_000)
    settle(rig, a)
    assert len(a.owned) == 8


def test_a_pattern_that_cannot_be_resolved_is_not_tried_with_each_heartbeat(
    rig: GroupRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(regular_expressions, "MATCHES_MAX", 1)
    a = Consumer(rig, "a", topics=None, pattern=".*")
    b = Consumer(rig, "b", topics=None, pattern="u")
    settle(rig, a, b)
    rig.later(11_000)
    settle(rig, a, b)
    assert (a.owned, len(b.owned)) == (set(), 1)
    tried = len(caplog.messages)
    for _ in range(3):
        rig.later(11_000)
        settle(rig, a, b)
    assert len(caplog.messages) == tried
