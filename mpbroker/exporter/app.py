"""The exporter's ASGI application: serves `/metrics`, `/readyz`, `/healthz`, and the web console elsewhere.

If the console is disabled, `/` describes the three paths.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final

import msgspec

from mpbroker.exporter.exposition import CONTENT_TYPE
from mpbroker.exporter.metrics_page import PageText
from mpbroker.http.guard import refused_host, refused_origin
from mpbroker.http.responses import NO_SNIFFING, NOT_KEPT, respond
from mpbroker.http.server import Application, Receive, Scope, Send

TEXT: Final = "text/plain; charset=utf-8"
# No page of metrics, as while the broker stops; or the broker is not ready, or not healthy.
UNAVAILABLE: Final = 503
_INDEX: Final = b"""\
mpbroker
/metrics   metrics in Prometheus' text format
/readyz    200 if recovery is over, each listener answers and each disk takes writes, else 503 and why
/healthz   200 while every process moves, else 503 and which do not
The console is off: http.console.enable=false.
"""


class App:
    """An ASGI application.

    `page` returns the page of metrics, or None if it cannot be made. `problems` returns the reasons why the
    broker is not ready, `silent` the unresponsive processes, and `names` the names of the broker that the
    header Host may contain. `console` returns the application for all other paths, or None if disabled.
    """

    def __init__(
        self,
        page: Callable[[], Awaitable[PageText | None]],
        problems: Callable[[], list[str]],
        silent: Callable[[], list[str]],
        names: Callable[[], Collection[str]],
        console: Callable[[], Application | None] = lambda: None,
    ) -> None:
        self._page = page
        self._problems = problems
        self._silent = silent
        self._console = console
        self._names = names
        self._turns = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        path = scope["path"]
        is_ours = path in ("/metrics", "/readyz", "/healthz")
        # Other sites may link to the console's page, which guards its requests by itself.
        refusal = refused_host(scope, self._names()) or (refused_origin(scope) if is_ours else None)
        if refusal is not None:
            await _answer(scope, send, refusal.status, f"{refusal.why}\n".encode())
        elif not is_ours and (console := self._console()) is not None:
            await console(scope, receive, send)
        elif not is_ours and path != "/":
            await _answer(scope, send, 404, b"there is /metrics, /readyz and /healthz\n")
        elif scope["method"] not in ("GET", "HEAD"):
            await _answer(scope, send, 405, b"only GET and HEAD\n", ("allow", "GET, HEAD"))
        elif path == "/metrics":
            await self._metrics(scope, send)
        elif path == "/readyz":
            await _state(scope, send, "ready", self._problems())
        elif path == "/healthz":
            await _state(scope, send, "healthy", self._silent())
        else:
            await _answer(scope, send, 200, _INDEX)

    async def _metrics(self, scope: Scope, send: Send) -> None:
        # A page is made into an answer in a millisecond: one after the other, with probes in between.
        async with self._turns:
            await asyncio.sleep(0)
        page = await self._page()
        if page is None:
            await _answer(scope, send, UNAVAILABLE, b"no metrics now; the broker's log has the reason\n")
            return
        varies = ("vary", "accept-encoding")
        if not _accepts_gzip(scope):
            await _answer(scope, send, 200, page.plain, varies, kind=CONTENT_TYPE)
            return
        # Nothing is zipped only for its length (RFC 9110, 9.3.2).
        zipped = None if scope["method"] == "HEAD" else await page.zipped()
        await _answer(scope, send, 200, zipped, varies, ("content-encoding", "gzip"), kind=CONTENT_TYPE)


async def _state(scope: Scope, send: Send, name: str, problems: list[str]) -> None:
    """Answer 200 if there are no problems, else 503, as text, or as JSON if the client accepts JSON."""
    status = UNAVAILABLE if problems else 200
    if any(key == b"accept" and b"application/json" in value for key, value in scope["headers"]):
        body = msgspec.json.encode({name: not problems, "problems": problems}) + b"\n"
        await _answer(scope, send, status, body, kind="application/json")
    else:
        lines = problems or ["ok"]
        await _answer(scope, send, status, "".join(f"{line}\n" for line in lines).encode())


def _accepts_gzip(scope: Scope) -> bool:
    found = b",".join(value for key, value in scope["headers"] if key == b"accept-encoding").lower()
    codings = [one.replace(b" ", b"") for one in found.split(b",")]
    return any(one == b"gzip" or (one.startswith(b"gzip;") and not one.endswith(b"q=0")) for one in codings)


async def _answer(
    scope: Scope, send: Send, status: int, body: bytes | None, *headers: tuple[str, str], kind: str = TEXT
) -> None:
    await respond(scope, send, status, body, kind, (NOT_KEPT, NO_SNIFFING, *headers))
