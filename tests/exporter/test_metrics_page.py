"""Making pages: one for all who ask at a time, and none that is half true."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.exporter import metrics_page
from mpbroker.exporter.app import App
from mpbroker.exporter.metrics_page import MetricsPage, PageText
from mpbroker.http.server import Message
from mpbroker.ipc.process import ProcessContext
from mpbroker.ipc.topology import EXPORTER, SharedMemory
from mpbroker.metrics import snapshot
from mpbroker.metrics.snapshot import Snapshot
from mpbroker.observe.offset_follower import OffsetFollower
from shm.region import Region
from tests.support.polling import PATIENCE_S


@pytest.fixture
def metrics(memory: SharedMemory, tmp_path: Path) -> Iterator[MetricsPage]:
    context = ProcessContext(EXPORTER, memory, BrokerConfig(log_dirs=(str(tmp_path),)))
    offsets = OffsetFollower(memory.table(), context.config.log_dirs)
    yield MetricsPage(context, offsets)
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


def test_a_broker_that_has_counted_nothing_has_a_page(metrics: MetricsPage) -> None:
    page = asyncio.run(metrics.fresh())
    assert page is not None
    assert b"mpbroker_ready 0.0\n" in page.plain


def test_whoever_asks_at_once_gets_the_same_page(metrics: MetricsPage, looks: list[Region]) -> None:
    async def ask() -> list[PageText | None]:
        return await asyncio.gather(*(metrics.fresh() for _ in range(10)))

    pages = asyncio.run(ask())
    assert len(looks) == 1
    assert len({id(page) for page in pages}) == 1


def test_a_page_is_given_out_while_it_is_fresh(
    metrics: MetricsPage, looks: list[Region], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask_twice() -> None:
        await metrics.fresh()
        await metrics.fresh()

    monkeypatch.setattr(metrics_page, "FRESH_FACTOR", 1e9)
    asyncio.run(ask_twice())
    assert len(looks) == 1
    monkeypatch.setattr(metrics_page, "FRESH_FACTOR", 0.0)
    asyncio.run(ask_twice())
    assert len(looks) == 3


def test_a_page_that_nobody_gets_any_more_is_not_kept(
    metrics: MetricsPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_page, "FRESH_FACTOR", 0.5)

    async def ask() -> None:
        page = await metrics.fresh()
        assert page is not None
        page = weakref.ref(page)
        while page() is not None:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(ask(), PATIENCE_S))


def test_a_page_is_made_beside_the_event_loop(metrics: MetricsPage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large one takes a second, and /healthz has to be answered meanwhile."""
    others_are_served = threading.Event()
    take = snapshot.take

    def waits(public: Region) -> Snapshot:
        assert others_are_served.wait(PATIENCE_S)
        return take(public)

    monkeypatch.setattr(snapshot, "take", waits)

    async def ask() -> PageText | None:
        page = asyncio.create_task(metrics.fresh())
        await asyncio.sleep(0)
        others_are_served.set()
        return await page

    assert asyncio.run(ask()) is not None


def test_who_goes_away_takes_no_page_from_others(metrics: MetricsPage, looks: list[Region]) -> None:
    async def ask() -> PageText | None:
        first = asyncio.create_task(metrics.fresh())
        second = asyncio.create_task(metrics.fresh())
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert asyncio.run(ask()) is not None
    assert len(looks) == 1


def test_a_page_that_cannot_be_made_is_a_503_and_one_line(
    metrics: MetricsPage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_public: Region) -> Snapshot:
        raise RuntimeError("no page")

    monkeypatch.setattr(snapshot, "take", fails)
    caplog.set_level(logging.ERROR)
    told: list[Message] = []

    async def send(message: Message) -> None:
        told.append(message)

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    async def ask() -> None:
        app = App(metrics.fresh, list, list, list)
        for _ in range(3):
            await app({"type": "http", "path": "/metrics", "method": "GET", "headers": []}, receive, send)

    asyncio.run(ask())
    assert [message["status"] for message in told if "status" in message] == [503] * 3
    assert len(caplog.records) == 1
