"""Requests that are well-formed and mean harm: the short form of `make fuzz`'s, and what the tool sees."""

from __future__ import annotations

from pathlib import Path

from ops.bench.brokers import Mpbroker, running
from tests.network.hostile import LARGE_SHARE, SETTINGS, WITH_AUTHORIZER, Attack, attacked
from tests.support.forms import each, is_long, pick

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
        # The broker does not just close what it does not like.
        assert attack.outcomes["closed"] < 0.1 * REQUESTS
