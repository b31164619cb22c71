"""The bench of quotas: that it measures what it says, and when it calls two brokers alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.bench import quotas
from ops.bench.brokers import Mpbroker
from ops.bench.quotas import Measured
from tests.support.real_brokers import served


def test_it_measures_a_broker(tmp_path: Path) -> None:
    with served(Mpbroker(tmp_path)) as broker:
        written, read, busy = quotas.measure(broker, 1.0)
    for paced in (written, read):
        assert 0 < paced.requests <= quotas.PER_S + 2
        # Far from its quota: what may be used in ten seconds is not used in one.
        assert (paced.throttle_ms, paced.paused_s) == (0, 0.0)
        assert paced.moved_bytes >= paced.requests * quotas.PIECE_BYTES
    assert busy.requests > 0
    assert busy.moved_bytes == 0
    assert 0 <= busy.paused_s <= busy.seconds


@pytest.mark.parametrize(
    ("paused_s", "moved_bytes", "alike"), [(9.5, 1050, True), (8.9, 1000, False), (10.0, 1120, False)]
)
def test_a_tenth_apart_is_too_much(
    paused_s: float, moved_bytes: int, alike: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = Measured(100, 50, 10_000, 10.0, 1000, 10.0)
    ours = Measured(100, 50, 10_000, paused_s, moved_bytes, 10.0)
    assert quotas.report(quotas.loads()[0], ours, theirs) is alike
    assert f"{paused_s / 10:.3f}" in capsys.readouterr().out
