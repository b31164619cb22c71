"""Reads committed offsets in an event loop, in short pieces: on request, and for ten minutes afterwards."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from mpbroker.metrics.snapshot import LogSeen, Snapshot
from mpbroker.observe.committed_offsets import CommittedOffsets
from mpbroker.protocol.topic_names import GROUP_TOPIC
from shm.table import SlotTable

# The longest wait of a call for offsets that have not been read yet. The loop runs after each `PIECE_S`.
PATIENCE_S: Final = 3.0
PIECE_S: Final = 0.02
# Reading continues this long after a call, with a pause when all is read, else with a rest.
READ_ON_FOR_S: Final = 600.0
READ_ON_PAUSE_S: Final = 1.0
READ_ON_REST_S: Final = 0.005

log = logging.getLogger("mpbroker.exporter")


class OffsetFollower:
    """Follows a broker's committed offsets. Hold the lock `reading` while another thread uses `committed`."""

    def __init__(self, table: SlotTable, log_dirs: tuple[str, ...]) -> None:
        self.committed = CommittedOffsets(table, log_dirs)
        self.reading = asyncio.Lock()
        self._reading_on: asyncio.Task[None] | None = None
        self._logs: list[LogSeen] = []  # of the topic with committed offsets, as of the last call
        self._asked_at = 0.0

    async def follow(self, now: Snapshot) -> None:
        """Read the commits since the last call."""
        self._logs = [one for one in now.logs if one.topic == GROUP_TOPIC]
        self._asked_at = time.monotonic()
        async with self.reading:
            await self._follow(PATIENCE_S)
        if self._reading_on is None or self._reading_on.done():
            self._reading_on = asyncio.create_task(self._read_on())

    def close(self) -> None:
        if self._reading_on is not None:
            self._reading_on.cancel()
        self.committed.close()

    async def _follow(self, patience_s: float) -> bool:
        """Read for up to `patience_s`. Return whether all commits have been read."""
        started = piece = time.monotonic()
        for _ in self.committed.follow(self._logs):
            clock = time.monotonic()
            if clock > started + patience_s:
                return False
            if clock > piece + PIECE_S:
                await asyncio.sleep(0)
                piece = time.monotonic()
        return True

    async def _read_on(self) -> None:
        """Continue reading for a while after the last `follow`, which may have left commits unread."""
        try:
            while time.monotonic() < self._asked_at + READ_ON_FOR_S:
                async with self.reading:
                    is_over = await self._follow(PIECE_S)
                await asyncio.sleep(READ_ON_PAUSE_S if is_over else READ_ON_REST_S)
        except Exception:
            # The next call meets the same error, and starts this task again.
            log.exception("reading committed offsets stopped until the next request")
