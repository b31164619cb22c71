"""The page of metrics for Prometheus: one look at the counters, at /proc and at what groups have committed.

Whoever asks while a page is being made, or shortly after, gets that page: asking often must not take a
processor away from clients.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from mpbroker.exporter import kafka_metrics, mpbroker_metrics, partition_metrics
from mpbroker.exporter.committed_offsets import CommittedOffsets
from mpbroker.exporter.exposition import Page
from mpbroker.exporter.processes import ProcessLooker
from mpbroker.ipc import health, topology
from mpbroker.ipc.process import ProcessContext
from mpbroker.metrics import snapshot
from mpbroker.metrics.families import View
from mpbroker.metrics.snapshot import Snapshot

# A page that took a second to make is given out for three more.
FRESH_FACTOR: Final = 3.0
# After a failure nothing is tried, and logged, for so long.
FAILURE_PAUSE_S: Final = 1.0
# Rates and shares of time are of at least so long a time.
RATE_OVER_S: Final = 5.0
# A scrape waits so long for offsets that have not been read yet, and then goes without the rest. Work in
# between is done after that many seconds.
OFFSETS_PATIENCE_S: Final = 3.0
PIECE_S: Final = 0.02

log = logging.getLogger("mpbroker.exporter")


class MetricsPage:
    """The maker of pages for one broker."""

    def __init__(self, context: ProcessContext) -> None:
        self._context = context
        self._memory = context.memory
        self.committed = CommittedOffsets(context.memory.table(), context.config.log_dirs)
        self._looker = ProcessLooker()
        self._before: Snapshot | None = None
        self._between: Snapshot | None = None
        self._following = asyncio.Lock()
        self._making: asyncio.Task[Page | None] | None = None
        self._page: bytes | None = None
        self._fresh_until = 0.0
        self._took_s = 0.0

    async def fresh(self) -> bytes | None:
        """Return a page that is fresh enough; None if it cannot be made, and then the log says why."""
        if time.monotonic() < self._fresh_until:
            return self._page
        # A client that goes away ends nobody else's page.
        await asyncio.shield(self._making or self._begin())
        return self._page

    async def samples(self) -> Page | None:
        """Return a page of now with its samples, behind one that is being made; None if it cannot be made."""
        while self._making is not None:
            await asyncio.shield(self._making)
        return await asyncio.shield(self._begin())

    def close(self) -> None:
        self.committed.close()

    def _begin(self) -> asyncio.Task[Page | None]:
        self._making = asyncio.create_task(self._make())
        self._making.add_done_callback(self._made)
        return self._making

    def _made(self, _: object) -> None:
        self._making = None

    async def _make(self) -> Page | None:
        began = time.monotonic()
        waited_s = 0.0
        try:
            now = snapshot.take(self._memory.public)
            follows = time.monotonic()
            await self.follow_offsets(now)
            waited_s = time.monotonic() - follows
            page = self._written(now)
            self._page = page.text()
        except Exception:
            # A page with gaps would look like a broker without trouble.
            log.exception("the page of metrics cannot be made")
            self._page, self._fresh_until = None, time.monotonic() + FAILURE_PAUSE_S
            return None
        ended = time.monotonic()
        self._took_s = ended - began
        self._fresh_until = ended + (self._took_s - waited_s) * FRESH_FACTOR
        return page

    async def follow_offsets(self, now: Snapshot) -> None:
        """Read what groups have committed since the last time; others are served meanwhile."""
        async with self._following:
            await self._follow(now)

    async def _follow(self, now: Snapshot) -> None:
        started = piece = time.monotonic()
        for _ in self.committed.follow(now.logs):
            clock = time.monotonic()
            if clock > started + OFFSETS_PATIENCE_S:
                return
            if clock > piece + PIECE_S:
                await asyncio.sleep(0)
                self._context.counters.beat()
                piece = time.monotonic()

    def _written(self, now: Snapshot) -> Page:
        config, page = self._context.config, Page()
        pids, roles = self._memory.words("pids"), self._memory.words("roles")
        incarnations = {role: roles.load(role) for role in range(topology.PROCESSES)}
        alive = {role: pid for role in range(topology.PROCESSES) if (pid := pids.load(role))}
        mpbroker_metrics.write_broker(
            now, ready=not health.reasons_not_ready(config, self._memory), scrape_s=self._took_s, page=page
        )
        mpbroker_metrics.write_processes(now, incarnations, self._looker.look(alive), page)
        mpbroker_metrics.write_rings(self._memory, incarnations, page)
        mpbroker_metrics.write_work(now, page)
        mpbroker_metrics.write_recovery(
            health.recoveries_under_way(config, self._memory), config.log_dirs, page
        )
        self._context.counters.beat()
        kafka_metrics.write(View(now, self._earlier(now)), page)
        self._context.counters.beat()
        partition_metrics.write_topics(now.logs, config.node_id, page)
        left_out = partition_metrics.write_groups(self.committed.groups, now.logs, page)
        mpbroker_metrics.write_offsets(self.committed, left_out, page)
        return page

    def _earlier(self, now: Snapshot) -> Snapshot | None:
        """Return the latest look that is old enough for rates, None if there is none."""
        if self._between is None or now.now_ns - self._between.now_ns >= RATE_OVER_S * snapshot.NS:
            self._before, self._between = self._between, now
        return self._before
