"""Sends the responses of applications as ASGI messages."""

from __future__ import annotations

from collections.abc import Iterable

from mpbroker.http.server import Scope, Send

Headers = Iterable[tuple[str, str]]
NO_SNIFFING = ("x-content-type-options", "nosniff")
NOT_KEPT = ("cache-control", "no-store")


async def start(send: Send, status: int, kind: str, headers: Headers) -> None:
    """Send the head of a response: status, content type `kind`, and `headers`."""
    pairs = [(name.encode(), text.encode()) for name, text in (("content-type", kind), *headers)]
    await send({"type": "http.response.start", "status": status, "headers": pairs})


async def respond(
    scope: Scope, send: Send, status: int, body: bytes | None, kind: str, headers: Headers
) -> None:
    """Send a whole response; for HEAD, the head only. If `body` is None, send no content-length."""
    length = [] if body is None else [("content-length", str(len(body)))]
    await start(send, status, kind, [*headers, *length])
    sent = b"" if body is None or scope["method"] == "HEAD" else body
    await send({"type": "http.response.body", "body": sent})
