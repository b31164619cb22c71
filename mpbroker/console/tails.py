"""Live tails: new records of a topic, as lines of JSON while the client listens.

The number of tails is bounded, and so are the bytes that a tail reads and sends. If more records come than a
page can show, or than can be searched in a moment, the tail shows the last ones and counts the skipped ones.
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
# The records of one poll, which takes up to FETCH_WAIT_MS if no records come.
RECORDS_MAX: Final = 100
FETCH_WAIT_MS: Final = 500
# An empty line shows whether the client is still connected.
SILENCE_S: Final = 1.0


class Tail:
    """A live tail: its positions in a topic. Its methods block, so a worker calls them."""

    def __init__(self, client: Admin, wanted: RecordQuery) -> None:
        self._client = client
        self._wanted = wanted
        self._reader: Reader | None = None
        self._positions: dict[int, int] = {}
        self._lock = threading.Lock()

    def poll(self) -> dict[str, Any]:
        """Wait briefly for new records; return the wanted ones, and a count of skipped ones.

        The first call returns the positions instead.
        """
        with self._lock:
            return self._poll()

    def _poll(self) -> dict[str, Any]:
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
                    for after, shown in taken:
                        self._positions[number] = max(self._positions[number], after)
                        if shown is not None:
                            found.append(shown)
                        if len(found) >= RECORDS_MAX:
                            break
            if scan.is_over or len(found) >= RECORDS_MAX:
                # Visitors want to see the last ones.
                last = fetched.end(self._wanted.isolation) - RECORDS_MAX
                skipped += max(last - self._positions[number], 0)
                self._positions[number] = max(last, self._positions[number])
        found.sort(key=lambda one: int(one["timestamp"]))
        return {"records": found, "skipped": skipped, "registry": self._reader.add_json(found)}

    def close(self) -> None:
        """Close the connection, after the current poll."""
        with self._lock:
            self._client.cluster.close()


async def lines(tail: Tail, workers: Workers, ends: asyncio.Event) -> AsyncIterator[bytes]:
    """Yield lines of JSON until the caller stops, or `ends` is set."""
    sent_at = time.monotonic()
    ended = asyncio.ensure_future(ends.wait())
    try:
        while not ended.done():
            # A broker that stops may not answer a poll.
            poll = asyncio.ensure_future(workers.do(tail.poll))
            await asyncio.wait((poll, ended), return_when=asyncio.FIRST_COMPLETED)
            if not poll.done():
                poll.cancel()
                return
            found = poll.result()
            if found.get("records") or found.get("skipped"):
                yield msgspec.json.encode(found) + b"\n"
                sent_at = time.monotonic()
            elif time.monotonic() - sent_at > SILENCE_S:
                yield b"{}\n"
                sent_at = time.monotonic()
    finally:
        ended.cancel()
