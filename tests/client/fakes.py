"""A selector without sockets and a clock without time, so that a test decides what happens and when."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from mpbroker.client.backoff import ExponentialBackoff
from mpbroker.client.channel import Channel
from mpbroker.client.config import ClientConfig
from mpbroker.client.connection_states import ConnectionStates
from mpbroker.client.metadata import Metadata, Node
from mpbroker.client.network_client import ClientResponse, NetworkClient
from mpbroker.client.sasl import NoAuthentication
from mpbroker.client.selector import Address, ChannelState, Disconnect, SocketOptions
from mpbroker.client.transport import PlaintextTransport
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey, valid_versions
from mpbroker.protocol.headers import RequestHeader, decode_request_header, encode_response_frame
from mpbroker.protocol.wire import Buffer

SIZE_BYTES = 4
# completed sends, completed receives, connected, disconnected
Results = tuple[list[int], dict[int, bytearray], list[int], dict[int, Disconnect]]


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000.0

    def __call__(self) -> float:
        return self.now_ms


class FakeSelector:
    """What a test arranges is the result of the next poll; without anything the poll waits in full."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.completed_sends: list[int] = []
        self.completed_receives: dict[int, bytearray] = {}
        self.connected: list[int] = []
        self.disconnected: dict[int, Disconnect] = {}
        self.open: set[int] = set()
        self.authenticated: set[int] = set()
        self.addresses: list[Address] = []
        self.sent: dict[int, list[bytes]] = {}
        self.timeouts: list[float] = []
        self.refuses: OSError | None = None
        self.sends_stall = False
        self._next: Results = ([], {}, [], {})

    def connect(self, channel: Channel, address: Address, _options: SocketOptions) -> None:
        if self.refuses is not None:
            raise self.refuses
        assert channel.id not in self.open
        self.open.add(channel.id)
        self.addresses.append(address)

    def send(self, channel_id: int, segments: Sequence[Buffer]) -> None:
        assert channel_id in self.authenticated
        self.sent.setdefault(channel_id, []).append(b"".join(segments)[SIZE_BYTES:])
        if not self.sends_stall:
            self._next[0].append(channel_id)

    def poll(self, timeout_ms: float) -> None:
        assert timeout_ms >= 0
        self.timeouts.append(timeout_ms)
        if not any(self._next):
            self._clock.now_ms += timeout_ms
        self.completed_sends, self.completed_receives, self.connected, self.disconnected = self._next
        self._next = ([], {}, [], {})

    def is_ready(self, channel_id: int) -> bool:
        return channel_id in self.authenticated

    def close(self, channel_id: int) -> None:
        self.open.discard(channel_id)
        self.authenticated.discard(channel_id)
        if channel_id in self._next[0]:
            self._next[0].remove(channel_id)

    def close_all(self) -> None:
        self.open.clear()

    def wakeup(self) -> None:
        """Nobody waits here."""

    def accepts(self, channel_id: int, *, authenticated: bool = True) -> None:
        """The connection is made; the handshakes may take longer."""
        self._next[2].append(channel_id)
        if authenticated:
            self.authenticated.add(channel_id)

    def sends(self, channel_id: int) -> None:
        """A send that stalled goes out."""
        self._next[0].append(channel_id)

    def header(self, channel_id: int, nth: int = -1) -> RequestHeader:
        return decode_request_header(self.sent[channel_id][nth])[0]

    def answers(self, channel_id: int, body: m.Message, *, nth: int = -1, shift: int = 0) -> None:
        """The response to a request; with a shift its correlation id is another one's."""
        header = self.header(channel_id, nth)
        version = header.api_version
        if header.api_key == ApiKey.API_VERSIONS and getattr(body, "error_code", 0):
            version = 0
        frame = encode_response_frame(header.api_key, version, header.correlation_id + shift, body)
        self._next[1][channel_id] = bytearray(b"".join(frame)[SIZE_BYTES:])

    def spoil(self, channel_id: int, change: Callable[[bytearray], bytearray]) -> None:
        """Changes the response that is on its way."""
        self._next[1][channel_id] = change(self._next[1][channel_id])

    def hangs_up(self, channel_id: int, state: ChannelState = ChannelState.READY) -> None:
        self.close(channel_id)
        self._next[3][channel_id] = Disconnect(state, "closed by the broker", 1)


def api_versions(**spans: tuple[int, int]) -> m.ApiVersionsResponse:
    """All that we speak, with what is given in place of that."""
    api = m.ApiVersionsResponse.ApiVersion
    return m.ApiVersionsResponse(
        api_keys=[
            api(key, *spans.get(key.name.lower(), (valid_versions(key)[0], valid_versions(key)[-1])))
            for key in ApiKey
            if valid_versions(key) and spans.get(key.name.lower(), (0, 0)) != (-1, -1)
        ]
    )


class Rig:
    """A client of one bootstrap server whose host has the addresses given; nothing is random."""

    def __init__(self, addresses: int = 1, **settings: int) -> None:
        self.clock = Clock()
        self.selector = FakeSelector(self.clock)
        self.config = ClientConfig(**settings)
        self.node = Node(-2, "here", 9092)
        self.resolved = 0
        self._addresses = addresses
        c = self.config
        reconnect = ExponentialBackoff(c.reconnect_backoff_ms, c.reconnect_backoff_max_ms, middle)
        setup = ExponentialBackoff(
            c.socket_connection_setup_timeout_ms, c.socket_connection_setup_timeout_max_ms, middle
        )
        self.states = ConnectionStates(reconnect, setup, self._resolve)
        retry = ExponentialBackoff(c.retry_backoff_ms, c.retry_backoff_max_ms, middle)
        self.metadata = Metadata([("here", 9092)], retry, self.config.metadata_max_age_ms)
        self.client = NetworkClient(
            self.selector, _channel, self.states, self.metadata, self.config, self.clock, lambda _count: 0
        )

    def poll(self, timeout_ms: float = 0) -> list[ClientResponse]:
        return self.client.poll(timeout_ms)

    def ready(self, node: Node | None = None) -> None:
        """Connects and negotiates, without a hitch."""
        node = node or self.node
        assert not self.client.ready(node)
        self.selector.accepts(node.id)
        self.poll()
        self.poll()
        self.selector.answers(node.id, api_versions())
        self.poll()
        assert self.client.ready(node)

    def _resolve(self, host: str, port: int) -> list[Address]:
        self.resolved += 1
        return [Address(socket.AF_INET, (f"{host}{index}", port)) for index in range(self._addresses)]


def middle(low: float, high: float) -> float:
    return (low + high) / 2


def _channel(channel_id: int, host: str, _port: int) -> Channel:
    return Channel(channel_id, host, PlaintextTransport(), NoAuthentication(), 1 << 20)
