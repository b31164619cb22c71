"""Connections to the nodes of a cluster, over epoll (Kafka: NetworkClient, and Selector on its client side).

The client connects to a node on demand and negotiates versions; then the node is ready for requests. `poll`
does all reading, writing and waiting, ends connections that are late or idle, and completes requests. It
also refreshes the cluster's metadata, from the node with the least load.

Difference from Kafka: a send writes to the socket at once. Epoll waits for room in the socket only after an
incomplete write, which saves two system calls per request.
"""

from __future__ import annotations

import errno
import os
import random
import select
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from mpbroker.client.addresses import Address, resolve
from mpbroker.client.backoff import ExponentialBackoff, monotonic_ms
from mpbroker.client.config import UNIX, ClientConfig
from mpbroker.client.connection import ClientRequest, ClientResponse, Connection, NotConnected
from mpbroker.client.errors import (
    AdvertisedUnreachable,
    AuthenticationFailed,
    ClientError,
    ConnectionLost,
    InvalidReceive,
    RequestTimedOut,
    UnsupportedByBroker,
)
from mpbroker.client.mechanisms import mechanism
from mpbroker.client.metadata import Metadata, Node, bootstrap_nodes
from mpbroker.client.node_state import NodeState, Resolve
from mpbroker.client.sasl import SaslAuthenticator
from mpbroker.client.transport import PlaintextTransport, Transport
from mpbroker.protocol.wire import UnsupportedVersion

OS_DEFAULT = -1
# The longest wait of a poll.
POLL_MS_MAX = 300_000.0


class NetworkClient:
    """A client's connections, made on demand. Only `wakeup` may be called from another thread.

    `advice` is appended to the error if a server that the user named cannot be reached. The parameters after
    `advice` are for tests. Raises ClientConfigError.
    """

    def __init__(
        self,
        servers: Iterable[tuple[str, int]],
        config: ClientConfig,
        advice: str = "does the broker run there?",
        *,
        clock_ms: Callable[[], float] = monotonic_ms,
        resolve_host: Resolve | None = None,
        epoll: Callable[[], select.epoll] = select.epoll,
        uniform: Callable[[float, float], float] = random.uniform,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        servers = list(servers)
        self._config = config
        self._servers = servers
        self._advice = advice
        self._clock_ms = clock_ms
        self._choose = choose
        with_sockets = any(host.startswith(UNIX) for host, _ in servers)
        self._resolve = resolve_host or partial(resolve, with_sockets=with_sockets)
        if config.relay:
            self._resolve = lambda _host, _port: [Address(socket.AF_UNIX, config.relay)]
        self._reconnect = ExponentialBackoff(
            config.reconnect_backoff_ms, config.reconnect_backoff_max_ms, uniform
        )
        self._setup_timeout = ExponentialBackoff(
            config.socket_connection_setup_timeout_ms, config.socket_connection_setup_timeout_max_ms, uniform
        )
        retry = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, uniform)
        self.metadata = Metadata(servers, retry, config.metadata_max_age_ms)
        self._metadata_in_flight = False
        self._make_transport = _transport_maker(config)
        self._make_authenticator = _authenticator_maker(config)
        self._nodes: dict[int, NodeState] = {}
        self._by_fd: dict[int, NodeState] = {}
        # Responses that the next poll completes; connections append to this list.
        self._over: list[ClientResponse] = []
        # Something happened that a poll does not sleep on: a node became ready or was lost, or a wakeup.
        self._stirred = False
        self._epoll = epoll()
        self._wakeup_lock = threading.Lock()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wakeup, select.EPOLLIN)

    def ready(self, node: Node) -> bool:
        """Return whether a request may be sent now; begin to connect if there is no connection."""
        known = self._nodes.get(node.id)
        if known is None or known.connection is None:
            now_ms = self._clock_ms()
            if known is None or known.can_connect(now_ms):
                self._connect(node, now_ms)
        return self.is_ready(node.id)

    def is_ready(self, node_id: int) -> bool:
        """Return whether a request may be sent now. Unlike `ready`, do not begin to connect."""
        connection = self._nodes[node_id].connection if node_id in self._nodes else None
        return connection is not None and connection.is_ready(self._clock_ms())

    def send(self, request: ClientRequest) -> None:
        """Send a request; `poll` calls its `on_complete`. Raises RuntimeError if the node is not ready."""
        known = self._nodes.get(request.node)
        if known is None or known.connection is None:
            raise RuntimeError(f"node {request.node} is not ready for a request")
        try:
            self._drive(known, partial(known.connection.send, request))
        except UnsupportedVersion as error:
            unsupported = UnsupportedByBroker(f"{known.node.address}: {error}")
            self._over.append(ClientResponse(request, error=unsupported))

    def poll(self, timeout_ms: float) -> None:
        """Read and write for up to `timeout_ms`, then call `on_complete` of each finished request."""
        if timeout_ms < 0:
            raise ValueError("a timeout cannot be negative")
        now_ms = self._clock_ms()
        wait_ms = min(timeout_ms, self._update_metadata(now_ms), POLL_MS_MAX)
        self._wait(min([now_ms + wait_ms, *self._deadlines(now_ms)]))
        self._expire(self._clock_ms())
        over = [*self._over]
        self._over.clear()
        for response in over:
            response.request.on_complete(response)

    def least_loaded_node(self) -> Node | None:
        """Return the ready node with the fewest requests, else a connecting node, else a node to connect."""
        nodes = self.metadata.nodes()
        if not nodes:
            return None
        start = self._choose(len(nodes))
        nodes = [*nodes[start:], *nodes[:start]]
        if ready := [node for node in nodes if self.is_ready(node.id)]:
            return min(ready, key=lambda node: self.in_flight_count(node.id))
        known = {node.id: self._nodes[node.id] for node in nodes if node.id in self._nodes}
        for node in nodes:
            if node.id in known and known[node.id].is_connecting:
                return node
        now_ms = self._clock_ms()
        free = [node for node in nodes if node.id not in known or known[node.id].can_connect(now_ms)]
        tried = {node_id: state.last_attempt_ms for node_id, state in known.items()}
        return min(free, key=lambda node: tried.get(node.id, -1.0), default=None)

    def failure(self, node_id: int) -> ClientError | None:
        """Return the error of the node's last connection or attempt, None if it has not failed."""
        return self._nodes[node_id].failure if node_id in self._nodes else None

    def has_untried_address(self, node_id: int) -> bool:
        """Return whether the host has an address that was not tried since the last connection."""
        return node_id in self._nodes and self._nodes[node_id].has_untried_address

    def connection_delay_ms(self, node_id: int) -> float:
        """Return the milliseconds until the back-off after a failure is over."""
        return self._nodes[node_id].rest_ms(self._clock_ms()) if node_id in self._nodes else 0.0

    def in_flight_count(self, node_id: int | None = None) -> int:
        """Return the number of requests in flight to one node, or to all nodes."""
        nodes = self._nodes.values() if node_id is None else filter(None, [self._nodes.get(node_id)])
        return sum(len(node.connection.in_flight) for node in nodes if node.connection is not None)

    def wakeup(self) -> None:
        """End the wait of the present or next `poll`. Callable from any thread, also after `close`."""
        with self._wakeup_lock:
            if self._wakeup >= 0:
                os.eventfd_write(self._wakeup, 1)

    def close(self) -> None:
        """Close all connections; the client cannot be used afterwards."""
        for _, connection in self._connections():
            connection.close()
        self._by_fd.clear()
        self._epoll.close()
        with self._wakeup_lock:
            os.close(self._wakeup)
            self._wakeup = -1

    def _connect(self, node: Node, now_ms: float) -> None:
        known = self._nodes.get(node.id)
        if known is None or known.node.host != node.host:
            known = self._nodes[node.id] = NodeState(node, self._reconnect, self._setup_timeout)
        known.node = node
        try:
            sock, is_connected = self._begin_to_connect(known.next_address(self._resolve, now_ms))
        except OSError as error:
            self._lost(known, self._explained(known, NotConnected(*error.args)), now_ms)
            return
        host = "localhost" if node.host.startswith(UNIX) else node.host
        known.connection = Connection(
            sock,
            partial(self._make_transport, host, node.address),
            self._make_authenticator(),
            self._config,
            self._over.append,
        )
        known.connection.last_active_ms = now_ms
        self._by_fd[sock.fileno()] = known
        if is_connected:
            # Epoll will have no event.
            self._drive(known, known.connection.progress)

    def _begin_to_connect(self, address: Address) -> tuple[socket.socket, bool]:
        """Return a new socket and whether it is connected already. Raises OSError."""
        sock = socket.socket(address.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            _configure(sock, self._config)
            error = sock.connect_ex(address.sockaddr)
            if error not in (0, errno.EINPROGRESS):
                raise OSError(error, os.strerror(error))
            self._epoll.register(sock, select.EPOLLOUT)
        except BaseException:
            sock.close()
            raise
        return sock, error == 0

    def _drive(self, known: NodeState, step: Callable[[float], object]) -> None:
        """Run a step of a node's connection. A failure closes only this connection."""
        assert known.connection is not None
        now_ms = self._clock_ms()
        try:
            self._stirred |= bool(step(now_ms))
        except (AuthenticationFailed, InvalidReceive, OSError) as error:
            self._lost(known, self._explained(known, error), now_ms)
            return
        known.progressed()
        if (interest := known.connection.interest) != known.watched:
            self._epoll.modify(known.connection.fd, interest)
            known.watched = interest

    def _wait(self, until_ms: float) -> None:
        """Let connections progress until a request is complete, a node is ready or lost, or time is up."""
        self._stirred = False
        while True:
            left_ms = 0.0 if self._over or self._stirred else max(0.0, until_ms - self._clock_ms())
            events = self._epoll.poll(left_ms / 1000)
            for fd, _ in events:
                if fd == self._wakeup:
                    os.eventfd_read(fd)
                    self._stirred = True
                elif (known := self._by_fd.get(fd)) is not None and known.connection is not None:
                    self._drive(known, known.connection.progress)
            if not events or self._over or self._stirred or self._clock_ms() >= until_ms:
                return

    def _connections(self) -> Iterator[tuple[NodeState, Connection]]:
        for known in [*self._by_fd.values()]:
            assert known.connection is not None, "a lost connection has no descriptor"
            yield known, known.connection

    def _deadlines(self, now_ms: float) -> Iterator[float]:
        """Yield the times (ms) at which attempts or requests time out, and back-offs or throttles end."""
        for known, connection in self._connections():
            if not connection.established:
                yield known.setup_deadline_ms
            if (expiry_ms := connection.next_expiry_ms()) is not None:
                yield expiry_ms
            if connection.throttled_until_ms > now_ms:
                yield connection.throttled_until_ms
        for node_id in self.metadata.node_ids():
            if delay_ms := self.connection_delay_ms(node_id):
                yield now_ms + delay_ms

    def _expire(self, now_ms: float) -> None:
        """End the connections that are not made in time, do not answer in time, or are idle."""
        idle_ms = self._config.connections_max_idle_ms
        for known, connection in self._connections():
            lost = f"the connection to {known.node.address} was lost"
            expiry_ms = connection.next_expiry_ms()
            if not connection.established and now_ms >= known.setup_deadline_ms:
                setup_s = (known.setup_deadline_ms - known.last_attempt_ms) / 1000
                late = (
                    f"the connection was not set up within {setup_s:.2g} s "
                    "(socket.connection.setup.timeout.ms)"
                )
                self._lost(known, self._explained(known, NotConnected(late)), now_ms)
            elif expiry_ms is not None and now_ms >= expiry_ms:
                why = "no answer within the time given; is the broker jammed, or at its max.connections?"
                if not connection.frames:
                    why += " Or is it no Kafka broker?"
                self._lost(known, self._never_reached(known, f"{lost}: {why}"), now_ms, late_ms=now_ms)
            elif 0 <= idle_ms <= now_ms - connection.last_active_ms:
                self._lost(known, ConnectionLost(f"{lost}: idle for too long"), now_ms)

    def _lost(self, known: NodeState, failure: ClientError, now_ms: float, late_ms: float = -1.0) -> None:
        """Close a connection. Its requests due by `late_ms` fail as timed out, all others with `failure`."""
        connection = known.connection
        known.failed(failure, now_ms)
        self._stirred = True
        self.metadata.request_update()
        if connection is None:
            return
        del self._by_fd[connection.fd]
        self._epoll.unregister(connection.fd)
        connection.close()
        for entry in connection.in_flight:
            if entry.request is not None:
                timed_out = entry.deadline_ms <= late_ms
                error = _timed_out(known.node, entry.request) if timed_out else failure
                self._over.append(ClientResponse(entry.request, error=error))

    def _explained(self, known: NodeState, error: Exception) -> ClientError:
        """Return an error whose text names the failure, the place, and the remedy."""
        address = known.node.address
        reason = getattr(error, "strerror", None) or str(error)
        match error:
            case AuthenticationFailed():
                return AuthenticationFailed(f"authentication with {address} failed: {reason}")
            case InvalidReceive():
                advice = f"; {self._advertised()}" if self._is_advertised(known) else ""
                return InvalidReceive(f"cannot talk to {address}: {reason}{advice}")
            case NotConnected():
                advice = "" if self._is_advertised(known) else f"; {self._advice}"
                return self._never_reached(known, f"cannot connect to {address}: {reason}{advice}")
        text = f"the connection to {address} was lost: {reason}"
        # A listener that wants SASL answers ApiVersions and nothing else; one with TLS not even that.
        frames = known.connection.frames if known.connection is not None else 0
        if frames <= (0 if self._config.uses_sasl else 1) and "security.protocol" not in reason:
            protocol = self._config.security_protocol
            text += f"; security.protocol is {protocol}: does this listener want another?"
        return ConnectionLost(text)

    def _never_reached(self, known: NodeState, text: str) -> ConnectionLost:
        """Return ConnectionLost, or AdvertisedUnreachable if an advertised node was never ready."""
        if not self._is_advertised(known):
            return ConnectionLost(text)
        if known.was_ready or known.has_untried_address:
            return ConnectionLost(f"{text}; {self._advertised()}")
        return AdvertisedUnreachable(
            f"{text}; {self._advertised()}", retriable=self._config.retries_advertised
        )

    def _is_advertised(self, known: NodeState) -> bool:
        """Return whether the node's address came from a broker, not from the user."""
        return (known.node.host, known.node.port) not in self._servers

    def _advertised(self) -> str:
        given = " or ".join(node.address for node in bootstrap_nodes(self._servers))
        return (
            f"the broker at {given} advertises that address: set its advertised.listeners to an address "
            "that this host can reach"
        )

    def _update_metadata(self, now_ms: float) -> float:
        """Request metadata if that is due; return the milliseconds until the next call is needed."""
        if self._metadata_in_flight:
            return POLL_MS_MAX
        wait_ms = self.metadata.time_to_next_update_ms(now_ms)
        if wait_ms > 0:
            return wait_ms
        node = self.least_loaded_node()
        if node is None:
            # All rest after a failure; the end of the first rest ends the poll.
            if all(self.failure(node_id) for node_id in self.metadata.node_ids()):
                self.metadata.rebootstrap()
            return POLL_MS_MAX
        if not self.ready(node):
            return self._config.reconnect_backoff_ms if self.failure(node.id) else POLL_MS_MAX
        self._metadata_in_flight = True
        timeout_ms = self._config.request_timeout_ms
        self.send(ClientRequest(node.id, self.metadata.request(), timeout_ms, self._metadata_completed))
        return POLL_MS_MAX

    def _metadata_completed(self, response: ClientResponse) -> None:
        self._metadata_in_flight = False
        now_ms = self._clock_ms()
        if response.error is None:
            self.metadata.updated(response.body, now_ms)
            return
        self.metadata.failed(now_ms)
        if isinstance(response.error, UnsupportedByBroker):
            # A node without metadata is not a broker: the next attempt may find one.
            self._lost(
                self._nodes[response.request.node], InvalidReceive(f"cannot talk to {response.error}"), now_ms
            )


def _timed_out(node: Node, request: ClientRequest) -> RequestTimedOut:
    seconds = request.timeout_ms / 1000
    return RequestTimedOut(f"{node.address} did not answer within {seconds:g} s (request.timeout.ms)")


def _configure(sock: socket.socket, config: ClientConfig) -> None:
    """Set the socket's options, before it connects: only then does the receive buffer limit TCP's window."""
    if config.send_buffer_bytes != OS_DEFAULT:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.send_buffer_bytes)
    if config.receive_buffer_bytes != OS_DEFAULT:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.receive_buffer_bytes)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _transport_maker(config: ClientConfig) -> Callable[[str, str, socket.socket], Transport]:
    """Return a function that makes a transport from a node's host, address and connected socket."""
    if config.relay:
        from mpbroker.client.relay import logged_in

        return lambda _host, address, sock: logged_in(config, address, sock)
    if not config.uses_tls:
        return lambda _host, _address, sock: PlaintextTransport(sock)
    # ssl is a large module: only a client that uses TLS loads it.
    from mpbroker.client.tls import TlsTransport, client_context

    context = client_context(config)
    return lambda host, _address, sock: TlsTransport(context, host, sock)


def _authenticator_maker(config: ClientConfig) -> Callable[[], SaslAuthenticator | None]:
    if not config.uses_sasl:
        return lambda: None
    exchange = mechanism(
        config.sasl_mechanism, config.sasl_username, config.sasl_password, by_token=config.sasl_by_token
    )
    return partial(SaslAuthenticator, config.sasl_mechanism, exchange, config.client_id)
