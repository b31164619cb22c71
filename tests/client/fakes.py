"""A cluster in the test's own thread: real sockets, and a clock that passes when a test says so."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import Any

from mpbroker.client.addresses import Address
from mpbroker.client.config import ClientConfig
from mpbroker.client.connection import ClientRequest, ClientResponse
from mpbroker.client.metadata import Node
from mpbroker.client.network_client import NetworkClient
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey, valid_versions
from mpbroker.protocol.headers import RequestHeader, decode_request_header, encode_response_frame

SIZE_BYTES = 4
TIMEOUT_MS = 30_000.0
# Less than a large request, so that the socket takes it in pieces.
SMALL_BUFFER_BYTES = 4096
LARGE_BYTES = 256 << 10


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000.0

    def __call__(self) -> float:
        return self.now_ms


class FakeEpoll:
    """Events of real sockets; a wait in which nothing happens passes on the test's clock."""

    def __init__(self, clock: Clock) -> None:
        self.waits_ms: list[float] = []
        self._clock = clock
        self._epoll = select.epoll()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        assert timeout >= 0
        timeout_ms = round(timeout * 1000, 6)
        self.waits_ms.append(timeout_ms)
        events = self._epoll.poll(0)
        if not events:
            self._clock.now_ms += timeout_ms
        return events


class Peer:
    """One address of a node: a listener in the test's hands, with the newest connection to it."""

    def __init__(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        # An abstract name that the kernel chooses.
        self._listener.bind("")
        self._listener.listen()
        self._listener.setblocking(False)
        self.address = Address(socket.AF_UNIX, self._listener.getsockname())
        self.connections = 0
        self._connection: socket.socket | None = None
        self._received = bytearray()
        self._requests: list[bytes] = []

    @property
    def is_open(self) -> bool:
        """Tell whether the client holds a connection."""
        self._look()
        return self._connection is not None

    @property
    def requests(self) -> list[bytes]:
        """All whole requests of this connection, without their sizes."""
        self._look()
        return self._requests

    def header(self, nth: int = -1) -> RequestHeader:
        return decode_request_header(self.requests[nth])[0]

    def answers(
        self,
        body: m.Message,
        nth: int = -1,
        shift: int = 0,
        change: Callable[[bytearray], bytearray] = lambda frame: frame,
    ) -> None:
        """Respond to a request; `shift` makes the correlation id another one's, `change` spoils the frame."""
        header = self.header(nth)
        version = header.api_version
        if header.api_key == ApiKey.API_VERSIONS and getattr(body, "error_code", 0):
            version = 0
        frame = encode_response_frame(header.api_key, version, header.correlation_id + shift, body)
        content = change(bytearray(b"".join(frame)[SIZE_BYTES:]))
        self.sends(len(content).to_bytes(SIZE_BYTES, "big") + content)

    def sends(self, data: bytes) -> None:
        self._look()
        assert self._connection is not None
        self._connection.sendall(data)

    def hangs_up(self) -> None:
        self._look()
        assert self._connection is not None
        self._connection.close()
        self._connection = None

    def close(self) -> None:
        """Refuse connections from now on."""
        self._listener.close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _look(self) -> None:
        """Accept and read what is there."""
        try:
            accepted, _ = self._listener.accept()
        except OSError:
            pass
        else:
            self._connection, self._received, self._requests = accepted, bytearray(), []
            self.connections += 1
            accepted.setblocking(False)
        while self._connection is not None:
            try:
                data = self._connection.recv(1 << 20)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            if not data:
                self._connection.close()
                self._connection = None
            self._received += data
        while len(self._received) >= SIZE_BYTES:
            end = SIZE_BYTES + int.from_bytes(self._received[:SIZE_BYTES], "big")
            if len(self._received) < end:
                break
            self._requests.append(bytes(self._received[SIZE_BYTES:end]))
            del self._received[:end]


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


def metadata(*nodes: int, leaders: dict[int, int] | None = None) -> m.MetadataResponse:
    """Nodes at host1, host2, …, and topic t with these leaders by partition."""
    broker, topic = m.MetadataResponse.MetadataResponseBroker, m.MetadataResponse.MetadataResponseTopic
    part = m.MetadataResponse.MetadataResponsePartition
    parts = [part(partition_index=index, leader_id=node) for index, node in (leaders or {}).items()]
    return m.MetadataResponse(
        brokers=[broker(node, f"host{node}", 9092) for node in nodes],
        topics=[topic(name="t", partitions=parts)],
    )


def large() -> m.ProduceRequest:
    """A request that fills the socket's buffer if that is small."""
    part = m.ProduceRequest.PartitionProduceData(index=0, records=bytes(LARGE_BYTES))
    return m.ProduceRequest(
        acks=1, topic_data=[m.ProduceRequest.TopicProduceData(name="t", partition_data=[part])]
    )


class Rig:
    """A client of one bootstrap server whose host has the addresses given; nothing is random."""

    def __init__(self, addresses: int = 1, **settings: Any) -> None:
        self.clock = Clock()
        self.epoll = FakeEpoll(self.clock)
        self.config = ClientConfig(**settings)
        self.node = Node(-2, "here", 9092)
        self.resolved = 0
        self.unknown_hosts = False
        self.responses: list[ClientResponse] = []
        self._peers: dict[str, list[Peer]] = {"here": [Peer() for _ in range(addresses)]}
        self.client = NetworkClient(
            [("here", 9092)],
            self.config,
            clock_ms=self.clock,
            resolve_host=self._resolve,
            epoll=lambda: self.epoll,  # type: ignore[arg-type, return-value]
            uniform=middle,
            choose=lambda _count: 0,
        )
        self.metadata = self.client.metadata

    def close(self) -> None:
        self.client.close()
        for peers in self._peers.values():
            for peer in peers:
                peer.close()

    @property
    def peer(self) -> Peer:
        return self.peers()[0]

    def peers(self, node: Node | None = None) -> list[Peer]:
        return self._peers.setdefault((node or self.node).host, [Peer()])

    def poll(self, timeout_ms: float = 0) -> list[ClientResponse]:
        """The requests that are over, in the order in which the client told of them."""
        del self.responses[:]
        self.client.poll(timeout_ms)
        return [*self.responses]

    def answer(self, body: m.Message, **how: Any) -> list[ClientResponse]:
        """Let the peer respond to a request, and poll."""
        self.peer.answers(body, **how)
        return self.poll()

    def send(
        self, body: m.Message | None = None, timeout_ms: float = TIMEOUT_MS, node: Node | None = None
    ) -> ClientRequest:
        body = m.ListGroupsRequest() if body is None else body
        request = ClientRequest((node or self.node).id, body, timeout_ms, self.responses.append)
        self.client.send(request)
        return request

    def connect(self, versions: m.ApiVersionsResponse | None = None, node: Node | None = None) -> None:
        """Connect and negotiate, without a hitch."""
        node = node or self.node
        peer = self.peers(node)[0]
        assert not self.client.ready(node)
        assert peer.header().api_key == ApiKey.API_VERSIONS
        peer.answers(versions or api_versions())
        self.poll()
        assert self.client.ready(node)

    def authenticate(self) -> None:
        """Answer an authenticator's requests: any password is right."""
        for body in (
            api_versions(),
            m.SaslHandshakeResponse(mechanisms=["PLAIN"]),
            m.SaslAuthenticateResponse(auth_bytes=b""),
        ):
            self.answer(body)

    def failure(self, node: Node | None = None) -> str:
        """Why the node is not connected; empty if nothing has failed."""
        return str(self.client.failure((node or self.node).id) or "")

    def _resolve(self, host: str, _port: int) -> list[Address]:
        self.resolved += 1
        if self.unknown_hosts:
            raise socket.gaierror(-2, "Name or service not known")
        return [peer.address for peer in self._peers.setdefault(host, [Peer()])]


SASL = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_username": "user",
    "sasl_password": "password",
}


def middle(low: float, high: float) -> float:
    return (low + high) / 2
