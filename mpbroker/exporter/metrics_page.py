"""Makes the page of metrics for Prometheus: shared counters, /proc, committed offsets, clients' metrics.

Requests that arrive while a page is being made, or shortly after, get the same page, so that many requests
take no CPU time from Kafka clients. A large page takes a second, so a thread makes it and the event loop
serves other requests meanwhile.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import time
from pathlib import Path
from typing import Final

from mpbroker.exporter import kafka_metrics, mpbroker_metrics, partition_metrics
from mpbroker.exporter.client_metrics import ClientMetrics
from mpbroker.exporter.exposition import Page
from mpbroker.ipc import health, topology
from mpbroker.ipc.process import ProcessContext
from mpbroker.ipc.standby_lag import read_lag
from mpbroker.metrics import snapshot
from mpbroker.metrics.families import View
from mpbroker.metrics.processes import ProcessLooker
from mpbroker.metrics.snapshot import Snapshot
from mpbroker.observe.offset_follower import OffsetFollower
from shm.clock import wall_ms

# The pause after a failure, without another try or log line.
FAILURE_PAUSE_S: Final = 1.0
# The shortest interval of rates.
RATE_OVER_S: Final = 5.0
# A page that took a second to make and to zip is given out for three more.
FRESH_FACTOR: Final = 3.0
_FAST: Final = 1  # zlib's level: half the time of its usual one, for a tenth more bytes

log = logging.getLogger("mpbroker.exporter")


class PageText:
    """The text of a page that took `cost_s` seconds to make."""

    def __init__(self, plain: bytes, cost_s: float) -> None:
        self.plain: Final = plain
        self._made = time.monotonic()
        self._cost_s = cost_s
        self._zipping: asyncio.Task[bytes] | None = None

    @property
    def fresh_until(self) -> float:
        """Return the value of time.monotonic() until which the page is served to new requests."""
        return self._made + self._cost_s * FRESH_FACTOR

    async def zipped(self) -> bytes:
        """Return the page compressed with gzip. A thread does this once, since a large page takes long."""
        if self._zipping is None:
            self._zipping = asyncio.create_task(self._zip())
        # A client that disconnects must not cancel it for others.
        return await asyncio.shield(self._zipping)

    async def _zip(self) -> bytes:
        began = time.monotonic()
        zipped = await asyncio.to_thread(gzip.compress, self.plain, _FAST)
        self._cost_s += time.monotonic() - began
        return zipped


class MetricsPage:
    """Makes pages of one broker's metrics, and keeps the last page while it is fresh."""

    def __init__(self, context: ProcessContext, offsets: OffsetFollower, clients: ClientMetrics) -> None:
        self._context = context
        self._clients = clients
        self._memory = context.memory
        self._offsets = offsets
        self._looker = ProcessLooker()
        self._before: Snapshot | None = None
        self._between: Snapshot | None = None
        self._making: asyncio.Task[tuple[Page, PageText] | None] | None = None
        self._text: PageText | None = None
        self._failed_until = 0.0
        self._took_s = 0.0

    async def fresh(self) -> PageText | None:
        """Return the last page if it is fresh, else a new one. If it cannot be made, log why; return None."""
        if self._text is not None and time.monotonic() < self._text.fresh_until:
            return self._text
        if time.monotonic() < self._failed_until:
            return None
        # A client that disconnects must not cancel the page of others.
        made = await asyncio.shield(self._making or self._begin())
        return None if made is None else made[1]

    async def samples(self) -> Page | None:
        """Make a new page, after any page under way, and return its samples; None if it cannot be made."""
        # Awaiting an ended task lets no other code run, not even the callback that notes the end.
        while self._making is not None and not self._making.done():
            await asyncio.shield(self._making)
        made = await asyncio.shield(self._begin())
        return None if made is None else made[0]

    def _begin(self) -> asyncio.Task[tuple[Page, PageText] | None]:
        self._making = asyncio.create_task(self._make())
        self._making.add_done_callback(self._made)
        return self._making

    def _made(self, ended: object) -> None:
        if self._making is ended:
            self._making = None

    async def _make(self) -> tuple[Page, PageText] | None:
        began = time.monotonic()
        try:
            now = await asyncio.to_thread(snapshot.take, self._memory.public)
            follows = time.monotonic()
            await self._offsets.follow(now)
            waited_s = time.monotonic() - follows
            # Committed offsets are either read or written into a page.
            async with self._offsets.reading:
                page, plain = await asyncio.to_thread(self._written, now)
        except Exception:
            # A page with gaps would hide problems.
            log.exception("the page of metrics cannot be made")
            self._text, self._failed_until = None, time.monotonic() + FAILURE_PAUSE_S
            return None
        self._took_s = time.monotonic() - began
        self._text = PageText(plain, self._took_s - waited_s)
        self._drop_when_stale(self._text)
        return page, self._text

    def _drop_when_stale(self, text: PageText) -> None:
        """Release the page when it is stale, since it may be the largest object of the process."""
        left_s = text.fresh_until - time.monotonic()
        if left_s > 0:
            asyncio.get_running_loop().call_later(left_s, self._drop_when_stale, text)
        elif self._text is text:
            self._text = None

    def _written(self, now: Snapshot) -> tuple[Page, bytes]:
        """Return a new page and its text. This runs in a thread."""
        config, committed, page = self._context.config, self._offsets.committed, Page()
        pids, roles = self._memory.words("pids"), self._memory.words("roles")
        incarnations = {role: roles.load(role) for role in range(topology.PROCESSES)}
        alive = {role: pid for role in range(topology.PROCESSES) if (pid := pids.load(role))}
        mpbroker_metrics.write_broker(
            now, ready=not health.reasons_not_ready(config, self._memory), scrape_s=self._took_s, page=page
        )
        mpbroker_metrics.write_processes(now, incarnations, self._looker.look(alive), page)
        mpbroker_metrics.write_rings(self._memory, incarnations, page)
        mpbroker_metrics.write_work(now, page)
        mpbroker_metrics.write_remote(now, wall_ms(), page)
        mpbroker_metrics.write_standby(read_lag(Path(config.log_dirs[0])), wall_ms(), page)
        mpbroker_metrics.write_recovery(
            health.recoveries_under_way(config, self._memory), config.log_dirs, page
        )
        kafka_metrics.write(View(now, self._earlier(now)), page)
        partition_metrics.write_topics(now.logs, config.node_id, page)
        left_out = partition_metrics.write_groups(committed.groups, now.logs, page)
        mpbroker_metrics.write_tables(committed.groups, wall_ms(), page)
        mpbroker_metrics.write_offsets(committed, left_out, page)
        self._clients.write(page)
        return page, page.text()

    def _earlier(self, now: Snapshot) -> Snapshot | None:
        """Return an earlier snapshot from which to compute rates, at least RATE_OVER_S old, or None."""
        if self._between is None or now.now_ns - self._between.now_ns >= RATE_OVER_S * snapshot.NS:
            self._before, self._between = self._between, now
        return self._before
