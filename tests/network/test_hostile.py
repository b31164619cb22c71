"""Requests that are well-formed and mean harm: the short form of `make fuzz`'s, and what the tool sees."""

from __future__ import annotations

from pathlib import Path

from ops.bench.brokers import Mpbroker, running
from tests.network.hostile import LARGE_SHARE, SETTINGS, WITH_AUTHORIZER, Attack, attacked, said
from tests.support.forms import each, is_long, pick
from tests.support.hostile_requests import Mood, arrays, hostile, message_of

REQUESTS = pick("hostile requests", short=400, long=50_000)
SEED = 7
# Measured in CPU time; the short form runs beside other tests.
PAUSE_MS = 50


@each("settings", short=[WITH_AUTHORIZER], long=[(), WITH_AUTHORIZER])
def test_hostile_requests_harm_nobody(tmp_path: Path, settings: tuple[str, ...]) -> None:
    """Check answers, deaths, memory, the log, and a client that behaves; in the long form pauses, too."""
    with running(Mpbroker(tmp_path / "broker", flags=(*SETTINGS, *settings))) as broker:
        assert isinstance(broker, Mpbroker)
        attack = Attack(broker, SEED, 0, REQUESTS, LARGE_SHARE if is_long() else LARGE_SHARE / 5)
        assert attacked(attack, PAUSE_MS if is_long() else None) == []
        assert sum(attack.outcomes.values()) == REQUESTS
        # Most are answered: the broker does not just close what it does not like.
        assert attack.outcomes["answered"] > 0.9 * REQUESTS


VERSIONS = [(1, 12), (3, 9), (19, 7), (22, 4)]


def test_a_number_is_always_the_same_request() -> None:
    some = [hostile(1, number, VERSIONS, bytes(16)) for number in range(200)]
    assert some == [hostile(1, number, VERSIONS, bytes(16)) for number in range(200)]
    assert some != [hostile(2, number, VERSIONS, bytes(16)) for number in range(200)]
    assert {one.mood for one in some} == set(Mood)
    assert {(one.key, one.version) for one in some} == set(VERSIONS)


def test_lists_within_lists_are_found() -> None:
    assert [one.name for one in arrays(message_of(3), 9)] == ["topics"]
    names = [one.name for one in arrays(message_of(19), 7)]
    assert names == ["topics", "assignments", "broker_ids", "configs"]


def test_what_the_log_should_not_have_is_found() -> None:
    fine = "2026-01-01 00:00:00,000 WARNING [handler 0] a client is too greedy\n"
    bad = "2026-01-01 00:00:00,000 ERROR [handler 0] failed"
    assert said(fine) == []
    assert said(f"{fine}{bad}\n{fine}") == [bad]
    assert len(said("x" * 30_000)) == 1
    assert said("Traceback (most recent call last):") == ["Traceback (most recent call last):"]
