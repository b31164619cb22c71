"""Responses as ASGI messages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mpbroker.http.responses import NOT_KEPT, respond
from mpbroker.http.server import Message


@pytest.mark.parametrize(
    ("method", "body", "sent", "length"),
    [
        ("GET", b"text", b"text", {b"content-length": b"4"}),
        ("GET", b"", b"", {b"content-length": b"0"}),
        ("HEAD", b"text", b"", {b"content-length": b"4"}),
        ("HEAD", None, b"", {}),
    ],
)
def test_a_head_has_the_length_and_no_body(
    method: str, body: bytes | None, sent: bytes, length: dict[bytes, bytes]
) -> None:
    messages: list[Any] = []

    async def send(message: Message) -> None:
        messages.append(message)

    asyncio.run(respond({"method": method}, send, 200, body, "text/plain", (NOT_KEPT,)))
    start, end = messages
    assert (start["status"], end["body"]) == (200, sent)
    headers = {b"content-type": b"text/plain", b"cache-control": b"no-store"}
    assert dict(start["headers"]) == headers | length
