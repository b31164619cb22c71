"""Making pages: one for all who ask at a time, and none that is half true."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.exporter import metrics_page
from mpbroker.exporter.client_metrics import ClientMetrics
from mpbroker.exporter.metrics_page import MetricsPage
from mpbroker.ipc.process import ProcessContext
from mpbroker.ipc.standby_lag import StandbyLag, write_lag
from mpbroker.ipc.topology import EXPORTER, SharedMemory
from mpbroker.metrics import snapshot
from mpbroker.metrics.snapshot import Snapshot
from mpbroker.observe.offset_follower import OffsetFollower
from shm.clock import boot_ns
from shm.region import Region
from tests.exporter.test_metrics_page_text import asked
from tests.support.polling import PATIENCE_S


@pytest.fixture
def metrics(memory: SharedMemory, tmp_path: Path) -> Iterator[MetricsPage]:
    context = ProcessContext(EXPORTER, memory, BrokerConfig(log_dirs=(str(tmp_path),)))
    offsets = OffsetFollower(memory.table(), context.config.log_dirs)
    yield MetricsPage(context, offsets, ClientMetrics((), lambda: 0))
    offsets.close()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Region]:
    found: list[Region] = []
    take = snapshot.take

    def counted(public: Region) -> Snapshot:
        found.append(public)
        return take(public)

    monkeypatch.setattr(snapshot, "take", counted)
    return found


async def test_a_broker_that_has_counted_nothing_has_a_page(metrics: MetricsPage) -> None:
    page = await metrics.fresh()
    assert page is not None
    assert b"mpbroker_ready 0.0\n" in page.plain


async def test_a_standby_tells_how_far_it_is_behind(metrics: MetricsPage, tmp_path: Path) -> None:
    page = await metrics.fresh()
    assert page is not None
    assert b"mpbroker_standby" not in page.plain
    write_lag(tmp_path, StandbyLag(boot_ns() - 90 * 10**9, 3, 4096, 0))
    metrics._text = None
    page = await metrics.fresh()
    assert page is not None
    found = dict(line.split() for line in page.plain.splitlines() if line.startswith(b"mpbroker_standby"))
    assert float(found.pop(b"mpbroker_standby_behind_seconds")) >= 90
    assert found == {
        b"mpbroker_standby_behind_entries": b"3.0",
        b"mpbroker_standby_behind_bytes": b"4096.0",
        b"mpbroker_standby_cut_age_seconds": b"0.0",
    }


async def test_whoever_asks_at_once_gets_the_same_page(metrics: MetricsPage, looks: list[Region]) -> None:
    pages = await asyncio.gather(*(metrics.fresh() for _ in range(10)))
    assert len(looks) == 1
    assert len({id(page) for page in pages}) == 1


async def test_a_page_is_given_out_while_it_is_fresh(
    metrics: MetricsPage, looks: list[Region], monkeypatch: pytest.MonkeyPatch
) -> None:
    for factor, count in ((1e9, 1), (0.0, 3)):
        monkeypatch.setattr(metrics_page, "FRESH_FACTOR", factor)
        await metrics.fresh()
        await metrics.fresh()
        assert len(looks) == count


async def test_a_page_that_nobody_gets_any_more_is_not_kept(
    metrics: MetricsPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_page, "FRESH_FACTOR", 0.5)
    page = await metrics.fresh()
    assert page is not None
    page = weakref.ref(page)
    while page() is not None:
        await asyncio.sleep(0)


async def test_a_page_is_made_beside_the_event_loop(
    metrics: MetricsPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large one takes a second, and /healthz has to be answered meanwhile."""
    others_are_served = threading.Event()
    take = snapshot.take

    def waits(public: Region) -> Snapshot:
        assert others_are_served.wait(PATIENCE_S)
        return take(public)

    monkeypatch.setattr(snapshot, "take", waits)
    page = asyncio.create_task(metrics.fresh())
    await asyncio.sleep(0)
    others_are_served.set()
    assert await page is not None


async def test_who_goes_away_takes_no_page_from_others(metrics: MetricsPage, looks: list[Region]) -> None:
    first = asyncio.create_task(metrics.fresh())
    second = asyncio.create_task(metrics.fresh())
    await asyncio.sleep(0)
    first.cancel()
    assert await second is not None
    assert len(looks) == 1


async def test_a_page_that_cannot_be_made_is_a_503_and_one_line(
    metrics: MetricsPage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_public: Region) -> Snapshot:
        raise RuntimeError("no page")

    monkeypatch.setattr(snapshot, "take", fails)
    caplog.set_level(logging.ERROR)
    for _ in range(3):
        start, _ = await asked(metrics.fresh, "GET", 1)
        assert start["status"] == 503
    assert len(caplog.records) == 1


async def test_samples_are_made_right_after_a_page_whose_end_is_not_noted_yet(
    metrics: MetricsPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = itertools.count(1)

    def shield(task: asyncio.Future[Any]) -> asyncio.Future[Any]:
        assert next(waits) < 100, "it waits for what has ended, and lets nothing else run"
        return real_shield(task)

    real_shield = asyncio.shield
    monkeypatch.setattr(asyncio, "shield", shield)
    monkeypatch.setattr(metrics, "_make", AsyncMock(return_value=None))
    # Both run in one round of the event loop; what follows the end of the first comes in the next round.
    first, samples = metrics._begin(), asyncio.create_task(metrics.samples())
    assert await samples is None
    assert first.done()
    await asyncio.sleep(0)
    assert metrics._making is None
