"""The acceptor process: accepts on all listeners, hands sockets to processors round robin (Kafka: Acceptor).

A socket travels as SCM_RIGHTS over a SOCK_SEQPACKET pair with the listener's number; the acceptor keeps
nothing of it. While no processor has room for it, it waits, and behind it the listener's backlog.
"""

from __future__ import annotations

import errno
import select
import socket
import time

from mpbroker.ipc import topology
from mpbroker.ipc.process import MAX_SLEEP_MS, ExitCode, ProcessContext
from mpbroker.network.processor import HANDOVER

# Errors of accept() that a moment's rest may cure; the connection stays in the backlog.
OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
# Errors of handing over: the processor's queue is full, or too many sockets are on their way to all of them.
NO_ROOM_FOR_NOW = {errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM}
ACCEPT_BACKOFF_MS = 200
ACCEPTS_PER_WAKEUP = 256


class Acceptor:
    """`listeners`: listening sockets in the configuration's order; `handovers`: one per processor number."""

    def __init__(
        self, context: ProcessContext, listeners: list[socket.socket], handovers: list[socket.socket]
    ) -> None:
        self.context = context
        self.log = context.log
        self.listeners = listeners
        self.handovers = handovers
        self.next_processor = 0
        self.epoll = select.epoll()
        self.epoll.register(context.bell.fd, select.EPOLLIN)
        self.listener_of = {sock.fileno(): number for number, sock in enumerate(listeners)}
        self.paused_until: dict[int, float] = {}
        # By listener: accepted when no processor had room.
        self.waiting: dict[int, socket.socket] = {}
        for sock in listeners:
            sock.setblocking(False)
            self.epoll.register(sock.fileno(), select.EPOLLIN)
        for sock in handovers:
            sock.setblocking(False)

    def run(self) -> int:
        self.context.ready()
        bell = self.context.bell
        while not self.context.must_stop():
            if self.context.pending_fence() is not None:
                self.context.acknowledge_fence()
            bell.arm()
            quiet = self.context.pending_fence() is None and not self.context.must_stop()
            events = self.epoll.poll(self._timeout_ms() / 1000 if quiet else 0)
            bell.disarm()
            self.context.counters.beat()
            for fd, _ in events:
                if fd == bell.fd:
                    bell.drain()
                    # Maybe because there is a processor again.
                    self.paused_until = dict.fromkeys(self.paused_until, 0.0)
                else:
                    self._accept(fd)
            self._resume_paused()
        for sock in self.listeners:
            if sock.fileno() not in self.paused_until:
                self.epoll.unregister(sock.fileno())
        self.context.stopped()
        return ExitCode.STOPPED

    def _timeout_ms(self) -> int:
        return ACCEPT_BACKOFF_MS if self.paused_until else MAX_SLEEP_MS

    def _accept(self, fd: int) -> None:
        number = self.listener_of[fd]
        for _ in range(ACCEPTS_PER_WAKEUP):
            try:
                connection, _ = self.listeners[number].accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in OUT_OF_RESOURCES:
                    self.log.error(
                        "cannot accept on %s: %s; trying again in %d ms. "
                        "Raise the limit of open files (LimitNOFILE)",
                        self.context.config.listeners[number],
                        error.strerror,
                        ACCEPT_BACKOFF_MS,
                    )
                    self._pause(fd)
                    return
                self.log.warning(
                    "a connection on %s was lost before it was accepted: %s", number, error.strerror
                )
                continue
            self._configure(connection)
            if not self._hand_over(connection, number):
                self.log.debug("no processor takes connections now; listener %d waits", number)
                self.waiting[fd] = connection
                self._pause(fd)
                return

    def _configure(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self.context.config.socket_send_buffer_bytes != -1:
            connection.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDBUF, self.context.config.socket_send_buffer_bytes
            )

    def _hand_over(self, connection: socket.socket, listener: int) -> bool:
        """To the next live processor that has room; False when none has."""
        count = len(self.handovers)
        for attempt in range(count):
            number = (self.next_processor + attempt) % count
            if not self.context.is_alive(topology.processor(number)):
                continue
            try:
                socket.send_fds(self.handovers[number], [HANDOVER.pack(listener)], [connection.fileno()])
            except OSError as error:
                # Full; or supervisor and processor are gone, and this process is about to hear of it.
                if error.errno not in NO_ROOM_FOR_NOW and not isinstance(error, ConnectionError):
                    raise
                continue
            self.next_processor = number + 1
            connection.close()
            return True
        return False

    def _pause(self, fd: int) -> None:
        self.epoll.unregister(fd)
        self.paused_until[fd] = time.monotonic() + ACCEPT_BACKOFF_MS / 1000

    def _resume_paused(self) -> None:
        now = time.monotonic()
        for fd in [fd for fd, until in self.paused_until.items() if until <= now]:
            waiting = self.waiting.pop(fd, None)
            if waiting is not None and not self._hand_over(waiting, self.listener_of[fd]):
                self.waiting[fd] = waiting
                self.paused_until[fd] = now + ACCEPT_BACKOFF_MS / 1000
                continue
            del self.paused_until[fd]
            self.epoll.register(fd, select.EPOLLIN)


def run(context: ProcessContext, listeners: list[socket.socket], handovers: list[socket.socket]) -> int:
    """The acceptor's main; returns its exit code."""
    return Acceptor(context, listeners, handovers).run()
