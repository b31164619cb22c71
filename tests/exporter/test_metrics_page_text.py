"""A page that many ask for is zipped once, in a thread, and never for a HEAD."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Awaitable, Callable
from unittest.mock import AsyncMock

import pytest

from mpbroker.exporter.app import App
from mpbroker.exporter.metrics_page import FRESH_FACTOR, PageText
from mpbroker.http.server import Message

TEXT = b"metric 1\n" * 1000


@pytest.fixture
def zippers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads in which something was zipped."""
    found: list[int] = []
    compress = gzip.compress

    def noted(data: bytes, level: int) -> bytes:
        found.append(threading.get_ident())
        return compress(data, level)

    monkeypatch.setattr(gzip, "compress", noted)
    return found


async def asked(fresh: Callable[[], Awaitable[PageText | None]], method: str, times: int) -> list[Message]:
    """Return the messages of as many answers at once, to a client that takes gzip."""
    told: list[Message] = []

    async def send(message: Message) -> None:
        told.append(message)

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    app, headers = App(fresh, list, list, list), [(b"accept-encoding", b"gzip")]
    scope = {"type": "http", "path": "/metrics", "method": method, "headers": headers}
    await asyncio.gather(*(app(dict(scope), receive, send) for _ in range(times)))
    return told


async def test_many_get_what_was_zipped_once_in_a_thread(zippers: list[int]) -> None:
    told = await asked(AsyncMock(return_value=PageText(TEXT, 0)), "GET", 10)
    bodies = [message["body"] for message in told if "body" in message]
    assert [gzip.decompress(body) for body in bodies] == [TEXT] * 10
    assert len(zippers) == 1
    assert zippers[0] != threading.get_ident()


async def test_nothing_is_zipped_for_a_head(zippers: list[int]) -> None:
    start, end = await asked(AsyncMock(return_value=PageText(TEXT, 0)), "HEAD", 1)
    assert (start["status"], end["body"], zippers) == (200, b"", [])
    headers = dict(start["headers"])
    assert headers[b"content-encoding"] == b"gzip"
    assert b"content-length" not in headers


async def test_who_goes_away_takes_no_zipped_page_from_others(zippers: list[int]) -> None:
    page = PageText(TEXT, 0)
    first, second = (asyncio.create_task(page.zipped()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert gzip.decompress(await second) == TEXT
    assert len(zippers) == 1


async def test_zipping_counts_as_making() -> None:
    page = PageText(TEXT, 2.0)
    before = page.fresh_until
    await page.zipped()
    assert page.fresh_until > before
    assert PageText(TEXT, 4.0).fresh_until >= before + 2.0 * FRESH_FACTOR
