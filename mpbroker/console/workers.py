"""A few threads that wait for the broker, so that the event loop need not.

Urgent work has a pool of its own, because a broker that does not answer can occupy all threads of a pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

THREADS: Final = 8
WAITING_MAX: Final = 16

_Value = TypeVar("_Value")


class Busy(Exception):
    """Raised when too many requests wait for the console's threads."""


class Workers:
    """A bounded pool of threads, which start with the first work."""

    def __init__(self, name: str, threads: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._under_way = 0
        self._is_closed = False

    async def do(self, work: Callable[[], _Value]) -> _Value:
        """Call `work` in a thread and return its value. Raises Busy, and the errors of `work`."""
        if self._under_way >= WAITING_MAX:
            raise Busy("the console is busy with other requests: try again in a moment")
        self._under_way += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)

        def done(ended: asyncio.Future[_Value]) -> None:
            self._under_way -= 1
            if not ended.cancelled():
                ended.exception()  # the caller may have been cancelled

        future.add_done_callback(done)
        return await asyncio.shield(future)

    def leave(self, work: Callable[[], object]) -> None:
        """Start `work` without waiting for it. A closed pool ignores the work, since the process ends."""
        if not self._is_closed:
            self._pool.submit(work)

    def close(self) -> None:
        self._is_closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
