"""Clients that are anybody: garbage, the slow, the greedy, and crowds of them."""

from __future__ import annotations

import asyncio
import functools
import inspect
import socket
import struct
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

import pytest

from mpbroker.http import server as http_server
from mpbroker.http.server import CONNECTIONS_MAX, HttpServer, Receive, Scope, Send
from tests.support.polling import PATIENCE_S

BIG = 8 << 20


class Client:
    """Connections to a server that echoes."""

    def __init__(self, place: tuple[str, int], server: HttpServer) -> None:
        self.place = place
        self.server = server

    async def open(
        self, said: bytes = b"", host: str = "127.0.0.1"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect from a host, and send what is said first."""
        reader, writer = await asyncio.open_connection(*self.place, local_addr=(host, 0))
        writer.write(said)
        return reader, writer

    async def say(self, data: bytes) -> bytes:
        """Return all that comes back until the server closes."""
        reader, writer = await self.open(data)
        try:
            return await reader.read()
        finally:
            writer.close()


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] == "/fails":
        raise ValueError("it fails")
    body = b""
    if scope["path"] == "/waits":
        await asyncio.Event().wait()
    if scope["path"] == "/turns":
        for _ in range(20):
            await asyncio.sleep(0.001)
    if scope["path"] == "/stream":
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"line", "more_body": True})
        await asyncio.Event().wait()
    if scope["path"] == "/big":
        body = b"x" * BIG
    elif scope["path"] == "/last":
        body = b"x" * (http_server.PIECE_BYTES - 1)
    elif scope["path"] == "/asks-nothing":
        body = b"answer"
    else:
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def gone(reader: asyncio.StreamReader) -> bool:
    """Return whether the server ended the connection without a word."""
    try:
        return not await reader.read()
    except ConnectionError:
        return True


Talk = Callable[..., Coroutine[Any, Any, None]]


def served(**constants: float) -> Callable[[Talk], Callable[..., None]]:
    """Make a test of a coroutine that talks to a server, whose module has these constants.

    Its first parameter is the client, all others are the test's fixtures and parameters. No callback of the
    event loop may fail.
    """

    def test_of(talk: Talk) -> Callable[..., None]:
        @functools.wraps(talk)
        def test(**given: object) -> None:
            with pytest.MonkeyPatch.context() as patch:
                for name, value in constants.items():
                    patch.setattr(http_server, name, value)
                assert asyncio.run(failures_of(talk, given)) == []

        _, *others = inspect.signature(talk).parameters.values()
        test.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]
        return test

    return test_of


async def failures_of(talk: Talk, given: Mapping[str, object]) -> list[dict[str, object]]:
    """Let it talk to a server; return what failed in callbacks, also in those that end the loop."""
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    sock = socket.create_server(("127.0.0.1", 0), backlog=2 * CONNECTIONS_MAX)
    server = HttpServer(echo, sock)
    await server.start()
    try:
        await talk(Client(sock.getsockname(), server), **given)
    finally:
        await server.stop(0)
    return failures


@served()
async def test_requests_follow_one_another_on_a_connection(client: Client) -> None:
    request = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
    last = b"GET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = await client.say(request + request + last)
    assert answer.count(b"HTTP/1.1 200") == 3
    assert answer.count(b"abc") == 2


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"\x00" * 1000 + b"\r\n\r\n",
        b"\x00\x00\x00\x1a\x00\x12\x00\x03\x00\x00\x00\x01\x00\x04rdkafka\x00",  # ApiVersions of Kafka
        b"GET /metrics HTTP/9.9\r\n\r\n",
        b"GET /metrics HTTP/1.1\nHost x\n\tfolded: y\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        bytes(range(256)),
        b"GET / HTTP/1.1\r\n\r\n",  # no Host
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: \x00\r\n\r\n",
        b"GET  /  HTTP/1.1\r\n\r\n",
        b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip\r\n\r\n",
    ],
)
@served()
async def test_garbage_is_refused_and_the_connection_closed(client: Client, garbage: bytes) -> None:
    answer = await client.say(garbage)
    assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501", b"HTTP/1.1 505")), answer


@served()
async def test_a_host_that_is_nobody_is_still_served(client: Client) -> None:
    answer = await client.say(b"GET / HTTP/1.1\r\nHost: ;;//evil\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200"), answer


@served()
async def test_a_head_without_end_is_refused(client: Client) -> None:
    answer = await client.say(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * (1 << 17))
    assert answer.startswith(b"HTTP/1.1 431"), answer


@pytest.mark.parametrize("framing", [b"Content-Length: %d" % (1 << 30), b"Transfer-Encoding: chunked"])
@served()
async def test_a_body_without_end_is_refused(client: Client, framing: bytes) -> None:
    reader, writer = await client.open(b"POST / HTTP/1.1\r\nHost: x\r\n" + framing + b"\r\n\r\n")
    chunk = b"10000\r\n" + b"z" * 0x10000 + b"\r\n" if b"chunked" in framing else b"z" * 0x10000
    answer = asyncio.create_task(reader.read())
    for _ in range(64):
        if answer.done():
            break
        writer.write(chunk)
        try:
            await writer.drain()
        except ConnectionError:
            break
    assert (await answer).startswith(b"HTTP/1.1 413")
    writer.close()


@served()
async def test_an_application_that_fails_is_a_500(client: Client) -> None:
    assert (await client.say(b"GET /fails HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(b"HTTP/1.1 500")


@served(REQUEST_TIMEOUT_S=0.05)
async def test_who_says_nothing_is_closed(client: Client) -> None:
    assert await client.say(b"") == b""
    # Nor does it help to send something now and then.
    reader, writer = await client.open()
    ended = asyncio.create_task(reader.read())
    while not ended.done():
        writer.write(b"G")
        await asyncio.wait([ended], timeout=0.01)
    assert ended.exception() or ended.result() == b""
    writer.close()


@served(REQUEST_TIMEOUT_S=0.1)
async def test_a_body_has_no_more_time_than_its_request(client: Client) -> None:
    reader, writer = await client.open(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
    ended = asyncio.create_task(gone(reader))
    async with asyncio.timeout(PATIENCE_S):
        while not ended.done():
            writer.write(b"z")
            await asyncio.wait([ended], timeout=0.01)
    assert ended.result()
    writer.close()


@served(REQUEST_TIMEOUT_S=2 * PATIENCE_S)
async def test_a_body_that_nobody_wants_is_not_waited_for(client: Client) -> None:
    async with asyncio.timeout(PATIENCE_S):
        answer = await client.say(
            b"POST /asks-nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nz"
        )
    assert answer.endswith(b"answer")
    assert b"connection: close" in answer.lower()


@served()
async def test_requests_without_a_body_follow_one_another_whether_it_is_asked_for_or_not(
    client: Client,
) -> None:
    request = b"GET /asks-nothing HTTP/1.1\r\nHost: x\r\n"
    answer = await client.say(
        request + b"\r\n" + request + b"Content-Length: 0\r\n\r\n" + request + b"Connection: close\r\n\r\n"
    )
    assert answer.count(b"HTTP/1.1 200") == 3


@pytest.mark.parametrize("before", [b"", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabcde"])
@served()
async def test_a_head_has_16_kib_also_if_it_comes_at_once(client: Client, before: bytes) -> None:
    start, end = b"GET /asks-nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: ", b"\r\n\r\n"
    most = start + b"y" * (http_server.HEAD_BYTES_MAX - len(start + end)) + end
    assert (await client.say(before + most)).endswith(b"answer")
    assert b"HTTP/1.1 431" in await client.say(before + most[:-4] + b"y" + end)


@served(ANSWER_TIMEOUT_S=0.05)
async def test_an_answer_that_does_not_come_is_a_503(client: Client) -> None:
    assert (await client.say(b"GET /waits HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(b"HTTP/1.1 503")


async def slow_reader(client: Client, request: bytes) -> socket.socket:
    """Return a connection with little room for what it gets, which has sent a request."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, client.place)
    await loop.sock_sendall(sock, request)
    return sock


@served(ANSWER_TIMEOUT_S=0.3)
async def test_who_takes_his_answer_in_too_small_pieces_is_closed(client: Client) -> None:
    with await slow_reader(client, b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n") as sock:
        taken = 0
        async with asyncio.timeout(PATIENCE_S):
            while client.server._connections or not taken:
                taken += len(await asyncio.get_running_loop().sock_recv(sock, 1024))
                await asyncio.sleep(0.001)
        assert 0 < taken < BIG


@served(ANSWER_TIMEOUT_S=0.05)
async def test_a_stream_lasts_longer_than_an_answer_may(client: Client) -> None:
    _, writer = await client.open(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
    asked = asyncio.create_task(client.say(b"GET /waits HTTP/1.1\r\nHost: x\r\n\r\n"))
    while not any(one.streams for one in client.server._connections):
        await asyncio.sleep(0)
    assert (await asked).startswith(b"HTTP/1.1 503")  # so that time is over
    assert [one.streams for one in client.server._connections] == [True]
    writer.close()


async def until_answered(client: Client) -> http_server._Connection:
    """Return the connection whose request is being answered."""
    while True:
        for connection in client.server._connections:
            if connection.answers:
                return connection
        await asyncio.sleep(0)


async def until_nobody_is_there(client: Client) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while client.server._connections:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("path", ["/waits", "/stream"])
@pytest.mark.parametrize("ahead", [b"", b"GET /waits HTTP/1.1\r\nHost: x\r\n\r\n" * 100])
@served(HALF_CLOSED_S=0.05)
async def test_nothing_goes_on_for_a_client_that_has_closed(client: Client, path: str, ahead: bytes) -> None:
    _, writer = await client.open(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode() + ahead)
    await until_answered(client)
    writer.close()
    await until_nobody_is_there(client)


@served(HALF_CLOSED_S=2 * PATIENCE_S)
async def test_a_connection_that_is_reset_ends_its_answer_at_once(client: Client) -> None:
    _, writer = await client.open(b"GET /waits HTTP/1.1\r\nHost: x\r\n\r\n")
    await until_answered(client)
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()
    await until_nobody_is_there(client)


@served()
async def test_who_has_closed_only_his_side_gets_what_is_answered_soon(client: Client) -> None:
    reader, writer = await client.open(b"GET /turns HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
    writer.write_eof()
    assert (await reader.read()).count(b"HTTP/1.1 200") == 2
    writer.close()


@served()
async def test_what_comes_during_an_answer_is_kept(client: Client) -> None:
    reader, writer = await client.open(b"GET /turns HTTP/1.1\r\nHost: x\r\n\r\n")
    await until_answered(client)
    body = b"z" * http_server.BODY_BYTES_MAX
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
    writer.write(body)
    assert (await reader.read()).endswith(body)
    writer.close()


@served()
async def test_a_client_that_is_gone_without_a_word_is_noticed(client: Client) -> None:
    _, writer = await client.open(b"GET /waits HTTP/1.1\r\nHost: x\r\n\r\n")
    sock = (await until_answered(client))._writer.get_extra_info("socket")
    for level, option, value in http_server.NOTICES_GONE:
        assert sock.getsockopt(level, option) == value
    writer.close()


@served()
async def test_a_stop_does_not_wait_for_who_does_not_read(client: Client) -> None:
    with await slow_reader(client, b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n"):
        await until_answered(client)
        await client.server.stop(0)
        await until_nobody_is_there(client)


@served(SEND_TIMEOUT_S=0.05)
async def test_who_does_not_take_the_last_of_his_answer_is_closed(client: Client) -> None:
    # Less than makes an application wait, and more than the kernel takes.
    client.server._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    connection_close = b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with await slow_reader(client, connection_close):
        connection = await until_answered(client)
        while connection.answers:
            await asyncio.sleep(0)
        assert connection._writer.transport.get_write_buffer_size() > 0
        await until_nobody_is_there(client)


@served(SEND_TIMEOUT_S=0.05)
async def test_who_does_not_read_is_closed_and_little_is_kept_for_him(client: Client) -> None:
    sock = await slow_reader(client, b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
    while not client.server._connections:
        await asyncio.sleep(0)
    (connection,) = client.server._connections
    most = 0
    while client.server._connections:
        most = max(most, connection._writer.transport.get_write_buffer_size())
        await asyncio.sleep(0)
    assert 0 < most <= 2 * http_server.PIECE_BYTES
    sock.close()


@served()
async def test_of_too_many_connections_the_idle_ones_go(client: Client) -> None:
    first, _ = await client.open()
    others = [await client.open() for _ in range(CONNECTIONS_MAX)]
    # The oldest one has made room; whoever asks is answered.
    assert await gone(first)
    assert (await client.say(b"GET / HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert len(client.server._connections) <= CONNECTIONS_MAX
    for _, writer in others:
        writer.close()


@pytest.mark.parametrize(
    "request_head",
    [b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nz", b"GET /waits HTTP/1.0\r\n\r\n"],
)
@served()
async def test_a_newcomer_gets_in_when_all_others_are_being_answered(
    client: Client, request_head: bytes
) -> None:
    stream = await client.open(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
    await stream[0].readuntil(b"line")
    others = [await client.open() for _ in range(CONNECTIONS_MAX - 1)]
    for _, writer in others:
        writer.write(request_head)
    connections = client.server._connections
    while not (len(connections) == CONNECTIONS_MAX and all(one.answers for one in connections)):
        await asyncio.sleep(0)
    assert (await client.say(b"GET / HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert await gone(others[0][0])
    assert next(iter(connections)).streams, "a stream is the last to go"
    for _, writer in (stream, *others):
        writer.close()


PROBE = b"GET /asks-nothing HTTP/1.0\r\n\r\n"
# What the clients of a crowd do: they connect, begin a request, ask and do not read, ask what takes long.
CROWDS = {
    "connects": b"",
    "begins": b"GET / HTTP/1.1\r\nHos",
    "reads nothing of much": b"GET /last HTTP/1.1\r\nHost: x\r\n\r\n" * 2,
    "reads nothing of little": b"GET /asks-nothing HTTP/1.1\r\nHost: x\r\n\r\n" * 2,
    "waits": b"GET /waits HTTP/1.1\r\nHost: x\r\n\r\n",
    "sends slowly": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nz",
    "streams": b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.fixture
def crowd() -> Iterator[list[socket.socket]]:
    """Sockets of clients that never read."""
    sockets: list[socket.socket] = []
    yield sockets
    for sock in sockets:
        sock.close()


async def come(client: Client, crowd: list[socket.socket], count: int, request: bytes) -> None:
    """Have so many more clients connect, and let the server get to each of them."""
    for _ in range(count):
        crowd.append(await slow_reader(client, request))
        for _ in range(6):
            await asyncio.sleep(0)


@pytest.mark.parametrize("kind", CROWDS)
@pytest.mark.parametrize(
    ("host", "more"), [("127.0.0.1", CONNECTIONS_MAX // 2), ("127.0.0.2", 2 * CONNECTIONS_MAX)]
)
@served(FRESH_S=2 * PATIENCE_S)
async def test_a_probe_that_has_connected_is_answered_whatever_a_crowd_does(
    client: Client, crowd: list[socket.socket], kind: str, host: str, more: int
) -> None:
    """Between its connect and its request come others: half of all places, or any number from elsewhere."""
    client.server._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    await come(client, crowd, CONNECTIONS_MAX + 8, CROWDS[kind])
    for _ in range(3):
        reader, writer = await client.open(host=host)
        await come(client, crowd, more, CROWDS[kind])
        writer.write(PROBE)
        assert (await reader.read()).endswith(b"answer")
        writer.close()
    assert len(client.server._connections) <= CONNECTIONS_MAX


@served(FRESH_S=2 * PATIENCE_S)
async def test_probes_are_answered_among_two_crowds(client: Client, crowd: list[socket.socket]) -> None:
    """Neither those that only connect nor those that are answered are alone then."""
    for _ in range(CONNECTIONS_MAX):
        await come(client, crowd, 1, CROWDS["connects"])
        await come(client, crowd, 1, CROWDS["waits"])
    for _ in range(3):
        reader, writer = await client.open()
        for _ in range(CONNECTIONS_MAX // 8):
            await come(client, crowd, 1, CROWDS["connects"])
            await come(client, crowd, 1, CROWDS["waits"])
        writer.write(PROBE)
        assert (await reader.read()).endswith(b"answer")
        writer.close()


@served()
async def test_a_probe_in_a_queue_of_connections_is_answered(
    client: Client, crowd: list[socket.socket]
) -> None:
    """It has sent its request before the server accepts it, and very many come at the same moment."""

    def connect() -> socket.socket:
        crowd.append(socket.create_connection(client.place))
        return crowd[-1]

    for _ in range(200):
        connect()
    probe = connect()
    probe.sendall(PROBE)
    for _ in range(200):
        connect()
    probe.setblocking(False)
    answer = b""
    while piece := await asyncio.get_running_loop().sock_recv(probe, 1 << 16):
        answer += piece
    assert answer.endswith(b"answer")


@served()
async def test_an_idle_connection_goes_before_a_new_one(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that has never asked, after a while."""
    monkeypatch.setattr(http_server, "FRESH_S", 2 * PATIENCE_S)
    first = await client.open()
    kept = await client.open(b"GET /asks-nothing HTTP/1.1\r\nHost: x\r\n\r\n")
    await kept[0].readuntil(b"answer")
    monkeypatch.setattr(http_server, "FRESH_S", 0)
    old = await client.open()
    monkeypatch.setattr(http_server, "FRESH_S", 2 * PATIENCE_S)
    others = [await client.open() for _ in range(CONNECTIONS_MAX - 1)]
    assert await gone(kept[0])
    assert await gone(old[0])
    first[1].write(PROBE)
    assert (await first[0].read()).endswith(b"answer")
    for _, writer in (first, kept, old, *others):
        writer.close()


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("127.0.0.1", b"\x7f\0\0\x01"),
        ("::ffff:127.0.0.1", b"\x7f\0\0\x01"),
        ("2001:db8::1:2:3:4", b"\x20\x01\x0d\xb8\0\0\0\0"),
        ("fe80::1%eth0", b"\xfe\x80\0\0\0\0\0\0"),
    ],
)
def test_a_host_has_one_address_or_a_network(address: str, network: bytes) -> None:
    assert http_server._network_of((address, 9644)) == network


@served()
async def test_a_stop_lets_the_answer_under_way_end(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = asyncio.Event()

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        await gate.wait()
        await echo(scope, receive, send)

    monkeypatch.setattr(client.server, "application", waits)
    asked = asyncio.create_task(client.say(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
    while not any(one.answers for one in client.server._connections):
        await asyncio.sleep(0)
    stops = asyncio.create_task(client.server.stop(30))
    await asyncio.sleep(0)
    gate.set()
    assert b"connection: close" in (await asked).lower()
    await stops


@served()
async def test_who_takes_a_large_answer_lets_others_get_on(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client with room for all of its answer never makes the server wait by itself."""
    _, writer = await client.open()
    order: list[str] = []
    write = http_server._Connection._write

    async def noted(_connection: http_server._Connection, _data: bytes) -> None:
        order.append("piece")
        asyncio.get_running_loop().call_soon(order.append, "others")

    monkeypatch.setattr(http_server._Connection, "_write", noted)
    writer.write(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(PATIENCE_S):
        while order.count("piece") < BIG // http_server.PIECE_BYTES:
            await asyncio.sleep(0)
    monkeypatch.setattr(http_server._Connection, "_write", write)
    pieces = "".join(one[0] for one in order)
    assert "ppp" not in pieces, "the status goes with the first piece"
    writer.close()
    await writer.wait_closed()
