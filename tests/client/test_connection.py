"""One connection over a pair of sockets: handshakes, requests in flight, and what ends it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from mpbroker.client import connection as module
from mpbroker.client.config import ClientConfig
from mpbroker.client.connection import ClientRequest, ClientResponse, Connection, EndOfStream
from mpbroker.client.errors import InvalidReceive
from mpbroker.client.sasl import MIN_RESERVED_CORRELATION_ID
from mpbroker.client.transport import PlaintextTransport
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.headers import RequestHeader, decode_request_header, encode_response_frame
from tests.client.fakes import LARGE_BYTES, SMALL_BUFFER_BYTES, api_versions, large

PATIENCE_S = 5
CONFIG = ClientConfig(receive_max_bytes=1 << 24)


class Pair:
    """A connection, and the socket of its peer."""

    def __init__(self, transport: type[PlaintextTransport] = PlaintextTransport) -> None:
        ours, self.peer = socket.socketpair()
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER_BYTES)
        self.peer.settimeout(PATIENCE_S)
        self.responses: list[ClientResponse] = []
        self.connection = Connection(ours, transport, None, CONFIG, self.responses.append)
        self.connection.progress(0)

    def request(self, body: m.Message) -> ClientRequest:
        return ClientRequest(7, body, 1_000, self.responses.append)

    def send(self, body: m.Message, now_ms: float = 0) -> None:
        self.connection.send(self.request(body), now_ms)

    def received(self) -> RequestHeader:
        """Take the next request from the connection."""
        size = int.from_bytes(self.peer.recv(4, socket.MSG_WAITALL), "big")
        return decode_request_header(self.peer.recv(size, socket.MSG_WAITALL))[0]

    def answer(self, header: RequestHeader, body: m.Message, version: int | None = None) -> None:
        version = header.api_version if version is None else version
        frame = encode_response_frame(header.api_key, version, header.correlation_id, body)
        self.peer.sendall(b"".join(frame))

    def negotiate(self) -> None:
        self.answer(self.received(), api_versions())
        assert self.connection.progress(0), "the versions are known"

    def close(self) -> None:
        self.connection.close()
        self.peer.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


@pytest.fixture
def ready(pair: Pair) -> Pair:
    pair.negotiate()
    assert pair.connection.is_ready(0)
    return pair


def test_a_request_there_and_a_response_back(ready: Pair) -> None:
    ready.send(m.ListGroupsRequest())
    ready.answer(ready.received(), m.ListGroupsResponse())
    ready.connection.progress(0)
    (response,) = ready.responses
    assert isinstance(response.body, m.ListGroupsResponse)
    assert not ready.connection.in_flight
    assert ready.connection.frames == 2


def test_nothing_is_sent_before_the_versions_are_known(pair: Pair) -> None:
    with pytest.raises(RuntimeError, match="node 7 is not ready"):
        pair.send(m.ListGroupsRequest())


def test_a_send_larger_than_the_sockets_buffers(ready: Pair) -> None:
    ready.send(large())
    with pytest.raises(RuntimeError, match="not ready"):
        ready.send(m.ListGroupsRequest())
    size = int.from_bytes(ready.peer.recv(4, socket.MSG_WAITALL), "big")
    assert size > LARGE_BYTES
    received = bytearray()
    moved = False
    while len(received) < size:
        received += ready.peer.recv(1 << 20)
        moved = ready.connection.progress(0) or moved
    assert moved, "there is room for the next request"
    assert decode_request_header(received)[0].api_key == ApiKey.PRODUCE
    assert ready.connection.is_ready(0)


class Buffering(PlaintextTransport):
    """A transport that may hold bytes of which no event tells, as TLS does."""

    buffers = True


@pytest.mark.parametrize(("transport", "at_once"), [(PlaintextTransport, 1), (Buffering, 2)])
def test_nothing_is_left_where_no_event_tells_of_it(
    transport: type[PlaintextTransport], at_once: int
) -> None:
    pair = Pair(transport)
    pair.negotiate()
    for _ in range(2):
        pair.send(m.ListGroupsRequest())
    for header in [pair.received() for _ in range(2)]:
        pair.answer(header, m.ListGroupsResponse())
    pair.connection.progress(0)
    assert len(pair.responses) == at_once
    pair.connection.progress(0)
    assert len(pair.responses) == 2
    pair.close()


def test_a_response_in_single_bytes(ready: Pair) -> None:
    ready.send(m.ListGroupsRequest())
    header = ready.received()
    frame = b"".join(
        encode_response_frame(
            header.api_key, header.api_version, header.correlation_id, m.ListGroupsResponse()
        )
    )
    for byte in frame:
        assert not ready.responses
        ready.peer.sendall(bytes([byte]))
        ready.connection.progress(0)
    assert len(ready.responses) == 1


def test_correlation_ids_leave_those_of_sasl_alone(ready: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.MIN_RESERVED_CORRELATION_ID == MIN_RESERVED_CORRELATION_ID
    monkeypatch.setattr(module, "MIN_RESERVED_CORRELATION_ID", 3)
    seen = []
    for _ in range(4):
        ready.send(m.ListGroupsRequest())
        header = ready.received()
        seen.append(header.correlation_id)
        ready.answer(header, m.ListGroupsResponse())
        ready.connection.progress(0)
    assert seen == [1, 2, 0, 1]


def test_a_response_that_nobody_asked_for_ends_the_connection(ready: Pair) -> None:
    ready.answer(RequestHeader(ApiKey.LIST_GROUPS, 0, 0), m.ListGroupsResponse())
    with pytest.raises(InvalidReceive, match="it sent a response without a request"):
        ready.connection.progress(0)


def test_a_response_to_half_a_request_ends_the_connection(ready: Pair) -> None:
    ready.send(large())
    ready.answer(RequestHeader(ApiKey.PRODUCE, 9, 1), m.ProduceResponse())
    with pytest.raises(InvalidReceive, match="it sent a response without a request"):
        ready.connection.progress(0)
    assert len(ready.connection.in_flight) == 1, "the request has not been answered"


def test_a_response_that_is_none_ends_the_connection(ready: Pair) -> None:
    ready.send(m.ListGroupsRequest())
    header = ready.received()
    ready.peer.sendall(struct.pack(">ii", 4, header.correlation_id))
    with pytest.raises(InvalidReceive, match=r"it sent a LIST_GROUPS v\d that is malformed"):
        ready.connection.progress(0)
    assert len(ready.connection.in_flight) == 1


def test_the_end_of_the_stream(ready: Pair) -> None:
    ready.peer.close()
    with pytest.raises(EndOfStream, match="closed by the broker"):
        ready.connection.progress(0)


@pytest.mark.parametrize(
    ("listed", "asked"),
    [([(18, 0, 2)], [4, 2]), ([], [4, 0]), ([(18, 0, 4)], [4, 0]), ([(18, 0, 9)], [4, 0])],
)
def test_an_older_broker_is_asked_in_its_own_version(
    pair: Pair, listed: list[tuple[int, int, int]], asked: list[int]
) -> None:
    api = m.ApiVersionsResponse.ApiVersion
    first = pair.received()
    refusal = m.ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, [api(*spans) for spans in listed])
    pair.answer(first, refusal, version=0)
    pair.connection.progress(0)
    second = pair.received()
    assert [first.api_version, second.api_version] == asked
    pair.answer(second, api_versions())
    pair.connection.progress(0)
    assert pair.connection.is_ready(0)


def test_an_error_on_version_0_ends_the_connection(pair: Pair) -> None:
    refusal = m.ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION)
    pair.answer(pair.received(), refusal, version=0)
    pair.connection.progress(0)
    pair.answer(pair.received(), refusal)
    with pytest.raises(InvalidReceive, match="it does not name its versions"):
        pair.connection.progress(0)
