"""An HTTP/1.1 server for one process, which bounds all resources that untrusted clients can use.

An application is an ASGI 3 callable (https://asgi.readthedocs.io, scope `http`). h11 parses requests. There
are bounds on connections, on the size of a request, on the time in which a request must arrive and in which a
client must read the response, and on the bytes buffered for a client. TLS and upgrades need a proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import ipaddress
import logging
import math
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import unquote

import h11

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

CONNECTIONS_MAX = 64
# Connections of an address that count as one when there has to be room: its scrapers, probes and a browser.
FAIR_SHARE = 8
NETWORK_BYTES = 8
# Connections that are accepted in one round of the event loop. A request that came with its connection is
# known five rounds later, before newcomers need its room. The kernel keeps more.
ACCEPTED_AT_ONCE = 8
BACKLOG = 1024
# A connection without a request does not count as idle for this time: its request may be on its way.
FRESH_S = 1.0
HEAD_BYTES_MAX = 16 << 10
BODY_BYTES_MAX = 1 << 20
# A request, with its body, has to be whole this long after its connection was opened or its first byte came.
REQUEST_TIMEOUT_S = 10.0
# How long a connection waits for its next request. Scrapers send one once a minute or more often.
IDLE_TIMEOUT_S = 75.0
# A client has to take each piece of an answer in SEND_TIMEOUT_S, and the whole answer in ANSWER_TIMEOUT_S.
SEND_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 60.0
# A client that has closed its side may have disconnected; it gets responses within this time.
HALF_CLOSED_S = 1.0
# How long the client's last bytes are read before its connection is closed.
LINGER_S = 1.0
PIECE_BYTES = 64 << 10
# A client that vanishes, such as a sleeping laptop, is noticed after 30 s, whether we send it anything or
# not. Connections have these options from the socket that listens.
NOTICES_GONE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
)

log = logging.getLogger("mpbroker.exporter")


class TooLarge(Exception):
    """Raised if the body of a request has more than BODY_BYTES_MAX bytes."""


class ClientGone(Exception):
    """Raised if the client has closed the connection, or does not send or read in time."""


class HttpServer:
    """Serves an application on a listening socket, in the running event loop."""

    def __init__(self, application: Application, sock: socket.socket) -> None:
        self.application = application
        self._sock = sock
        # Connections by age.
        self._connections: dict[_Connection, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        for level, option, value in NOTICES_GONE:
            self._sock.setsockopt(level, option, value)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Protocol(self), sock=self._sock, backlog=ACCEPTED_AT_ONCE
        )
        self._sock.listen(BACKLOG)

    async def stop(self, grace_s: float) -> None:
        """Stop accepting. Close each connection after its current response, or after `grace_s` seconds."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.leave()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)
        for connection in self._connections:
            connection.abort()
        for task in self._tasks:
            task.cancel()

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Connection:
        """Begin to serve an accepted connection, and return the connection."""
        connection = _Connection(self.application, reader, writer)
        if len(self._connections) >= CONNECTIONS_MAX:
            self._make_room()
        self._connections[connection] = None
        task = asyncio.get_running_loop().create_task(connection.serve())
        self._tasks.add(task)

        def ended(_: object) -> None:
            self._connections.pop(connection, None)
            self._tasks.discard(task)

        task.add_done_callback(ended)
        return connection

    def _make_room(self) -> None:
        """Abort a connection to make room for a new connection, which may be a health probe.

        Choose among the connections of kind WAITS; if there are none, among those of the most common kind.
        Abort the oldest of these connections from the address that has the most of them.
        """
        kinds: dict[_Kind, list[_Connection]] = {}
        for connection in self._connections:
            kinds.setdefault(connection.kind(), []).append(connection)
        candidates = kinds.get(_Kind.WAITS) or max(kinds.values(), key=len)
        shares = Counter(one.address for one in candidates)
        leaving = max(candidates, key=lambda one: max(shares[one.address], FAIR_SHARE))
        del self._connections[leaving]
        leaving.abort()


class _Protocol(asyncio.StreamReaderProtocol):
    """Notifies a connection that its client has closed it, even while the connection is not read."""

    def __init__(self, server: HttpServer) -> None:
        # A reader keeps twice this much of the bytes that come during a response.
        self._reader = asyncio.StreamReader(HEAD_BYTES_MAX)
        super().__init__(self._reader)
        self._server = server
        self._connection: _Connection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport)
        writer = asyncio.StreamWriter(transport, self, self._reader, asyncio.get_running_loop())
        self._connection = self._server.connected(self._reader, writer)

    def eof_received(self) -> bool | None:
        if self._connection is not None:
            self._connection.client_has_closed(HALF_CLOSED_S)
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection is not None:
            self._connection.client_has_closed(0)
            self._connection = None
        super().connection_lost(exc)


class _Kind(Enum):
    """What a connection waits for."""

    FRESH = auto()  # a request, for a moment
    WAITS = auto()  # its client: for a request, or until it takes its answer
    ANSWERED = auto()  # the application
    STREAM = auto()  # the application, which answers with a stream


class _Connection:
    """Serves one client's connection, one request after the other."""

    def __init__(
        self, application: Application, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.answers = False  # a request is being answered
        self.streams = False  # by a stream
        self.address = _network_of(writer.get_extra_info("peername"))
        self._fresh_until = asyncio.get_running_loop().time() + FRESH_S
        self._application = application
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX - 1)
        self._leaves = False
        self._sent_status = False
        self._body_bytes = 0
        self._request_deadline = 0.0
        self._limit: asyncio.Timeout | None = None  # of the answer under way
        # The event loop's time after which the client is taken as disconnected.
        self._client_gone_at = math.inf
        writer.transport.set_write_buffer_limits(high=PIECE_BYTES)

    def abort(self) -> None:
        self._writer.transport.abort()

    def kind(self) -> _Kind:
        if self._writer.transport.get_write_buffer_size():
            return _Kind.WAITS
        if self.answers:
            return _Kind.STREAM if self.streams else _Kind.ANSWERED
        return _Kind.FRESH if asyncio.get_running_loop().time() < self._fresh_until else _Kind.WAITS

    def leave(self) -> None:
        """End the connection: after the current answer, or at once if there is none."""
        self._leaves = True
        if not self.answers:
            self.abort()

    def client_has_closed(self, patience_s: float) -> None:
        """Note that the client has closed its side. Let no response last beyond `patience_s` from now."""
        self._client_gone_at = min(asyncio.get_running_loop().time() + patience_s, self._client_gone_at)
        if self._limit is not None and not self._limit.expired():
            until = self._limit.when()
            self._limit.reschedule(min(self._client_gone_at, math.inf if until is None else until))

    async def serve(self) -> None:
        try:
            goes_on = await self._serve_one()
            while goes_on:
                await self._await_request()
                goes_on = await self._serve_one()
            # After a close nothing bounds how long a client takes the rest of its answer.
            self._writer.transport.set_write_buffer_limits(high=0)
            await self._drain()
        except ClientGone:
            self.abort()  # also the rest of a response that the client does not take
        finally:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()

    async def _await_request(self) -> None:
        """Wait until the first bytes of the next request are received. Raises ClientGone."""
        if self._http.trailing_data == (b"", False):
            await self._read(time.monotonic() + IDLE_TIMEOUT_S)

    async def _serve_one(self) -> bool:
        """Serve the next request. Return whether another one may follow. Raises ClientGone."""
        self._sent_status, self._body_bytes = False, 0
        self._request_deadline = time.monotonic() + REQUEST_TIMEOUT_S
        try:
            event = await self._next_event()
            if not isinstance(event, h11.Request):
                return False
            self.answers = True
            self._fresh_until = 0.0
            _check(event)
            if not _has_body(event):
                self._http.next_event()  # its end
            await self._answer(event)
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint, str(error))
        except TooLarge:
            await self._refuse(413, f"a request has {BODY_BYTES_MAX} bytes at most")
        except ClientGone:
            raise
        except Exception:
            log.exception("an HTTP request fails")
            await self._refuse(500, "the request fails; the broker's log has the reason")
        finally:
            self.answers = self.streams = False
        if self._http.their_state in (h11.SEND_BODY, h11.ERROR):
            await self._linger()
        if self._leaves or self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def _answer(self, request: h11.Request) -> None:
        """Let the application answer; after ANSWER_TIMEOUT_S answer with an error. Raises ClientGone."""
        until = asyncio.get_running_loop().time() + ANSWER_TIMEOUT_S
        self._limit = limit = asyncio.timeout_at(min(until, self._client_gone_at))
        try:
            async with limit:
                await self._application(self._scope(request), self._receive, self._send)
        except TimeoutError:
            if not limit.expired():
                raise
            if self._client_gone_at < math.inf:
                raise ClientGone from None
            await self._refuse(503, f"this takes longer than {ANSWER_TIMEOUT_S:.0f} s: ask for less")
        else:
            if self._http.our_state is h11.SEND_BODY or not self._sent_status:
                raise RuntimeError("the application has not ended its answer")
        finally:
            self._limit = None

    def _scope(self, request: h11.Request) -> Scope:
        path, _, query = request.target.partition(b"?")
        peer, here = (self._writer.get_extra_info(name) for name in ("peername", "sockname"))
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": request.http_version.decode(),
            "method": request.method.decode(),
            "scheme": "http",
            "path": unquote(path.decode("latin-1"), errors="replace"),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(request.headers),
            "client": peer[:2] if peer else None,
            "server": here[:2] if here else None,
        }

    async def _next_event(self) -> object:
        """Read until h11 has an event, and return it. Raises ClientGone, h11.RemoteProtocolError."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[])
                await self._write(self._http.send(go_on) or b"")
            await self._read(self._request_deadline)
        return event

    async def _read(self, deadline: float) -> None:
        """Read more bytes for h11 before `deadline`, a time of the monotonic clock. Raises ClientGone."""
        # h11 bounds a head only while it is not whole: it never has more bytes than a head may have.
        room = HEAD_BYTES_MAX - len(self._http.trailing_data[0])
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                self._http.receive_data(await self._reader.read(room))
        except (OSError, TimeoutError) as error:
            raise ClientGone from error

    async def _receive(self) -> Message:
        """Return the next part of the request's body. (ASGI's `receive`: http.request, http.disconnect.)"""
        if self._http.their_state is not h11.SEND_BODY and self._http.their_state is not h11.IDLE:
            return {"type": "http.request", "body": b"", "more_body": False}
        event = await self._next_event()
        if isinstance(event, h11.Data):
            self._body_bytes += len(event.data)
            if self._body_bytes > BODY_BYTES_MAX:
                raise TooLarge
            return {"type": "http.request", "body": bytes(event.data), "more_body": True}
        if isinstance(event, h11.ConnectionClosed):
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": b"", "more_body": False}

    async def _send(self, message: Message) -> None:
        """Send a part of the response. (ASGI's `send`: http.response.start, http.response.body.)"""
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), (b"date", email.utils.formatdate(usegmt=True).encode())]
            # A body that the application does not read is not awaited.
            if self._leaves or self._http.their_state is h11.SEND_BODY:
                headers.append((b"connection", b"close"))
            status = message["status"]
            response = h11.Response(
                status_code=status, headers=headers, reason=HTTPStatus(status).phrase.encode()
            )
            self._sent_status = True
            await self._write(self._http.send(response) or b"")
            if not any(name.lower() == b"content-length" for name, _ in headers):
                self._begin_stream()
            return
        body = message.get("body", b"")
        for at in range(0, len(body), PIECE_BYTES):
            await self._write(self._http.send(h11.Data(data=body[at : at + PIECE_BYTES])) or b"")
            # A client that takes all at once would block the others meanwhile.
            await asyncio.sleep(0)
        if not message.get("more_body", False):
            await self._write(self._http.send(h11.EndOfMessage()) or b"")

    def _begin_stream(self) -> None:
        """Remove the deadline of a response without a length. The application has to bound such responses."""
        self.streams = True
        if self._limit is not None and self._client_gone_at == math.inf:
            self._limit.reschedule(None)

    async def _write(self, data: bytes) -> None:
        """Write `data`, and wait until the write buffer has room for more. Raises ClientGone."""
        self._writer.write(data)
        await self._drain()

    async def _drain(self) -> None:
        """Wait until the client has taken enough of the written bytes. Raises ClientGone."""
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await self._writer.drain()
        except (OSError, TimeoutError) as error:
            raise ClientGone from error

    async def _refuse(self, status: int, why: str) -> None:
        """Answer with an error status and close. Raises ClientGone if a response was begun before."""
        if self._sent_status or self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            raise ClientGone
        body = f"{why}\n".encode(errors="replace")
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [
                    (b"content-type", b"text/plain; charset=utf-8"),
                    (b"content-length", str(len(body)).encode()),
                    (b"connection", b"close"),
                ],
            }
        )
        await self._send({"type": "http.response.body", "body": body})

    async def _linger(self) -> None:
        """Read and drop what the client sends, for up to LINGER_S.

        To close with unread bytes would reset the connection, and the client could lose the response.
        """
        with contextlib.suppress(OSError, TimeoutError):
            self._writer.write_eof()
            async with asyncio.timeout(LINGER_S):
                left = BODY_BYTES_MAX
                while left > 0 and (piece := await self._reader.read(PIECE_BYTES)):
                    left -= len(piece)


def _network_of(peer: tuple[Any, ...] | None) -> bytes:
    """Return a client's packed IPv4 address, or its packed IPv6 network (/64); b"" without an address."""
    if peer is None:
        return b""
    address = ipaddress.ip_address(peer[0].partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        return address.ipv4_mapped.packed if address.ipv4_mapped else address.packed[:NETWORK_BYTES]
    return address.packed


def _check(request: h11.Request) -> None:
    """Raise RemoteProtocolError unless a request is HTTP/1 of unambiguous length (RFC 9112, 2.3, 6.1)."""
    if not request.http_version.startswith(b"1."):
        raise h11.RemoteProtocolError("only HTTP/1.0 and HTTP/1.1", error_status_hint=505)
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in request.headers}:
        raise h11.RemoteProtocolError("either Content-Length or Transfer-Encoding", error_status_hint=400)


def _has_body(request: h11.Request) -> bool:
    framing = (b"content-length", b"transfer-encoding")
    return any(name in framing and value != b"0" for name, value in request.headers)
