"""One connection to a node and its requests in flight (Kafka: KafkaChannel, InFlightRequests).

A connection is made in four steps: TCP connects, TLS shakes hands, SASL authenticates, ApiVersions returns
the versions of the node. Then the connection takes requests: it writes one at a time, and up to
max.in.flight.requests.per.connection wait for a response. A node answers in the order of the requests. A
response therefore belongs to the oldest request; any other correlation id ends the connection.

Re-authentication (KIP-368) happens on the same connection, before the first request after it is due.
Responses to earlier requests may arrive meanwhile: only SASL's responses have reserved correlation ids.

No method waits, and times are parameters. NetworkClient calls `progress` when the socket is ready.
"""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mpbroker.client.config import ClientConfig
from mpbroker.client.errors import ClientError, InvalidReceive
from mpbroker.client.framing import Receive
from mpbroker.client.sasl import MIN_RESERVED_CORRELATION_ID, SaslAuthenticator, is_reserved
from mpbroker.client.transport import Transport
from mpbroker.client.versions import (
    KEYS,
    ApiVersionsTalk,
    NodeApiVersions,
    client_throttles,
    expects_response,
    names_topics_by_id,
)
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.headers import RequestHeader, decode_response_frame, encode_request_frame
from mpbroker.protocol.messages import ApiVersionsResponse, Message
from mpbroker.protocol.wire import Buffer, MalformedMessage

_READ, _WRITE = select.EPOLLIN | select.EPOLLRDHUP, select.EPOLLOUT


class NotConnected(OSError):
    """The connection could not be made."""


class EndOfStream(OSError):
    """The peer has closed the connection."""


@dataclass(frozen=True, slots=True, eq=False)
class ClientRequest:
    """A request to one node. `NetworkClient.poll` calls `on_complete` once, with a response or an error."""

    node: int
    body: Message
    timeout_ms: float
    on_complete: Callable[[ClientResponse], None]


class ClientResponse(NamedTuple):
    """The result of a request: a body or an error, or neither for a Produce request with acks=0."""

    request: ClientRequest
    body: Any = None
    error: ClientError | None = None


@dataclass(slots=True)
class InFlight:
    """A request in flight. `request` is None for the connection's own ApiVersions."""

    key: ApiKey
    version: int
    correlation_id: int
    deadline_ms: float
    request: ClientRequest | None
    expects_response: bool = True


class Connection:
    """A connection, used by one thread only. Methods raise AuthenticationFailed, InvalidReceive, OSError."""

    def __init__(
        self,
        sock: socket.socket,
        make_transport: Callable[[socket.socket], Transport],
        authenticator: SaslAuthenticator | None,
        config: ClientConfig,
        completed: Callable[[ClientResponse], None],
    ) -> None:
        self.fd = sock.fileno()
        # TLS and SASL are over. Re-authentication changes nothing about it.
        self.established = False
        # Known when the connection is ready for requests.
        self.versions: NodeApiVersions | None = None
        self.frames = 0
        self.throttled_until_ms = 0.0
        self.last_active_ms = 0.0
        # Oldest first.
        self.in_flight: deque[InFlight] = deque()
        self._socket = sock
        self._make_transport = make_transport
        self._transport: Transport | None = None
        self._authenticator = authenticator
        self._config = config
        self._completed = completed
        self._talk = ApiVersionsTalk()
        self._correlation_id = -1
        self._receive = Receive(config.receive_max_bytes, first=True)
        # The newest request while it is not written whole, and its frame until its first byte is written.
        self._sending: InFlight | None = None
        self._waiting: Sequence[Buffer] | None = None
        # The rest of the frame that is being written, a request's or the authenticator's.
        self._left: deque[memoryview] = deque()

    def is_ready(self, now_ms: float) -> bool:
        """Return whether `send` may be called.

        It may if all steps of connecting are done, the connection neither is throttled nor writes a request,
        and one more request may be in flight.
        """
        return (
            self.versions is not None
            and self._sending is None
            and self.throttled_until_ms <= now_ms
            and len(self.in_flight) < self._config.max_in_flight_requests_per_connection
        )

    @property
    def interest(self) -> int:
        """The epoll events that this connection waits for."""
        if self._transport is None:
            return _WRITE
        return _READ | (_WRITE if self._left or self._transport.wants_write else 0)

    def send(self, request: ClientRequest, now_ms: float) -> None:
        """Begin to write a request. Raises UnsupportedVersion, or RuntimeError if `is_ready` is False."""
        if self.versions is None or not self.is_ready(now_ms):
            raise RuntimeError(f"node {request.node} is not ready for a request")
        key = KEYS[type(request.body)]
        version = self.versions.usable(key, by_id=names_topics_by_id(request.body))
        self._queue(key, version, request.body, now_ms + request.timeout_ms, request)
        self.last_active_ms = now_ms
        if self._authenticator is not None:
            self._authenticator.restart_if_due(now_ms)
        self._write()

    def progress(self, now_ms: float) -> bool:
        """Read and write what the socket allows; return whether the connection may have become ready."""
        sending, versions = self._sending, self.versions
        self.last_active_ms = now_ms
        if self._transport is None:
            self._transport = self._connected()
        if not self._transport.ready and not self._transport.handshake():
            return False
        self._read(self._transport, now_ms)
        if not self.established and (self._authenticator is None or self._authenticator.complete):
            self.established = True
            self._ask_versions(now_ms)
        self._write()
        return self._sending is not sending or self.versions is not versions

    def next_expiry_ms(self) -> float | None:
        """Return the time (ms) at which the next request in flight times out, None if none is in flight."""
        return min([entry.deadline_ms for entry in self.in_flight], default=None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self._socket.close()

    def _connected(self) -> Transport:
        if error := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise NotConnected(error, os.strerror(error))
        return self._make_transport(self._socket)

    def _ask_versions(self, now_ms: float) -> None:
        version, body = self._talk.request()
        self._queue(ApiKey.API_VERSIONS, version, body, now_ms + self._config.request_timeout_ms)

    def _queue(
        self,
        key: ApiKey,
        version: int,
        body: Message,
        deadline_ms: float,
        request: ClientRequest | None = None,
    ) -> None:
        self._correlation_id = (self._correlation_id + 1) % MIN_RESERVED_CORRELATION_ID
        header = RequestHeader(key, version, self._correlation_id, self._config.client_id)
        self._waiting = encode_request_frame(header, body)
        self._sending = InFlight(
            key, version, self._correlation_id, deadline_ms, request, expects_response(body)
        )
        self.in_flight.append(self._sending)

    def _read(self, transport: Transport, now_ms: float) -> None:
        while True:
            room = self._receive.room()
            count = transport.receive_into(room)
            if count is None:
                return
            if count == 0:
                raise EndOfStream("closed by the broker")
            frame = self._receive.received(count)
            if frame is not None:
                self.frames += 1
                self._receive = Receive(self._config.receive_max_bytes)
                self._received(frame, now_ms)
            if not transport.buffers and (frame is not None or count < len(room)):
                # The socket has nothing more, or epoll will report it.
                return

    def _received(self, frame: bytearray, now_ms: float) -> None:
        authenticator = self._authenticator
        if authenticator is None or authenticator.complete or (self.in_flight and not is_reserved(frame)):
            self._answered(frame, now_ms)
        else:
            authenticator.receive(frame)

    def _answered(self, frame: bytearray, now_ms: float) -> None:
        """Complete the oldest request with its response. Raises InvalidReceive for any other frame."""
        entry = self.in_flight[0] if self.in_flight else None
        if entry is None or entry is self._sending or not entry.expects_response:
            raise InvalidReceive("it sent a response without a request")
        try:
            answered, body = decode_response_frame(entry.key, entry.version, frame)
        except MalformedMessage as error:
            what = f"it sent a {entry.key.name} v{entry.version} that is malformed: {error}"
            raise InvalidReceive(what) from error
        if answered != entry.correlation_id:
            raise InvalidReceive(f"it answered request {answered} instead of {entry.correlation_id}")
        self.in_flight.popleft()
        self._throttle(entry, body, now_ms)
        if entry.request is None:
            self._versions_answered(body, now_ms)
        else:
            self._completed(ClientResponse(entry.request, body))

    def _versions_answered(self, body: ApiVersionsResponse, now_ms: float) -> None:
        if problem := self._talk.received(body):
            raise InvalidReceive(problem)
        self.versions = self._talk.versions
        if self.versions is None:
            self._ask_versions(now_ms)

    def _throttle(self, entry: InFlight, body: Any, now_ms: float) -> None:
        """Send nothing during a response's throttle time (KIP-219), and extend other requests' timeouts."""
        throttle_ms: int = getattr(body, "throttle_time_ms", 0)
        if throttle_ms > 0 and client_throttles(entry.key, entry.version):
            self.throttled_until_ms = max(self.throttled_until_ms, now_ms + throttle_ms)
            for other in self.in_flight:
                other.deadline_ms += throttle_ms

    def _write(self) -> None:
        """Write as many bytes as the socket takes now."""
        assert self._transport is not None, "nothing is sent before the connection is made"
        while self._left or self._next_frame():
            count = self._transport.send(list(self._left))
            if count is None:
                return
            self._drop(count)
            if not self._left and self._waiting is None and self._sending is not None:
                self._sent(self._sending)

    def _next_frame(self) -> bool:
        """Queue a frame to write; return False if none is due. During the login only its frames are due."""
        frame = None
        if self._authenticator is not None and not self._authenticator.complete:
            frame = self._authenticator.next_request()
        elif self._waiting is not None:
            frame, self._waiting = self._waiting, None
        self._left.extend(memoryview(segment).cast("B") for segment in frame or () if len(segment))
        return frame is not None

    def _drop(self, count: int) -> None:
        """Remove the first `count` bytes, which were written, from the bytes to write."""
        while count:
            first = self._left[0]
            if count < len(first):
                self._left[0] = first[count:]
                return
            count -= len(first)
            self._left.popleft()

    def _sent(self, entry: InFlight) -> None:
        """Record that a request was written. Complete the request if it expects no response."""
        self._sending = None
        if not entry.expects_response:
            self.in_flight.pop()
            if entry.request is not None:
                self._completed(ClientResponse(entry.request))
