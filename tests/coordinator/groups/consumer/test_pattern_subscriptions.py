from __future__ import annotations

import pytest

from mpbroker.coordinator.groups.consumer import changes, regular_expressions
from mpbroker.protocol.errors import ErrorCode
from mpbroker.records.iterate import iterate_batches
from tests.support.consumer_group_rig import Consumer, described, error_of, settle, settled
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
    a = settled(rig, "a", topics=None, pattern=".*")
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


def test_what_many_patterns_match_is_written_in_pieces(
    rig: GroupRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record with all of it could be too large. Each piece that changes topics begins an epoch."""
    monkeypatch.setattr(changes, "PIECE_BYTES", 1)
    a = settled(rig, "a", topics=(), pattern="t")
    b = Consumer(rig, "b", topics=(), pattern="u.*")
    rig.later(11_000)
    batches = len(list(iterate_batches(rig.log[3])))
    rig.ask(b.request(), 1)
    rig.append_round()
    rig.coordinator.background.slice_s = 0
    for _ in range(2):
        rig.coordinator.tick()
        rig.append_round()
    written = list(iterate_batches(rig.log[3]))[batches:]
    keys = [[(record.key or b"")[1] for record in batch.records()] for batch in written]
    assert keys[1:] == [[16], [16, 3]]
    settle(rig, a, b)
    assert (a.partitions, b.partitions) == ([0, 1, 2, 3], [0])
    before = described(rig)
    rig.reload()
    assert described(rig) == before
