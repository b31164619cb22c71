"""The exporter process: an event loop that serves HTTP and follows the supervisor's orders.

It serves the metrics, and passes other paths to the web console. If configured, a thread sends metrics by
OTLP. The process reads shared counters, /proc, and the files of `__consumer_offsets`, and takes the metrics
that clients have pushed from the handlers' queues. The supervisor holds the listening socket, so connections
wait while the process is being replaced. The process has a lower scheduling priority than the processes that
serve Kafka clients.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.listeners import parse_http_listener
from mpbroker.config.otlp import Destination
from mpbroker.exporter.app import App
from mpbroker.exporter.client_metrics import ClientMetrics
from mpbroker.exporter.metrics_page import MetricsPage
from mpbroker.exporter.otlp_sender import Origin, Sender
from mpbroker.http.guard import plain
from mpbroker.http.server import HttpServer, Receive, Scope, Send
from mpbroker.ipc import health
from mpbroker.ipc.process import IDLE_SLEEP_MS, ProcessContext
from mpbroker.ipc.topology import HANDLERS
from mpbroker.observe.offset_follower import OffsetFollower
from shm.clock import monotonic_ms

NICENESS = 5
# Added to the score by which the kernel chooses a process to kill when memory runs out: an exporter is soon
# replaced, and has no data of clients.
OOM_SCORE = 500
OOM_SCORE_MAX = 1000
STOP_GRACE_S = 2.0

log = logging.getLogger("mpbroker.exporter")


class Console(Protocol):
    """The web console: an ASGI application with a method `close`, which ends its open responses."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def close(self) -> None: ...


MakeConsole = Callable[[ProcessContext, OffsetFollower], Console]


def run(
    context: ProcessContext,
    fd: int,
    otlp: Destination | None,
    cluster_id: str,
    began_ns: int,
    make_console: MakeConsole,
) -> int:
    """Serve HTTP on the listening socket `fd`, or no HTTP if negative, until the supervisor orders a stop.

    Return the exit status. Metrics are sent to `otlp`, if not None. The counters were 0 at `began_ns` (ns
    since 1970). The first request for the web console calls `make_console`.
    """
    os.nice(NICENESS)
    _be_killed_first()
    # Objects inherited from the supervisor are shared: a collection would copy their pages.
    gc.freeze()
    sock = socket.socket(fileno=fd) if fd >= 0 else None
    origin = Origin(cluster_id, context.config.node_id, began_ns)
    asyncio.run(ExporterProcess(context, sock, otlp, origin, make_console).serve())
    context.stopped()
    return 0


class ExporterProcess:
    """The exporter: serves metrics and the web console over HTTP, and sends metrics by OTLP."""

    def __init__(
        self,
        context: ProcessContext,
        sock: socket.socket | None,
        otlp: Destination | None,
        origin: Origin,
        make_console: MakeConsole,
    ) -> None:
        self.context = context
        memory = context.memory
        self.offsets = OffsetFollower(memory.table(), context.config.log_dirs)
        takes_pushes = context.config.client_telemetry_enable
        self.clients = ClientMetrics(
            [memory.client_metrics(handler) for handler in HANDLERS if takes_pushes], monotonic_ms
        )
        self._taking: asyncio.Task[None] | None = None
        self.metrics = MetricsPage(context, self.offsets, self.clients)
        self._make_console = make_console
        self._console: Console | None = None
        app = App(
            self.metrics.fresh,
            partial(health.reasons_not_ready, context.config, memory),
            partial(health.unresponsive_processes, context.config, memory),
            partial(own_names, context.config),
            self.console,
        )
        self.server = None if sock is None else HttpServer(app, sock)
        self._send_to = otlp
        self._origin = origin

    def console(self) -> Console | None:
        """Return the web console, or None if the current settings disable it."""
        if not self.context.config.http_console_enable:
            return None
        if self._console is None:
            self._console = self._make_console(self.context, self.offsets)
        return self._console

    async def serve(self) -> None:
        context, loop = self.context, asyncio.get_running_loop()
        rung = asyncio.Event()
        loop.add_reader(context.bell.fd, rung.set)
        if self.server is not None:
            await self.server.start()
        sender = None
        if self._send_to is not None:
            sender = Sender(self._send_to, self._origin, self.metrics.samples, loop)
            sender.start()
        context.counters.set_status("serving")
        context.ready()
        while not context.must_stop():
            context.counters.beat()
            context.obey_settings()
            context.bell.arm()
            if self._taking is None and self.clients:
                self._taking = asyncio.create_task(self._take_pushes(rung))
            if not (context.must_stop() or context.pending_order()):
                await _wait(rung, IDLE_SLEEP_MS / 1000)
            context.bell.disarm()
            if rung.is_set():
                context.bell.drain()
                rung.clear()
        if self._console is not None:
            self._console.close()
        if sender is not None:
            sender.stop()
        if self.server is not None:
            await self.server.stop(STOP_GRACE_S)
        self.offsets.close()

    async def _take_pushes(self, rung: asyncio.Event) -> None:
        """Take some pushes in a thread, then set `rung`, so that the event loop looks for more pushes."""
        began = time.monotonic()
        try:
            await asyncio.to_thread(self.clients.take_some)
        except Exception:
            log.exception("a push of a client's metrics is lost")
        # Clients that push all the time get half of a processor at most.
        await asyncio.sleep(time.monotonic() - began)
        self._taking = None
        rung.set()


def own_names(config: BrokerConfig) -> set[str]:
    """Return the broker's names: its host name, the hosts of its listeners, and the names in `http.hosts`."""
    names = {socket.gethostname(), *config.http_hosts}
    http = parse_http_listener(config.http_listener)
    for listener in (http, *config.listeners, *(config.advertised_listeners or ())):
        if listener is not None:
            names.add(listener.host)
    return {plain(name) for name in names} - {""}


def _be_killed_first() -> None:
    """Try to make the kernel kill this process before the broker's other ones if memory runs out."""
    score = Path("/proc/self/oom_score_adj")
    try:
        score.write_text(str(min(int(score.read_text()) + OOM_SCORE, OOM_SCORE_MAX)))
    except OSError as error:
        log.debug("the exporter's oom_score_adj is unchanged: %s", error)


async def _wait(rung: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await rung.wait()
    except TimeoutError:
        return
