"""Live tails: what comes to a topic from now on, as lines of JSON while the client listens.

Their number is bounded, and so is what one tail reads and sends: of more records than a page can show, or
than can be looked through in a moment, the rest is counted, and reading goes on with the last ones.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any, Final

import msgspec

from mpbroker.client.admin import Admin
from mpbroker.console.records import Reader, RecordQuery, Scan, Shown
from mpbroker.console.workers import Workers

TAILS_MAX: Final = 4
# Of one look, which takes up to FETCH_WAIT_MS while nothing comes.
RECORDS_MAX: Final = 100
FETCH_WAIT_MS: Final = 500
# A line that says nothing tells whether the client is still there.
SILENCE_S: Final = 1.0


class Tail:
    """Positions in a topic. Its methods block: a worker calls them."""

    def __init__(self, client: Admin, wanted: RecordQuery) -> None:
        self._client = client
        self._wanted = wanted
        self._reader: Reader | None = None
        self._positions: dict[int, int] = {}
        self._lock = threading.Lock()

    def look(self) -> dict[str, Any]:
        """Wait for records for a moment. Return those that are wanted, and how many were passed over."""
        with self._lock:
            return self._look()

    def _look(self) -> dict[str, Any]:
        if self._reader is None:
            self._reader = Reader(self._client, self._wanted, FETCH_WAIT_MS)
            self._positions = {number: one.end for number, one in self._reader.ends().items()}
            return {"positions": {str(number): at for number, at in self._positions.items()}}
        found: list[Shown] = []
        skipped = 0
        scan = Scan()
        for fetched in self._reader.consumer.fetch(self._positions):
            number = fetched.partition
            if not scan.is_over and len(found) < RECORDS_MAX:
                with closing(self._reader.taken(fetched, self._positions[number], scan)) as taken:
                    for behind, shown in taken:
                        self._positions[number] = max(self._positions[number], behind)
                        if shown is not None:
                            found.append(shown)
                        if len(found) >= RECORDS_MAX:
                            break
            if scan.is_over or len(found) >= RECORDS_MAX:
                # The last ones are what somebody who watches wants to see.
                last = fetched.end(self._wanted.isolation) - RECORDS_MAX
                skipped += max(last - self._positions[number], 0)
                self._positions[number] = max(last, self._positions[number])
        found.sort(key=lambda one: int(one["timestamp"]))
        return {"records": found, "skipped": skipped}

    def close(self) -> None:
        """Close the connection, as soon as nobody looks."""
        with self._lock:
            self._client.cluster.close()


async def lines(tail: Tail, workers: Workers, ends: asyncio.Event) -> AsyncIterator[bytes]:
    """Yield lines of JSON until somebody stops it, or `ends` is set."""
    said_at = time.monotonic()
    ended = asyncio.ensure_future(ends.wait())
    try:
        while not ended.done():
            # A broker that stops may keep a look waiting.
            look = asyncio.ensure_future(workers.do(tail.look))
            await asyncio.wait((look, ended), return_when=asyncio.FIRST_COMPLETED)
            if not look.done():
                look.cancel()
                return
            found = look.result()
            if found.get("records") or found.get("skipped"):
                yield msgspec.json.encode(found) + b"\n"
                said_at = time.monotonic()
            elif time.monotonic() - said_at > SILENCE_S:
                yield b"{}\n"
                said_at = time.monotonic()
    finally:
        ended.cancel()
