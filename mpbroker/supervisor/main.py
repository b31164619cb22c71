"""`mpbroker serve`: one broker from its configuration to its last exit code."""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import socket
import time
from typing import Any

import psutil
import setproctitle

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator import process as coordinator_process
from mpbroker.handlers import process as handler_process
from mpbroker.handlers.apis import all_apis
from mpbroker.ipc import topology
from mpbroker.ipc.pointer import PUBLIC_NAME
from mpbroker.ipc.process import FatalError, ProcessContext
from mpbroker.ipc.topology import SharedMemory, Sizes
from mpbroker.log import process as log_process
from mpbroker.log.log_dir import lock_log_dirs, prepare_log_dirs
from mpbroker.network import acceptor, processor
from mpbroker.protocol import codec
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.api_versions import Served
from mpbroker.security.listener import ListenerSecurity, SecurityError, secure_listeners
from mpbroker.supervisor import logs, runtime_dir, sockets
from mpbroker.supervisor.child import Child
from mpbroker.supervisor.control import Command, ControlSocket, Later
from mpbroker.supervisor.notify import Notifier
from mpbroker.supervisor.resize import Resize
from mpbroker.supervisor.status import status
from mpbroker.supervisor.tree import BrokerStops, Tree
from shm.region import RegionUnavailable

EXIT_OK = 0
EXIT_FAILED = 1
# Share of the machine's memory for all request buffers together when queued.max.request.bytes is -1.
REQUEST_MEMORY_SHARE = 0.25
# `kill %1` on `make run` signals the whole job, and make passes its own signal on: nobody who wants a second
# one is that fast.
SAME_STOP_S = 0.2
HOT_APIS = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.METADATA,
    ApiKey.API_VERSIONS,
    ApiKey.LIST_OFFSETS,
    ApiKey.INIT_PRODUCER_ID,
)

log = logging.getLogger("mpbroker")


def security_of(config: BrokerConfig) -> dict[int, ListenerSecurity]:
    """Certificates, users and rules of all listeners, checked before anything else is begun."""
    try:
        return secure_listeners(config)
    except SecurityError as error:
        raise FatalError(str(error)) from error


def run(config: BrokerConfig) -> int:
    """Runs a broker until it is told to stop; -> exit status. Every failure is one clear line in the log."""
    logs.configure(os.environ.get("MPBROKER_LOG_LEVEL", "INFO"))
    setproctitle.setproctitle("mpbroker: supervisor")
    try:
        return Broker(config).run()
    except FatalError as error:
        log.error("%s", error)
    except RegionUnavailable as error:
        log.error("%s", error.strerror)
    return EXIT_FAILED


class Broker:
    """The supervisor's state: sockets, memory, tree. Single-threaded."""

    def __init__(self, config: BrokerConfig) -> None:
        raise_file_limit()
        self.notifier = Notifier()
        self.security = security_of(config)
        self.served = tuple(Served(a.key, a.advertised_from, a.latest) for a in all_apis().values())
        self.locks = lock_log_dirs(config)
        self.identity = prepare_log_dirs(config)
        self.listener_fds, self.config = sockets.bind_all(config)
        self.directory = runtime_dir.runtime_dir(config)
        self.runtime_lock = runtime_dir.claim(self.directory)
        self.memory = SharedMemory(self.directory / PUBLIC_NAME, sizes(config))
        pairs = [
            socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(topology.MAX_PROCESSORS)
        ]
        self.handovers = [(a.detach(), b.detach()) for a, b in pairs]
        self.tree = Tree(self.memory, self.config)
        self.resizing: Resize | None = None
        self.signals = 0
        self.stop_signal = 0
        self.stopped_at = 0.0

    def run(self) -> int:
        started = time.monotonic()
        wakeup = self._install_signals()
        control = ControlSocket(self.directory, self._serve)
        for key in HOT_APIS:
            codec.prepare(key)
        gc.collect()
        gc.freeze()
        code = EXIT_OK
        try:
            self._start_tree()
            self.tree.watch(control.fileno(), control.accept)
            self._announce(time.monotonic() - started)
            self._watch()
            self.notifier.stopping()
            self._stop()
        except BrokerStops as stop:
            code = stop.code
            if str(stop):
                log.error("%s", stop)
            self.tree.kill_all()
        finally:
            control.close()
            runtime_dir.remove_pointers(self.config)
            self.memory.close()
            for fd in (*self.listener_fds, wakeup, self.runtime_lock, *self.locks):
                os.close(fd)
        log.info("stopped with status %d", code)
        return code

    # ---- start

    def _start_tree(self) -> None:
        """The acceptor comes last: clients wait in the backlog until all others serve."""
        tree = self.tree
        tree.start(self._started(Child(topology.LOG, log_process.run, tuple(self.locks))))
        self.notifier.status("Log recovered; starting")
        tree.start(self._started(Child(topology.COORDINATOR, coordinator_process.run)))
        workers = [self._handler(n) for n in range(self.config.num_io_threads)]
        workers += [self._processor(n) for n in range(self.config.num_network_threads)]
        for child in workers:
            tree.launch(child)
        for child in workers:
            tree.await_serving(self._started(child))
        # Whoever is answered by the broker must find it in its log directories, too.
        runtime_dir.write_pointers(self.config, self.directory)
        tree.start(self._started(self._acceptor()))

    def _started(self, child: Child) -> Child:
        """A first start is not mended: what keeps a role from starting once would do so again."""
        if self.signals:
            raise BrokerStops(EXIT_OK, "told to stop while starting")
        return child

    def _handler(self, number: int) -> Child:
        return Child(topology.handler(number), handler_process.run)

    def _processor(self, number: int) -> Child:
        fd = self.handovers[number][1]

        def main(context: ProcessContext) -> int:
            return processor.run(context, socket.socket(fileno=fd), self.security, self.served)

        return Child(topology.processor(number), main, (fd,))

    def _acceptor(self) -> Child:
        ends = [a for a, _ in self.handovers]

        def main(context: ProcessContext) -> int:
            return acceptor.run(
                context,
                [socket.socket(fileno=fd) for fd in self.listener_fds],
                [socket.socket(fileno=fd) for fd in ends],
            )

        return Child(topology.ACCEPTOR, main, (*self.listener_fds, *ends))

    def _announce(self, took_s: float) -> None:
        listeners = ", ".join(str(listener) for listener in self.config.listeners)
        if self.config.log_flush_policy == "os":
            log.warning(
                "log.flush.policy=os: acknowledged records survive a crash of the broker, not one of the "
                "machine: they are in the page cache only"
            )
        log.info(
            "serving on %s (cluster %s, node %d, processors %d, handlers %d, log.dirs %s) after %.0f ms",
            listeners,
            self.identity.cluster_id,
            self.config.node_id,
            self.config.num_network_threads,
            self.config.num_io_threads,
            ",".join(self.config.log_dirs),
            took_s * 1000,
        )
        self.notifier.ready(f"Serving on {listeners}")

    # ---- while it runs

    def _install_signals(self) -> int:
        """Signals only count; the main loop acts. Returns the wake-up descriptor."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

        def stop(number: int, _: object) -> None:
            if self.signals and time.monotonic() < self.stopped_at + SAME_STOP_S:
                return
            self.signals += 1
            self.stop_signal = number
            self.stopped_at = time.monotonic()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTTIN, lambda *_: self._step_handlers(1))
        signal.signal(signal.SIGTTOU, lambda *_: self._step_handlers(-1))
        self._asked_handlers = 0

        def drain() -> None:
            os.read(reader, 4096)

        self.tree.watch(reader, drain)
        return reader

    def _step_handlers(self, by: int) -> None:
        self._asked_handlers += by

    def _watch(self) -> None:
        while not self.signals:
            self.tree.step()
            self._go_on_resizing()
        log.info("stopping: %s", signal.Signals(self.stop_signal).name)

    def _stop(self) -> None:
        """Graceful; a second signal ends it at once."""
        asked = self.signals

        def hasten() -> None:
            if self.signals > asked:
                raise BrokerStops(
                    EXIT_FAILED,
                    "told to stop a second time: stopping at once; the log recovers at the next start",
                )

        self.tree.on_wait = hasten
        self.tree.stop_all()

    # ---- control socket

    def _serve(self, command: Command) -> dict[str, Any] | Later:
        if command.command == "status":
            return status(
                self.config, self.identity.cluster_id, self.memory, list(self.tree.children.values())
            )
        if command.command == "resize":
            return self._resize(command)
        raise ValueError(f"unknown command {command.command!r}; known are status and resize")

    def _resize(self, command: Command) -> Later:
        """Notes what is wanted and answers when it is done. Raises FatalError."""
        if self.resizing is not None:
            raise FatalError(f"{self.resizing} goes on already; ask again when that is done")
        self.resizing = Resize.checked(self.config, command.handlers, command.processors)
        return self.resizing.answer

    def _go_on_resizing(self) -> None:
        if self.resizing is None and self._asked_handlers:
            wanted, self._asked_handlers = self.config.num_io_threads + self._asked_handlers, 0
            try:
                self._resize(Command("resize", handlers=wanted))
            except FatalError as error:
                log.error("%s", error)
        if self.resizing is not None and self.resizing.go_on(self.tree, self._handler, self._processor):
            self.config = self.tree.config = self.resizing.applied_to(self.config)
            self.resizing.answer.give(self.resizing.result)
            self.resizing = None


def raise_file_limit() -> None:
    """To what the system allows: the log process holds three files per partition, a processor one socket per
    connection, and the customary soft limit of 1024 is meant for programs that use select().
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def sizes(config: BrokerConfig) -> Sizes:
    """How much memory buffers may take: what the configuration says, or a share of the machine's."""
    total = config.queued_max_request_bytes
    if total <= 0:
        total = int(psutil.virtual_memory().total * REQUEST_MEMORY_SHARE)
    per_processor = max(1, total // config.num_network_threads)
    return Sizes(
        request_limit_bytes=per_processor,
        reply_limit_bytes=max(total, 256 << 20),
        quota_samples=config.quota_window_num,
        quota_window_ms=config.quota_window_size_seconds * 1000,
    )
