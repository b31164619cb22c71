"""Tests what a look at the broker says of its topics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from mpbroker.console import watch as watch_module
from mpbroker.console.watch import HISTORY_MAX, Watch, is_internal, knows_topics
from mpbroker.console.workers import Busy
from mpbroker.metrics.snapshot import Snapshot
from mpbroker.observe.samples import BrokerSeen, Health, Sample


@pytest.mark.parametrize(
    ("health", "knows"),
    [(Health.RUNNING, True), (Health.SILENT, True), (Health.RECOVERING, False), (Health.UNKNOWN, False)],
)
def test_a_topic_is_missing_only_if_all_have_been_seen(health: Health, knows: bool) -> None:
    assert knows_topics(Sample(0, BrokerSeen(health), counts=Mock(spec=Snapshot))) is knows
    assert not knows_topics(Sample(0, BrokerSeen(health)))
    assert not knows_topics(None)


def test_the_brokers_own_topics_are_internal() -> None:
    assert is_internal("__consumer_offsets")
    assert is_internal("__transaction_state")
    assert is_internal("__mpbroker_sinks"), "sinks of Spark have made it"
    assert not is_internal("__mine")


class LateWorkers:
    """Workers that are busy at first."""

    def __init__(self) -> None:
        self.asked = 0

    async def do(self, work: Callable[[], Any]) -> Any:
        self.asked += 1
        if self.asked < 3:
            raise Busy("busy")
        return work()

    def close(self) -> None:
        pass


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    context = Mock()
    context.memory.public_path = tmp_path / "public"
    return Watch(context, Mock(follow=AsyncMock()))


async def test_a_look_that_finds_no_worker_is_skipped(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = LateWorkers()
    monkeypatch.setattr(watch, "_samplers", workers)
    monkeypatch.setattr(watch_module, "EVERY_S", 0.0)
    await watch.fresh()
    assert watch.model.sample is not None
    watch.close()
    assert workers.asked == 3


def test_a_clock_that_is_set_back_makes_no_history_longer(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(10_000, 0, -1))
    monkeypatch.setattr(watch_module.time, "time", lambda: float(next(clock)))
    monkeypatch.setattr(watch, "_lags_of", lambda _: {"g": 1})
    for _ in range(2 * HISTORY_MAX):
        watch._add(Sample(0, BrokerSeen(Health.UNKNOWN)))
        watch._follow_lags(Mock(spec=Snapshot))
    assert len(watch._samples) == len(watch._lags["g"]) == HISTORY_MAX


def test_a_clock_that_is_set_forward_ends_the_history(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 100_000, 10_000))
    monkeypatch.setattr(watch_module.time, "time", lambda: float(next(clock)))
    for _ in range(3):
        watch._add(Sample(0, BrokerSeen(Health.UNKNOWN)))
    assert len(watch._samples) == 1
