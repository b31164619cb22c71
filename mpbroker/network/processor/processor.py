"""The processor process: Python around the native turn (Kafka: SocketServer.Processor).

Python takes the new sockets that the turn leaves to it, opens segment files that an answer needs, logs why
connections closed, and obeys the supervisor. `turn.pyx` does the rest without Python.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
import time

from mpbroker.config.listeners import MAX_LISTENERS, Listener
from mpbroker.ipc import faults, topology
from mpbroker.ipc.listeners import ListenerCount, ListenerState
from mpbroker.ipc.log_levels import level_at_start
from mpbroker.ipc.process import IDLE_SLEEP_MS, ExitCode, ProcessContext
from mpbroker.ipc.session import SecurityProtocol
from mpbroker.network import handover
from mpbroker.network.processor import request_log, turn
from mpbroker.network.processor.channel import CloseReason
from mpbroker.network.processor.credentials import Credentials
from mpbroker.network.processor.segment_files import SegmentFiles, own_shares
from mpbroker.network.processor.tls_sasl import TlsSaslChannels
from mpbroker.network.processor.turn import ProcessorTurn
from mpbroker.protocol import api_versions
from mpbroker.protocol.api_keys import ApiKey, is_flexible, valid_versions
from mpbroker.protocol.api_versions import Served
from mpbroker.protocol.codec import encode_response
from mpbroker.protocol.messages import ApiVersionsRequest
from mpbroker.security.listener import ListenerSecurity, SecurityError, security_of_added, settings_of

# Most new sockets that Python decides about before it serves the open ones again.
NEW_CONNECTIONS_MAX = 20
NO_FLEXIBLE_VERSION = 32767
UNKNOWN_KEY = -1
DRAIN_TIMEOUT_MS = 5000
NEWS_NS = 1_000_000_000
TLS_HANDSHAKE_RECORD = 0x16
HTTP_METHODS = (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"DELE", b"CONN", b"PATC", b"PRI ")

# The log level of each close reason, as in Kafka. CLOSED_BY_HANDLER: the handler has logged why.
_LEVELS = {
    CloseReason.CLOSED_BY_PEER: logging.DEBUG,
    CloseReason.CLOSED_RESET: logging.DEBUG,
    CloseReason.CLOSED_STOPPING: logging.DEBUG,
    CloseReason.CLOSED_BY_HANDLER: logging.DEBUG,
    CloseReason.CLOSED_IDLE: logging.DEBUG,
    # The reason was logged with the connection id.
    CloseReason.CLOSED_TLS: logging.DEBUG,
    CloseReason.CLOSED_AUTHENTICATION: logging.DEBUG,
    CloseReason.CLOSED_LOGIN_TIMEOUT: logging.DEBUG,
    CloseReason.CLOSED_LOGIN_EXCESS: logging.DEBUG,
    CloseReason.CLOSED_SESSION_EXPIRED: logging.INFO,
    CloseReason.CLOSED_EXCESS: logging.INFO,
    CloseReason.CLOSED_LISTENER: logging.DEBUG,
    # The tier has logged that the lease has ended.
    CloseReason.CLOSED_LEASE: logging.DEBUG,
    CloseReason.CLOSED_HEADER: logging.ERROR,
    CloseReason.CLOSED_UNKNOWN_API: logging.ERROR,
    CloseReason.CLOSED_ILLEGAL_STATE: logging.ERROR,
    CloseReason.CLOSED_FAILED: logging.ERROR,
}


def first_flexible_versions() -> list[int]:
    """Return, per API key, the first version whose request header has tagged fields; -1 for unknown keys."""
    table = [UNKNOWN_KEY] * 128
    for key in ApiKey:
        flexible = [v for v in valid_versions(key) if is_flexible(key, v)]
        table[key] = flexible[0] if flexible else NO_FLEXIBLE_VERSION
    return table


def api_versions_bodies(served: tuple[Served, ...]) -> list[bytes]:
    """Return the encoded answers to ApiVersions by version; an empty list if `served` is empty."""
    if not served:
        return []
    software = ApiVersionsRequest(client_software_name="any", client_software_version="1")
    return [
        b"".join(
            encode_response(ApiKey.API_VERSIONS, version, api_versions.answer(software, version, served))
        )
        for version in range(api_versions.OLDEST, api_versions.LATEST + 1)
    ]


def connection_prefix(index: int, incarnation: int) -> int:
    """Return the high bits of new connection ids: process index (8 bits), and how often it was started (16).

    A running number (40 bits) follows them, so that ids are never reused.
    """
    return index << 56 | (incarnation & 0xFFFF) << 40


class Processor:
    """A processor process. `inbox` is the socket over which it receives new connections."""

    def __init__(
        self,
        context: ProcessContext,
        inbox: socket.socket,
        listeners: dict[int, ListenerSecurity],
        served: tuple[Served, ...],
    ) -> None:
        self.context = context
        self.log = context.log
        self.inbox = inbox
        # recv_fds() does not pass its flags on, so the socket itself must not block.
        inbox.setblocking(False)
        self.ledger = context.memory.connections(context.index)
        self.removed_listeners = {
            n
            for n in range(MAX_LISTENERS)
            if context.memory.listener_counts(n).get(ListenerCount.STATE) == ListenerState.REMOVED
        }
        config = context.config
        self.listeners_in_title = len(config.listeners)
        self.turn = ProcessorTurn(
            context.memory,
            context.index,
            inbox.fileno(),
            first_flexible_versions(),
            topology.CHANNELS_PER_PROCESSOR,
            config.socket_request_max_bytes,
            self._queued_requests_max,
            connection_prefix(context.index, context.incarnation),
            self._idle_ns,
            window=config.max_in_flight_requests_per_connection,
        )
        descriptors = own_shares()
        self.connections_max = descriptors.connections
        self.files = SegmentFiles(self.turn, descriptors.files, self.log, context.counters)
        self.credentials = Credentials(context)
        self.served = served
        self.api_versions = api_versions_bodies(served)
        self.answers_api_versions = False
        self._choose_answers()
        levels = {reason: _LEVELS.get(reason, logging.WARNING) for reason in CloseReason}
        self.turn.tell_closed(levels, level_at_start())
        self.secure: TlsSaslChannels | None = None
        if listeners:
            self.secure = self._secure_channels(listeners)
        self.next_news_ns = 0
        for role in topology.handlers_of(context.index):
            if context.is_ready(role):
                self.turn.welcome_handler(role - topology.FIRST_HANDLER)

    @property
    def _queued_requests_max(self) -> int:
        control = topology.is_control_plane(self.context.index)
        return topology.CONTROL_QUEUED_REQUESTS if control else self.context.config.queued_max_requests

    @property
    def _idle_ns(self) -> int:
        return max(0, self.context.config.connections_max_idle_ms) * 1_000_000

    def _secure_channels(self, listeners: dict[int, ListenerSecurity]) -> TlsSaslChannels:
        return TlsSaslChannels(
            self.turn,
            self.context.config,
            listeners,
            self.served,
            self.credentials.look_up,
            self.context.counters,
            self.log,
            look_up_token=self.credentials.look_up_token,
        )

    def run(self) -> int:
        # An order may have come before the turn was made, which counts only those since.
        self._obey_order()
        self.context.ready()
        while not self.context.must_stop():
            if self.turn.look_at_orders():
                self._obey_order()
                self.turn.saw_orders()
                if owed := self.ledger.evictions_owed():
                    self._evict(owed)
            self._work(IDLE_SLEEP_MS)
            self._follow_news()
        self._drain()
        self.context.stopped()
        return ExitCode.STOPPED

    def _turn(self, timeout_ms: int) -> int:
        try:
            return self.turn.serve(timeout_ms)
        except turn.PollFailed as error:
            # No socket would be ready again while the heartbeat moves: a successor must replace this process.
            self.log.error("poll failed: %s. This processor ends and is replaced", error)
            raise

    def _work(self, timeout_ms: int) -> None:
        if self.secure is None:
            flags = self._turn(timeout_ms)
        else:
            flags = self._turn(self.secure.timeout_ms(timeout_ms))
            if flags & turn.SECURE:
                self.secure.serve()
            self.secure.work()
            flags |= turn.CLOSED
        if flags & turn.OPENING:
            self.files.open()
        if flags & (turn.CLOSED | turn.OPENING):
            self._report_closed()
        if flags & turn.CONNECTIONS:
            self._take_connections()
        if flags & turn.TOLD:
            for ended in self.turn.told():
                request_log.write(request_log.Ended(*ended))

    def _obey_order(self) -> None:
        order = self.context.pending_order()
        if order is None:
            return
        if order.settings_changed:
            self._follow_settings()
        elif order.listener_removed:
            self.removed_listeners.add(order.role)
            self.turn.ask_about(order.role)
            self.turn.close_listener(order.role)
            if self.secure is not None:
                self.secure.remove_listener(order.role)
            self.context.entitle_by_listeners()
        elif topology.is_handler(order.role):
            number = order.role - topology.FIRST_HANDLER
            if order.leaving:
                self.turn.leave_handler(number)
            elif order.alive:
                self.turn.welcome_handler(number)
            else:
                self.turn.fence_handler(number)
        elif topology.is_log_worker(order.role):
            if order.alive:
                self.turn.welcome_log(topology.log_worker_number(order.role))
            else:
                self.turn.fence_log()
        self._report_closed()
        self.context.acknowledge_order()

    def _follow_settings(self) -> None:
        """Apply changed settings. New TLS and SASL settings apply only to new connections."""
        config, served = self.context.config, self.secure.listeners if self.secure is not None else ()
        listeners = {number: self.context.listener(number).listener for number in served}
        before = {number: settings_of(listener, config) for number, listener in listeners.items()}
        self.context.follow_settings()
        self._choose_answers()
        self.turn.limit(config.socket_request_max_bytes, self._queued_requests_max, self._idle_ns)
        self.turn.set_window(config.max_in_flight_requests_per_connection)
        if self.secure is None:
            return
        self.secure.follow(config)
        for number, listener in listeners.items():
            if settings_of(listener, config) != before[number]:
                self._renew_security(number, listener)

    def _choose_answers(self) -> None:
        """Let the turn answer ApiVersions; while a test injects faults into this API, let handlers answer."""
        found = faults.read(self.context.memory.private.block("faults"))
        answers = all(fault.api_key != ApiKey.API_VERSIONS for fault in found)
        if answers != self.answers_api_versions:
            self.answers_api_versions = answers
            self.turn.answer_api_versions(self.api_versions if answers else [])

    def _renew_security(self, number: int, listener: Listener) -> None:
        assert self.secure is not None
        try:
            self.secure.add_listener(number, security_of_added(listener, self.context.config))
        except (SecurityError, OSError) as error:
            self.log.error(
                "listener %s: the changed settings cannot be used, the old ones stay: %s",
                listener.name,
                error,
            )

    def _follow_news(self) -> None:
        """Read new credentials regularly, even without logins: the coordinator waits until they are read."""
        now_ns = time.monotonic_ns()
        if now_ns >= self.next_news_ns:
            self.next_news_ns = now_ns + NEWS_NS
            self.credentials.follow()

    def _take_connections(self) -> bool:
        """Take over new sockets, first the one that the turn has left to Python.

        Return whether further sockets may be waiting.
        """
        more = True
        for _ in range(NEW_CONNECTIONS_MAX):
            received = self.turn.handed() or handover.receive(self.inbox)
            if received is None:
                more = False
                break
            message, fds = received
            ticket, listener, address = handover.unpack(message)
            channel = self._add_connection(fds[0], listener) if fds else None
            if channel is not None:
                self.ledger.open(channel, ticket, listener, address)
            elif listener != handover.MARK:
                self.ledger.refuse(ticket)
                if not fds:
                    self.log.error(
                        "a connection was lost: this processor has no descriptor left for it. "
                        "Raise the limit of open files (LimitNOFILE)"
                    )
            self.ledger.take(ticket)
        self._ring_who_waits()
        return more

    def _add_connection(self, fd: int, number: int) -> int | None:
        """Serve a new socket. Return its channel, or None if the socket had to be closed."""
        if number in self.removed_listeners:
            os.close(fd)
            return None
        if number >= self.listeners_in_title:
            # An added listener is not announced: its first connection does that.
            self.listeners_in_title = number + 1
            self.context.entitle_by_listeners()
        listener = self.context.listener(number).listener
        if self.turn.connections >= self.connections_max:
            os.close(fd)
            self.log.error(
                "a connection on %s was refused: this processor has descriptors for %d, and all are taken. "
                "Raise the limit of open files (LimitNOFILE), or start more processors (--processors)",
                listener.name,
                self.connections_max,
            )
            return None
        protocol = SecurityProtocol[listener.protocol]
        secure = self.secure if protocol is SecurityProtocol.PLAINTEXT else self._secure(number, listener)
        if secure is None and protocol is not SecurityProtocol.PLAINTEXT:
            os.close(fd)
            return None
        privileged = self.context.config.is_privileged(listener.name)
        try:
            added = self.turn.add_connection(fd, number, protocol, privileged)
        except OSError as error:
            os.close(fd)
            if error.errno == errno.ENOSPC:
                self.log.error(
                    "a connection on %s was refused: the kernel watches no more descriptors for this user. "
                    "Raise fs.epoll.max_user_watches (sysctl)",
                    listener.name,
                )
                return None
            # The client may have closed before it was served.
            level = self.log.debug if error.errno == errno.ENOTCONN else self.log.warning
            level("a new connection on %s could not be registered: %s", listener.name, error)
            return None
        if added is None:
            os.close(fd)
            self.log.error(
                "a connection on %s was refused: this processor serves %d already. "
                "Start more processors (--processors)",
                listener.name,
                topology.CHANNELS_PER_PROCESSOR,
            )
            return None
        channel, connection = added
        if protocol is SecurityProtocol.PLAINTEXT:
            self.turn.serve_plain(number, privileged, self.connections_max)
        elif secure is not None:
            secure.add(fd, number, channel, connection)
        return channel

    def _secure(self, number: int, listener: Listener) -> TlsSaslChannels | None:
        """Return the object that serves a TLS or SASL listener; None (logged) if its settings cannot be used.

        A listener added after this process began is set up by its first connection.
        """
        if self.secure is not None and number in self.secure.listeners:
            return self.secure
        try:
            security = security_of_added(listener, self.context.config)
        except (SecurityError, OSError) as error:
            self.log.error("a connection on %s was refused: %s", listener.name, error)
            return None
        if self.secure is None:
            self.secure = self._secure_channels({})
        self.secure.add_listener(number, security)
        return self.secure

    def _evict(self, count: int) -> None:
        """Close the `count` least recently active connections, because there are more than max.connections.

        Connections of the brokers' own listener are spared while there is another listener.
        """
        spared = self.context.config.inter_broker_listener_name
        served = [n for n in range(MAX_LISTENERS) if self._is_served(n)]
        others = [n for n in range(MAX_LISTENERS) if len(served) == 1 or not self._is_called(n, spared)]
        for _ in range(count):
            if self.turn.close_least_recently_active(others) is None:
                break
        self._report_closed()
        self.ledger.evicted(count)

    def _is_served(self, number: int) -> bool:
        """Return whether the acceptor of the data plane accepts connections on the listener now."""
        state = self.context.memory.listener_counts(number).get(ListenerCount.STATE)
        control = self.context.config.control_plane_listener_name
        return state == ListenerState.ACCEPTING and not self._is_called(number, control)

    def _is_called(self, number: int, name: str | None) -> bool:
        listeners = self.context.config.listeners
        return number < len(listeners) and listeners[number].name == name

    def _ring_who_waits(self) -> None:
        """Ring each acceptor that waits for processors to take or to close a connection."""
        for number, acceptor in enumerate(topology.ACCEPTORS):
            if self.ledger.waits(number):
                self.context.ring(acceptor)

    def _report_closed(self) -> None:
        for session, reason, detail in self.turn.closed():
            if self.secure is not None:
                self.secure.closed(session, reason)
            level = _LEVELS.get(CloseReason(reason), logging.WARNING)
            if self.log.isEnabledFor(level):
                listener = self.context.listener(session.listener).listener.name
                why = describe_close(reason, detail)
                who = session.connection_id
                self.log.log(level, "connection %s on %s closed: %s", who, listener, why)
        for session, api_key in self.turn.late_answers():
            listener = self.context.listener(session.listener).listener.name
            self.log.debug(
                "the answer to %s is dropped: its connection %s on %s was closed before it came",
                ApiKey(api_key).name,
                session.connection_id,
                listener,
            )

    def _drain(self) -> None:
        """Finish the requests under way and begin no others. Connections still open end with the process."""
        self.turn.saw_orders()
        # The acceptor gives no more connections to a process that leaves. Take those given before.
        while self._take_connections():
            pass
        self.turn.stop_reading()
        patience_ms = 0 if self.context.orphaned else DRAIN_TIMEOUT_MS
        deadline_ns = time.monotonic_ns() + patience_ms * 1_000_000
        while self.turn.open_connections() and time.monotonic_ns() < deadline_ns:
            self.turn.close_parked()
            self._work(50)
            if self.turn.look_at_orders():
                self._obey_order()
                self.turn.saw_orders()
            self.turn.stop_reading()
        self._report_closed()
        if self.secure is not None:
            self.secure.close()


def _guess(size: int) -> str:
    """Return a log text that guesses the client's protocol from the frame size that it sent, or ""."""
    first = struct.pack(">i", size)
    if first[0] == TLS_HANDSHAKE_RECORD:
        return ": a TLS client on a plaintext listener?"
    return ": an HTTP client?" if first in HTTP_METHODS else ""


def describe_close(reason: int, detail: int) -> str:
    """Return a text for the log about a close reason and its detail."""
    if reason == CloseReason.CLOSED_FRAME_SIZE:
        return f"its frame claims {detail} bytes, outside 0..socket.request.max.bytes{_guess(detail)}"
    texts = {
        CloseReason.CLOSED_BY_PEER: "by the client",
        CloseReason.CLOSED_HEADER: f"a frame of {detail} bytes has no valid request header",
        CloseReason.CLOSED_UNKNOWN_API: f"unknown API key {detail}",
        CloseReason.CLOSED_BY_HANDLER: f"its request (API key {detail}) was not answered: see the handlers",
        CloseReason.CLOSED_IDLE: "idle for longer than connections.max.idle.ms",
        CloseReason.CLOSED_STOPPING: "the broker stops",
        CloseReason.CLOSED_NO_FILE: "a segment of its fetch could not be opened or read",
        CloseReason.CLOSED_NO_MEMORY: "a segment of its fetch was deleted, and its request had not been kept "
        "(queued.max.request.bytes)",
        CloseReason.CLOSED_ILLEGAL_STATE: f"an answer came that cannot come in mute state {detail}",
        CloseReason.CLOSED_TLS: "TLS failed",
        CloseReason.CLOSED_AUTHENTICATION: "its authentication failed",
        CloseReason.CLOSED_LOGIN_TIMEOUT: "its client was not authenticated within connections.max.login.ms",
        CloseReason.CLOSED_LOGIN_EXCESS: "the oldest without authentication, in favour of newer ones "
        "(max.unauthenticated.connections, or large tokens)",
        CloseReason.CLOSED_SESSION_EXPIRED: "a request came after its authentication had expired",
        CloseReason.CLOSED_STALLED: "its request or response made no progress while others waited for the "
        "memory (queued.max.request.bytes) or the open files that it held",
        CloseReason.CLOSED_MANY_FILES: f"its answer needs {detail} segment files, more than can be open "
        "(LimitNOFILE)",
        CloseReason.CLOSED_FAILED: "an error of the processor, logged above",
        CloseReason.CLOSED_LISTENER: "its listener was removed",
        CloseReason.CLOSED_LEASE: "the lease of this broker has ended (mpbroker.remote.lease.ms)",
        CloseReason.CLOSED_EXCESS: "the least recently active, to make room for another (max.connections)",
    }
    if reason == CloseReason.CLOSED_SASL_FRAME_SIZE:
        limits = "outside 0..sasl.server.max.receive.size"
        return f"its frame claims {detail} bytes before authentication, {limits}{_guess(detail)}"
    if reason == CloseReason.CLOSED_RESET:
        return f"{os.strerror(detail)}"
    if reason == CloseReason.CLOSED_ROLE_DIED:
        return f"its request was with the {topology.name_of(detail)} process when that died"
    return texts[CloseReason(reason)]


def run(
    context: ProcessContext,
    inbox: socket.socket,
    listeners: dict[int, ListenerSecurity],
    served: tuple[Served, ...],
) -> int:
    """Run the processor and return its exit code. `listeners` has the TLS and SASL listeners by number."""
    return Processor(context, inbox, listeners, served).run()
