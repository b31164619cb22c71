"""The acceptor process: accepts on the listeners of its plane and hands sockets to processors round robin
(Kafka: Acceptor). `turn.pyx` does so without Python while no limit is near.

A connection waits in this process while max.connections leaves no slot for it (connection_quotas), while a
rate limit delays it, or while no processor has room. Meanwhile its listener accepts nothing, and the other
listeners are served. A connection that exceeds the rate of its address is parked: kept open for a while, but
not served. After a hand-over the acceptor closes its own descriptor and only counts the connection.
"""

from __future__ import annotations

import errno
import heapq
import logging
import math
import os
import select
import socket
import time
from dataclasses import dataclass
from typing import Any

from mpbroker.config.listeners import Listener
from mpbroker.ipc import topology
from mpbroker.ipc.listeners import ListenerCount, ListenerState
from mpbroker.ipc.process import IDLE_SLEEP_MS, MAX_SLEEP_MS, ExitCode, ProcessContext
from mpbroker.network import handover
from mpbroker.network.acceptor.connection_counts import ConnectionCounts
from mpbroker.network.acceptor.connection_limits import (
    AddressRates,
    change_quotas,
    limit_key,
    limits_of,
    quotas_of,
)
from mpbroker.network.acceptor.connection_quotas import Admission
from mpbroker.network.acceptor.limit_notices import LimitNotices
from mpbroker.network.acceptor.listener_orders import AddListener, Orders
from mpbroker.network.acceptor.turn import AcceptorTurn

# Errors of accept() that may pass after a pause; the connection stays in the backlog.
OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
# The kernel limits the descriptors watched for a user (epoll(7)), over all the user's processes.
NO_WATCH_LEFT = {errno.ENOSPC, errno.ENOMEM}
# Errors of sending a mark: the processor's queue is full, or too many sockets are on their way.
NO_ROOM_FOR_NOW = {errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM}
ACCEPT_BACKOFF_MS = 200
ACCEPTS_PER_WAKEUP = 256
RATES_EVERY_MS = 1000


@dataclass
class _Held:
    """A connection that was accepted and is not handed over yet."""

    connection: socket.socket
    peer: Any
    address: bytes
    since_ns: int  # its wait before then is counted
    ready_at_ms: float
    counted: bool = False
    waits_for_slot: bool = False


class _Open:
    def __init__(self, number: int, listener: Listener, sock: socket.socket, context: ProcessContext) -> None:
        self.number = number
        self.listener = listener
        self.sock = sock
        self.counts = context.memory.listener_counts(number)
        self.held: _Held | None = None
        self.rest_until_ms: float | None = None  # after an error of accept() or epoll_ctl()
        self.is_watched = False
        sock.setblocking(False)

    @property
    def may_accept(self) -> bool:
        return self.held is None and self.rest_until_ms is None


class Acceptor:
    """The acceptor of the data plane or of the control plane.

    `served` has (number, listener, listening socket) of each listener. `handovers` has the socket to each
    processor, by role. `orders` receives the supervisor's orders to add or remove a listener.
    """

    def __init__(
        self,
        context: ProcessContext,
        served: list[tuple[int, Listener, socket.socket]],
        handovers: dict[int, socket.socket],
        orders: Orders,
    ) -> None:
        self.context = context
        self.log = context.log
        self.notices = LimitNotices(context.log)
        self.me = topology.ACCEPTORS.index(context.index)
        self.handovers = handovers
        self.orders = orders
        self.ledgers = {role: context.memory.connections(role) for role in topology.PROCESSORS}
        self.quotas = quotas_of(context.config)
        self.counts = ConnectionCounts(self.ledgers, self.quotas)
        self.address_rates = AddressRates(context, self.quotas)
        self.processors: list[int] = []
        self.lives = dict.fromkeys(topology.PROCESSORS, 0)
        self.open: dict[int, _Open] = {}  # by descriptor
        self.parked: list[tuple[float, int, socket.socket]] = []
        self.parked_count = 0
        self.is_waited_for = False
        self.next_rates_ms = 0.0
        self.epoll = select.epoll()
        for fd in (context.bell.fd, orders.fileno()):
            self.epoll.register(fd, select.EPOLLIN)
        self.turn = AcceptorTurn(
            context.memory,
            context.index,
            self.epoll.fileno(),
            [*context.order_words(), self.address_rates.word],
            context.config.socket_send_buffer_bytes,
        )
        for sock in handovers.values():
            sock.setblocking(False)
        for number, listener, sock in served:
            self._add(number, listener, sock)

    # ---- the loop

    def run(self) -> int:
        self._look_at_processors()
        self.address_rates.follow()
        self.context.ready()
        while not self.context.must_stop():
            self._obey_order()
            self._catch_up()
            self._wait()
        self._stop()
        self.context.stopped()
        return ExitCode.STOPPED

    def _obey_order(self) -> None:
        """If the supervisor has given an order, apply changed settings and acknowledge the order."""
        order = self.context.pending_order()
        if order is None:
            return
        if order.settings_changed:
            self._follow_settings()
        self.context.acknowledge_order()

    def _catch_up(self) -> None:
        """React to everything that has changed while this process slept."""
        self._look_at_processors()
        self._publish_waiting()
        # Read `owed` before the ledgers' changes, which then include all connections closed on request.
        owed = sum(ledger.evictions_owed() for ledger in self.ledgers.values())
        self.counts.catch_up()
        now_ms = time.monotonic() * 1000
        for there in list(self.open.values()):
            if there.held is not None:
                self._retry(there, there.held, now_ms)
            elif there.rest_until_ms is not None and there.rest_until_ms <= now_ms:
                there.rest_until_ms = None
                self._watch(there)
        while self.parked and self.parked[0][0] < now_ms:
            heapq.heappop(self.parked)[2].close()
        self._ask_evictions(owed)
        self._publish_counts(now_ms)
        self.notices.follow(now_ms)

    def _wait(self) -> None:
        """Sleep, accept connections that need no decision of Python, and then decide on the others."""
        self.turn.look_at_words()
        self.address_rates.follow()
        for there in self.open.values():
            self.turn.allow(there.sock.fileno(), self.quotas.unasked(there.number))
        quiet = self.context.pending_order() is None and not self.context.must_stop()
        ready = self.turn.serve(math.ceil(self._timeout_ms()) if quiet else 0)
        self._count_handed()
        # Read it before accepting: a client that knows of a limit and then connects must meet it.
        self.address_rates.follow()
        self._take_failures()
        for fd in ready:
            if fd == self.orders.fileno():
                self._take_listener_changes()
            elif fd in self.open:
                self._accept(self.open[fd])

    def _count_handed(self) -> None:
        """Count the connections that the turn has handed over. Call it before any limit is checked."""
        handed = self.turn.handed()
        now_ms = time.monotonic() * 1000
        for role, ticket, number, address in handed:
            self.quotas.let_in(number, address, now_ms)
            self.counts.handed(role, ticket, number, address)

    def _take_failures(self) -> None:
        by_number = {there.number: there for there in self.open.values()}
        if (lost := self.turn.lost()) is not None:
            self._log_lost(by_number[lost[0]], lost[1])
        if (unsent := self.turn.unsent()) is not None:
            connection = socket.socket(fileno=unsent[1])
            try:
                peer = connection.getpeername()
            except OSError as error:
                connection.close()
                self._log_lost(by_number[unsent[0]], error.errno or 0)
            else:
                self._admit(by_number[unsent[0]], connection, peer)

    def _log_lost(self, there: _Open, code: int) -> None:
        there.counts.add(ListenerCount.ACCEPT_ERRORS)
        why = os.strerror(code)
        self.log.debug("a connection on %s was lost before it was accepted: %s", there.listener.name, why)

    def _timeout_ms(self) -> float:
        due = [self.parked[0][0]] if self.parked else []
        for there in self.open.values():
            if there.rest_until_ms is not None:
                due.append(there.rest_until_ms)
            if there.held is not None and not there.held.counted:
                due.append(there.held.ready_at_ms)
        now_ms = time.monotonic() * 1000
        # A connection that is due and still held waits for a slot or a processor, and a processor rings.
        soon = [at_ms - now_ms for at_ms in due if at_ms > now_ms]
        return min([MAX_SLEEP_MS if due else IDLE_SLEEP_MS, *soon]) + (1 if soon else 0)

    def _publish_waiting(self) -> None:
        """Publish whether any connection waits in this process.

        While some wait, processors ring this acceptor after they have taken or closed a connection. Look for
        room after this call: processors did not ring for room that they made before it.
        """
        waits = any(there.held is not None for there in self.open.values())
        if waits != self.is_waited_for:
            self.is_waited_for = waits
            for ledger in self.ledgers.values():
                ledger.wait(self.me, waits)

    def _stop(self) -> None:
        """Close the connections that were not handed over. The supervisor's sockets keep the backlog."""
        for there in self.open.values():
            if there.held is not None:
                there.held.connection.close()
        self._close_parked()
        for ledger in self.ledgers.values():
            ledger.wait(self.me, False)

    # ---- processors

    def _look_at_processors(self) -> None:
        """Find the running processors, and send a mark (a message without a connection) to each new one.

        A processor that takes the mark has opened or refused all connections sent before. Connections that
        a killed acceptor has noted in the ledger, but not sent, are then known to be lost.
        """
        for role in topology.PROCESSORS:
            life = self.context.incarnation_of(role)
            if life == self.lives[role]:
                continue
            self.lives[role] = life
            if life and role in self.handovers:
                self._send_mark(role)
            elif life:
                self.counts.recount_when_taken(role, self.ledgers[role].handed)
            self.processors = [r for r in self.handovers if self.lives[r]]
            self.turn.set_processors([(r, self.handovers[r].fileno()) for r in self.processors])

    def _send_mark(self, role: int) -> None:
        ledger = self.ledgers[role]
        ticket = ledger.mark()
        try:
            self.handovers[role].send(handover.pack(ticket, handover.MARK, b""))
        except OSError as error:
            if error.errno not in NO_ROOM_FOR_NOW and not isinstance(error, ConnectionError):
                raise
            ledger.take_back(ticket)
            self.lives[role] = 0  # try again next time
            return
        self.counts.recount_when_taken(role, ticket)

    def _hand_over(self, connection: socket.socket, number: int, address: bytes) -> bool:
        """Hand the connection to the next processor that has room. Return False if none has room."""
        found = self.turn.hand_over(connection.fileno(), number, address)
        if found is None:
            return False
        self.counts.handed(*found, number, address)
        connection.close()
        return True

    def _ask_evictions(self, owed: int) -> None:
        """Ask processors to close surplus connections. `owed`: how many they have been asked for already."""
        surplus = self.quotas.surplus() - owed
        if surplus <= 0 or self.context.index != topology.ACCEPTOR:
            return
        for role in sorted(self.processors, key=lambda r: -len(self.counts.by_processor(r))):
            known = self.counts.by_processor(role).values()
            asked = min(surplus, sum(not self.quotas.is_protected(number) for number, _ in known))
            if asked > 0:
                self.ledgers[role].ask_evictions(asked)
                self.context.ring(role)
                surplus -= asked

    # ---- connections

    def _accept(self, there: _Open) -> None:
        """Accept the connections in the backlog, until one of them has to wait in this process."""
        for _ in range(ACCEPTS_PER_WAKEUP):
            if not there.may_accept:
                return
            try:
                connection, peer = there.sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in OUT_OF_RESOURCES and self._close_parked():
                    continue
                if error.errno in OUT_OF_RESOURCES:
                    there.counts.add(ListenerCount.ACCEPT_ERRORS)
                    self._rest(there, error, "the limit of open files (LimitNOFILE)")
                    self._look_away(there)
                    return
                self._log_lost(there, error.errno or 0)
                continue
            self._admit(there, connection, peer)

    def _close_parked(self) -> bool:
        """Close the parked connections, since new ones need descriptors. Return whether there were any."""
        parked, self.parked = self.parked, []
        for _, _, sock in parked:
            sock.close()
        return bool(parked)

    def _rest(self, there: _Open, error: OSError, limit: str) -> None:
        self.log.error(
            "cannot accept on %s: %s; trying again in %d ms. Raise %s",
            there.listener,
            error.strerror,
            ACCEPT_BACKOFF_MS,
            limit,
        )
        there.rest_until_ms = time.monotonic() * 1000 + ACCEPT_BACKOFF_MS

    def _watch(self, there: _Open) -> None:
        """Watch the listening socket by epoll, or try again after a pause if the kernel has no watch left."""
        try:
            if there.is_watched:
                self.epoll.modify(there.sock.fileno(), select.EPOLLIN)
            else:
                self.epoll.register(there.sock.fileno(), select.EPOLLIN)
        except OSError as error:
            if error.errno not in NO_WATCH_LEFT:
                raise
            there.counts.add(ListenerCount.ACCEPT_ERRORS)
            self._rest(there, error, "fs.epoll.max_user_watches (sysctl)")
        else:
            there.is_watched = True

    def _look_away(self, there: _Open) -> None:
        """Stop accepting for a while. Keep the epoll watch, since the kernel may refuse a new one."""
        self.epoll.modify(there.sock.fileno(), 0)

    def _admit(self, there: _Open, connection: socket.socket, peer: Any) -> None:
        now_ns = time.monotonic_ns()
        now_ms = now_ns / 1e6
        address = handover.packed_address(there.sock.family, peer)
        delay_ms = self.quotas.delay_ms(there.number, now_ms)
        if delay_ms:
            there.counts.add(ListenerCount.THROTTLED)
            there.counts.add(ListenerCount.THROTTLED_MS, delay_ms)
            self._log_rate(there, now_ms, delay_ms)
        held = _Held(connection, peer, address, now_ns, now_ms + delay_ms)
        if not self._advance(there, held, now_ms):
            self.log.debug("connections on %s wait for a slot, their rate or a processor", there.listener)
            there.held = held
            self._look_away(there)
            self._publish_waiting()

    def _retry(self, there: _Open, held: _Held, now_ms: float) -> None:
        now_ns = time.monotonic_ns()
        there.counts.add(ListenerCount.BLOCKED_NS, now_ns - held.since_ns)
        held.since_ns = now_ns
        if self._advance(there, held, now_ms):
            there.held = None
            self._watch(there)

    def _advance(self, there: _Open, held: _Held, now_ms: float) -> bool:
        """Hand over, close or park a held connection. Return False if it must still wait in this process."""
        if not held.counted:
            if held.ready_at_ms > now_ms:
                return False
            if not self.quotas.has_slot(there.number):
                self.counts.catch_up()
                if not self.quotas.has_slot(there.number):
                    self._log_slots(there, held, now_ms)
                    return False
            if not self._is_admitted(there, held, now_ms):
                return True
            held.counted = True
        if not self._hand_over(held.connection, there.number, held.address):
            return False
        there.counts.add(ListenerCount.ACCEPTED)
        return True

    def _is_admitted(self, there: _Open, held: _Held, now_ms: float) -> bool:
        if self.quotas.has_too_many(held.address):
            # Some of them may have been closed meanwhile.
            self.counts.catch_up()
        admission, throttle_ms = self.quotas.admit(there.number, held.address, now_ms)
        if admission is Admission.COUNTED:
            return self._is_configured(there, held)
        if admission is Admission.TOO_MANY:
            there.counts.add(ListenerCount.REFUSED_PER_IP)
            self.notices.report(
                now_ms,
                logging.INFO,
                there.listener.name,
                "max.connections.per.ip",
                "a connection of %s on %s was refused: %s has %d already (max.connections.per.ip; "
                "max.connections.per.ip.overrides allows one address more)",
                handover.peer_text(held.address, held.peer),
                there.listener.name,
                handover.address_text(held.address),
                self.quotas.by_ip[held.address],
            )
            held.connection.close()
            return False
        there.counts.add(ListenerCount.THROTTLED_IP)
        there.counts.add(ListenerCount.THROTTLED_IP_MS, throttle_ms)
        self.notices.report(
            now_ms,
            logging.INFO,
            there.listener.name,
            "connection_creation_rate",
            "a connection of %s on %s is closed in %d ms: more than %g a second come from that address "
            "(mpbroker quota list: connection_creation_rate)",
            handover.peer_text(held.address, held.peer),
            there.listener.name,
            throttle_ms,
            self.quotas.ip_rate(held.address),
        )
        self.parked_count += 1
        heapq.heappush(self.parked, (now_ms + throttle_ms, self.parked_count, held.connection))
        return False

    def _log_rate(self, there: _Open, now_ms: float, delay_ms: int) -> None:
        bound, is_own = self.quotas.exceeded_rate(there.number, now_ms)
        key, name = "max.connection.creation.rate", there.listener.name
        limit = limit_key(self.context.config, name, key) if is_own else key
        text = (
            "a connection on %s waits %d ms: more than %g a second come (%s); raise it, or have clients "
            "keep theirs"
        )
        self.notices.report(now_ms, logging.INFO, name, limit, text, name, delay_ms, bound, limit)

    def _log_slots(self, there: _Open, held: _Held, now_ms: float) -> None:
        """Log that a held connection waits for a slot (max.connections), once for each connection."""
        if held.waits_for_slot:
            return
        held.waits_for_slot = True
        key, name, number = "max.connections", there.listener.name, there.number
        if self.quotas.is_full(number):
            limit, who = limit_key(self.context.config, name, key), name
            count = self.quotas.by_listener[number]
        else:
            limit, who, count = key, "the broker", self.quotas.total
        text = "connections on %s wait: %s has %d, all that %s allows; raise it, or have clients close theirs"
        self.notices.report(now_ms, logging.WARNING, name, limit, text, name, who, count, limit)

    def _is_configured(self, there: _Open, held: _Held) -> bool:
        try:
            self._configure(there, held.connection)
        except OSError as error:
            self.log.debug(
                "a connection of %s on %s ended before it was served: %s",
                handover.peer_text(held.address, held.peer),
                there.listener.name,
                error.strerror,
            )
            held.connection.close()
            self.quotas.remove(there.number, held.address)
            return False
        return True

    def _configure(self, there: _Open, connection: socket.socket) -> None:
        connection.setblocking(False)
        if there.sock.family == socket.AF_UNIX:
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self.context.config.socket_send_buffer_bytes != -1:
            connection.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDBUF, self.context.config.socket_send_buffer_bytes
            )

    # ---- listeners

    def _add(self, number: int, listener: Listener, sock: socket.socket) -> None:
        there = self.open[sock.fileno()] = _Open(number, listener, sock, self.context)
        limits, is_inter_broker = limits_of(self.context.config, listener.name)
        self.quotas.add_listener(number, limits, inter_broker=is_inter_broker)
        there.counts.introduce(listener.name, control_plane=topology.is_control_plane(self.context.index))
        there.counts.set(ListenerCount.STATE, ListenerState.ACCEPTING)
        self.turn.add_listener(sock.fileno(), number, sock.family == socket.AF_UNIX)
        self._watch(there)

    def _take_listener_changes(self) -> None:
        """Add and remove listeners as the supervisor has ordered."""
        while (order := self.orders.receive()) is not None:
            if isinstance(order, AddListener):
                self._add(order.number, order.listener, order.sock)
            else:
                self._remove(order.number)
        self.context.entitle_by_listeners()
        self.context.ring(topology.SUPERVISOR)

    def _follow_settings(self) -> None:
        """Apply changed settings. `_catch_up` then applies new limits to connections."""
        self.context.follow_settings()
        config = self.context.config
        change_quotas(self.quotas, config)
        self.turn.configure(config.socket_send_buffer_bytes)
        for there in self.open.values():
            self.quotas.change_listener(there.number, limits_of(config, there.listener.name)[0])

    def _remove(self, number: int) -> None:
        """Close a listener's socket, and its connection that was not handed over, if there is one."""
        for there in [there for there in self.open.values() if there.number == number]:
            self.quotas.remove_listener(number)
            if there.is_watched:
                self.epoll.unregister(there.sock.fileno())
            if there.held is not None:
                there.held.connection.close()
                if there.held.counted:
                    self.quotas.remove(number, there.held.address)
            self.turn.remove_listener(there.sock.fileno())
            del self.open[there.sock.fileno()]
            there.sock.close()
            there.counts.set(ListenerCount.STATE, ListenerState.REMOVED)

    # ---- what others see

    def _publish_counts(self, now_ms: float) -> None:
        for there in self.open.values():
            there.counts.set(ListenerCount.OPEN, self.quotas.by_listener[there.number])
        if now_ms >= self.next_rates_ms:
            self.next_rates_ms = now_ms + RATES_EVERY_MS
            of_broker, of_listeners = self.quotas.rates(now_ms)
            for there in self.open.values():
                there.counts.set(ListenerCount.RATE_MILLI, round(of_listeners[there.number] * 1000))
                there.counts.set(ListenerCount.BROKER_RATE_MILLI, round(of_broker * 1000))


def run(
    context: ProcessContext,
    served: list[tuple[int, Listener, socket.socket]],
    handovers: dict[int, socket.socket],
    orders: Orders,
) -> int:
    return Acceptor(context, served, handovers, orders).run()
