"""The web console as the exporter has it: nothing of it is loaded until somebody asks for the page.

The console stands above the exporter in the rooms, so the exporter is told the name of its module. The module
has `make(context, offsets)`, which returns a `Console`.
"""

from __future__ import annotations

import importlib
from typing import Protocol

from mpbroker.exporter.http_server import Receive, Scope, Send
from mpbroker.ipc.process import ProcessContext
from mpbroker.observe.offset_follower import OffsetFollower


class Console(Protocol):
    """An ASGI application that can be closed: its streams end then."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def close(self) -> None: ...


class LazyConsole:
    """An ASGI application that loads the console with the first request for it."""

    def __init__(self, module: str, context: ProcessContext, offsets: OffsetFollower) -> None:
        self._module = module
        self._context = context
        self._offsets = offsets
        self._console: Console | None = None

    @property
    def is_on(self) -> bool:
        """Return whether there is a console, and the settings of now want it."""
        return bool(self._module) and self._context.config.http_console_enable

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._console is None:
            self._console = importlib.import_module(self._module).make(self._context, self._offsets)
        await self._console(scope, receive, send)

    def close(self) -> None:
        if self._console is not None:
            self._console.close()
