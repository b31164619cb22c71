"""Requests to nodes and their responses (Kafka: org.apache.kafka.clients.NetworkClient).

A node that is asked for is connected to, its versions are negotiated, then it is ready. Nothing here waits
but the selector within `poll`, and the clock is given: the whole state machine runs under that of a test.
The cluster's metadata is kept fresh beside the user's requests, by whichever node has the least to do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from mpbroker.client.channel import Channel
from mpbroker.client.clock import monotonic_ms
from mpbroker.client.config import ClientConfig
from mpbroker.client.connection_states import ConnectionStates
from mpbroker.client.in_flight import InFlight, InFlightRequests
from mpbroker.client.metadata import Metadata, Node
from mpbroker.client.sasl import MIN_RESERVED_CORRELATION_ID
from mpbroker.client.selector import Address, ChannelState, Disconnect, SocketOptions
from mpbroker.client.versions import (
    KEYS,
    ApiVersionsTalk,
    client_throttles,
    expects_response,
    names_topics_by_id,
)
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.headers import RequestHeader, decode_response_frame, encode_request_frame
from mpbroker.protocol.messages import Message
from mpbroker.protocol.wire import Buffer, MalformedMessage, UnsupportedVersion

MAX_CORRELATION_ID = MIN_RESERVED_CORRELATION_ID - 1
# A poll returns after this at the latest, whatever it was told: nothing here is known further ahead.
POLL_MS_MAX = 300_000.0
NO_ANSWER = "no answer within the time given"


class Selectable(Protocol):
    """What the client needs of a selector (Kafka: Selectable)."""

    completed_sends: list[int]
    completed_receives: dict[int, bytearray]
    connected: list[int]
    disconnected: dict[int, Disconnect]

    def connect(self, channel: Channel, address: Address, options: SocketOptions) -> None: ...
    def send(self, channel_id: int, segments: Sequence[Buffer]) -> None: ...
    def poll(self, timeout_ms: float) -> None: ...
    def is_ready(self, channel_id: int) -> bool: ...
    def close(self, channel_id: int) -> None: ...
    def close_all(self) -> None: ...
    def wakeup(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class ClientRequest:
    """A question to one node; `on_complete` is called within the poll in which it is over."""

    node: int
    body: Message
    timeout_ms: float
    on_complete: Callable[[ClientResponse], None] | None = None


class ClientResponse(NamedTuple):
    """How a request ended: with a body, with a lost connection, or because the node lacks its version.

    A body of None without either is the end of a request that has no response.
    """

    request: ClientRequest
    body: Any = None
    disconnect: Disconnect | None = None
    timed_out: bool = False
    unsupported: str | None = None


class NetworkClient:
    """Of one thread. `make_channel` knows the security protocol; `selector` does the I/O."""

    def __init__(
        self,
        selector: Selectable,
        make_channel: Callable[[int, str, int], Channel],
        states: ConnectionStates,
        metadata: Metadata,
        config: ClientConfig,
        clock_ms: Callable[[], float] = monotonic_ms,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._selector = selector
        self._make_channel = make_channel
        self._states = states
        self.metadata = metadata
        self._config = config
        self._clock_ms = clock_ms
        self._choose = choose
        self._in_flight = InFlightRequests(config.max_in_flight_requests_per_connection)
        self._need_versions: dict[int, ApiVersionsTalk] = {}
        self._aborted: list[ClientResponse] = []
        self._correlation_id = 0
        self._metadata_in_flight = False

    def ready(self, node: Node) -> bool:
        """Whether a request may be sent now; begins to connect if that is what lacks."""
        if self.is_ready(node.id):
            return True
        now_ms = self._clock_ms()
        if self._states.can_connect(node.id, now_ms):
            self._connect(node, now_ms)
        return False

    def is_ready(self, node_id: int) -> bool:
        """Versions known, not throttled, authenticated, and room for one more request."""
        return (
            self._states.is_ready(node_id, self._clock_ms())
            and self._selector.is_ready(node_id)
            and self._in_flight.can_send_more(node_id)
        )

    def send(self, request: ClientRequest) -> None:
        """Raises RuntimeError if the node is not ready."""
        if not self.is_ready(request.node):
            raise RuntimeError(f"node {request.node} is not ready for a request")
        key = KEYS[type(request.body)]
        versions = self._states.versions(request.node)
        assert versions is not None, "a ready node has versions"
        try:
            version = versions.usable(key, by_id=names_topics_by_id(request.body))
        except UnsupportedVersion as error:
            self._aborted.append(ClientResponse(request, unsupported=str(error)))
            return
        self._send(
            request.node,
            request.body,
            InFlight(
                key,
                version,
                self._next_correlation_id(),
                expects_response(request.body),
                self._clock_ms(),
                request.timeout_ms,
                request,
            ),
        )

    def poll(self, timeout_ms: float) -> list[ClientResponse]:
        """Reads, writes, and waits so long for something to happen; what is over, in that order."""
        now_ms = self._clock_ms()
        responses, self._aborted = self._aborted, []
        metadata_ms = self._update_metadata(now_ms)
        deadlines = [now_ms + timeout_ms, now_ms + metadata_ms, now_ms + POLL_MS_MAX]
        for deadline in (
            self._in_flight.next_expiry_ms(),
            self._states.next_deadline_ms(self.metadata.node_ids(), now_ms),
        ):
            if deadline is not None:
                deadlines.append(deadline)
        self._selector.poll(0 if responses else max(0.0, min(deadlines) - now_ms))
        now_ms = self._clock_ms()
        self._completed_sends(responses)
        self._completed_receives(responses, now_ms)
        for node_id, disconnect in [*self._selector.disconnected.items()]:
            self._disconnected(node_id, disconnect, responses, now_ms)
        for node_id in self._selector.connected:
            self._need_versions[node_id] = ApiVersionsTalk()
        self._ask_versions(now_ms)
        self._expire(responses, now_ms)
        for response in responses:
            if response.request.on_complete is not None:
                response.request.on_complete(response)
        return responses

    def least_loaded_node(self) -> Node | None:
        """The node that answers soonest: ready and idle, ready, about to be, or free to be connected to."""
        nodes = self.metadata.nodes()
        if not nodes:
            return None
        start = self._choose(len(nodes))
        nodes = [*nodes[start:], *nodes[:start]]
        now_ms = self._clock_ms()
        ready = [node for node in nodes if self.is_ready(node.id)]
        if ready:
            return min(ready, key=lambda node: self._in_flight.count(node.id))
        for node in nodes:
            if self._states.is_connecting(node.id):
                return node
        free = [node for node in nodes if self._states.can_connect(node.id, now_ms)]
        return min(free, key=lambda node: self._states.last_attempt_ms(node.id), default=None)

    def failure(self, node_id: int) -> Disconnect | None:
        """Why the node is not connected, if an attempt or a connection has failed."""
        return self._states.failure(node_id)

    def has_untried_address(self, node_id: int) -> bool:
        """Whether the host has an address that was not tried since the last connection."""
        return self._states.has_untried_address(node_id)

    def connection_delay_ms(self, node_id: int) -> float:
        """How long the node still rests after a failure."""
        return self._states.connection_delay_ms(node_id, self._clock_ms())

    def in_flight_count(self, node_id: int | None = None) -> int:
        return self._in_flight.count(node_id)

    def disconnect(self, node_id: int, reason: str) -> None:
        """Ends the connection, if there is one; the next poll tells of what was in flight."""
        if not self._states.is_idle(node_id):
            failure = Disconnect(ChannelState.READY, reason, 1)
            self._close(node_id, failure, self._aborted, self._clock_ms())

    def wakeup(self) -> None:
        """Ends the wait of `poll`, from any thread."""
        self._selector.wakeup()

    def close(self) -> None:
        self._selector.close_all()

    def _connect(self, node: Node, now_ms: float) -> None:
        try:
            address = self._states.connecting(node.id, node.host, node.port, now_ms)
            options = SocketOptions(self._config.send_buffer_bytes, self._config.receive_buffer_bytes)
            self._selector.connect(self._make_channel(node.id, node.host, node.port), address, options)
        except OSError as error:
            reason = error.strerror or str(error)
            failure = Disconnect(ChannelState.NOT_CONNECTED, reason, 0)
            self._states.disconnected(node.id, failure, now_ms)
            self.metadata.request_update()

    def _send(self, node_id: int, body: Message, entry: InFlight) -> None:
        header = RequestHeader(entry.key, entry.version, entry.correlation_id, self._config.client_id)
        self._in_flight.add(node_id, entry)
        self._selector.send(node_id, encode_request_frame(header, body))

    def _next_correlation_id(self) -> int:
        taken = self._correlation_id
        self._correlation_id = 0 if taken >= MAX_CORRELATION_ID else taken + 1
        return taken

    def _completed_sends(self, responses: list[ClientResponse]) -> None:
        for node_id in self._selector.completed_sends:
            over = self._in_flight.send_completed(node_id)
            if over is not None and over.request is not None:
                responses.append(ClientResponse(over.request))

    def _completed_receives(self, responses: list[ClientResponse], now_ms: float) -> None:
        for node_id, frame in [*self._selector.completed_receives.items()]:
            entry = self._in_flight.complete_next(node_id)
            if entry is None:
                self._violated(node_id, "it answered what nobody asked", None, responses, now_ms)
                continue
            try:
                answered, body = decode_response_frame(entry.key, entry.version, frame)
            except MalformedMessage as error:
                what = f"it sent a {entry.key.name} v{entry.version} that is none: {error}"
                self._violated(node_id, what, entry, responses, now_ms)
                continue
            if answered != entry.correlation_id:
                what = f"it answered request {answered} instead of {entry.correlation_id}"
                self._violated(node_id, what, entry, responses, now_ms)
                continue
            self._throttle(node_id, entry, body, now_ms)
            self._answered(node_id, entry, body, responses, now_ms)

    def _answered(
        self, node_id: int, entry: InFlight, body: Any, responses: list[ClientResponse], now_ms: float
    ) -> None:
        if entry.talk is not None:
            if problem := entry.talk.received(body):
                self._violated(node_id, problem, None, responses, now_ms)
            elif entry.talk.versions is not None:
                self._states.ready(node_id, entry.talk.versions)
            else:
                self._need_versions[node_id] = entry.talk
        elif entry.of_metadata:
            self._metadata_in_flight = False
            self.metadata.updated(body, now_ms)
        elif entry.request is not None:
            responses.append(ClientResponse(entry.request, body))

    def _throttle(self, node_id: int, entry: InFlight, body: Any, now_ms: float) -> None:
        """What the broker asks for, where the version says that this is the client's business (KIP-219)."""
        throttle_ms: int = getattr(body, "throttle_time_ms", 0)
        if throttle_ms > 0 and client_throttles(entry.key, entry.version):
            self._states.throttle(node_id, now_ms + throttle_ms)
            self._in_flight.throttled(node_id, throttle_ms)

    def _violated(
        self,
        node_id: int,
        what: str,
        entry: InFlight | None,
        responses: list[ClientResponse],
        now_ms: float,
    ) -> None:
        """What comes next on this connection could be anything: it ends here."""
        failure = Disconnect(ChannelState.INVALID_RECEIVE, what, 1)
        if entry is not None:
            self._lost(entry, failure, responses, now_ms)
        self._close(node_id, failure, responses, now_ms)

    def _disconnected(
        self, node_id: int, disconnect: Disconnect, responses: list[ClientResponse], now_ms: float
    ) -> None:
        if disconnect.state is ChannelState.AUTHENTICATION_FAILED:
            self._states.authentication_failed(node_id, disconnect, now_ms)
        else:
            self._states.disconnected(node_id, disconnect, now_ms)
        self._need_versions.pop(node_id, None)
        self.metadata.request_update()
        for entry in self._in_flight.clear(node_id):
            self._lost(entry, disconnect, responses, now_ms)

    def _lost(
        self,
        entry: InFlight,
        disconnect: Disconnect,
        responses: list[ClientResponse],
        now_ms: float,
        *,
        timed_out: bool = False,
    ) -> None:
        if entry.of_metadata:
            self._metadata_in_flight = False
            self.metadata.failed(now_ms)
        elif entry.request is not None:
            responses.append(ClientResponse(entry.request, disconnect=disconnect, timed_out=timed_out))

    def _close(
        self, node_id: int, failure: Disconnect, responses: list[ClientResponse], now_ms: float
    ) -> None:
        if node_id in self._selector.disconnected:
            # The selector was first; its own reason is told in its turn.
            return
        self._selector.close(node_id)
        self._disconnected(node_id, failure, responses, now_ms)

    def _ask_versions(self, now_ms: float) -> None:
        """On every connection that is authenticated and has room for a request."""
        for node_id, talk in [*self._need_versions.items()]:
            if not (self._selector.is_ready(node_id) and self._in_flight.can_send_more(node_id)):
                continue
            del self._need_versions[node_id]
            self._states.checking_api_versions(node_id)
            version, request = talk.request()
            entry = InFlight(
                ApiKey.API_VERSIONS,
                version,
                self._next_correlation_id(),
                True,
                now_ms,
                self._config.request_timeout_ms,
                talk=talk,
            )
            self._send(node_id, request, entry)

    def _expire(self, responses: list[ClientResponse], now_ms: float) -> None:
        for node_id in self._states.setup_expired(now_ms):
            reason = "the connection was not set up in time (socket.connection.setup.timeout.ms)"
            self._close(node_id, Disconnect(ChannelState.NOT_CONNECTED, reason, 0), responses, now_ms)
        for node_id in self._in_flight.expired(now_ms):
            failure = Disconnect(ChannelState.READY, NO_ANSWER, 1)
            for entry in self._in_flight.clear(node_id):
                timed_out = now_ms >= entry.expires_ms()
                self._lost(entry, failure, responses, now_ms, timed_out=timed_out)
            self._close(node_id, failure, responses, now_ms)

    def _update_metadata(self, now_ms: float) -> float:
        """Asks for metadata if that is due; milliseconds until there is something to do for it."""
        if self._metadata_in_flight:
            return POLL_MS_MAX
        wait_ms = self.metadata.time_to_next_update_ms(now_ms)
        if wait_ms > 0:
            return wait_ms
        node = self.least_loaded_node()
        if node is None:
            # All rest after a failure; the first of them to have rested enough ends the poll.
            if all(self._states.failure(node_id) for node_id in self.metadata.node_ids()):
                self.metadata.rebootstrap()
            return POLL_MS_MAX
        if not self.ready(node):
            return self._config.reconnect_backoff_ms if self._states.failure(node.id) else POLL_MS_MAX
        versions = self._states.versions(node.id)
        assert versions is not None, "a ready node has versions"
        try:
            version = versions.usable(ApiKey.METADATA)
        except UnsupportedVersion as error:
            self._violated(node.id, str(error), None, self._aborted, now_ms)
            return 0.0
        request = self.metadata.request()
        entry = InFlight(
            ApiKey.METADATA,
            version,
            self._next_correlation_id(),
            True,
            now_ms,
            self._config.request_timeout_ms,
            of_metadata=True,
        )
        self._metadata_in_flight = True
        self._send(node.id, request, entry)
        return POLL_MS_MAX
