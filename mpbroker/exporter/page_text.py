"""A page of metrics as it is sent: plain, and zipped once for all who ask for that."""

from __future__ import annotations

import asyncio
import gzip
import time
from typing import Final

# What took a second to make and to zip is given out for three more.
FRESH_FACTOR: Final = 3.0
_FAST: Final = 1  # zlib's level: half the time of its usual one, for a tenth more bytes


class PageText:
    """The text of a page that took `cost_s` to make. Clients hold it as long as they take to read it."""

    def __init__(self, plain: bytes, cost_s: float) -> None:
        self.plain: Final = plain
        self._made = time.monotonic()
        self._cost_s = cost_s
        self._zipping: asyncio.Task[bytes] | None = None

    @property
    def fresh_until(self) -> float:
        """Return until when (of time.monotonic) it is given out."""
        return self._made + self._cost_s * FRESH_FACTOR

    async def zipped(self) -> bytes:
        """Return the page as gzip. It is zipped in a thread, since a large one takes long."""
        if self._zipping is None:
            self._zipping = asyncio.create_task(self._zip())
        # A client that disconnects must not cancel it for others.
        return await asyncio.shield(self._zipping)

    async def _zip(self) -> bytes:
        began = time.monotonic()
        zipped = await asyncio.to_thread(gzip.compress, self.plain, _FAST)
        self._cost_s += time.monotonic() - began
        return zipped
