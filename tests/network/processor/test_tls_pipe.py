"""TLS over a socket that takes and gives what it likes: nothing is lost, nothing is kept that grows."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.config.security import SecuritySettings
from mpbroker.network.processor.tls_pipe import TlsPipe
from mpbroker.security.openssl import ServerContext
from mpbroker.security.tls import load_context
from tests.support.certificates import Authority

AUTHORITY = Authority()


def context(directory: Path) -> ServerContext:
    store = AUTHORITY.sign("broker").write(directory / "broker.pem")
    return load_context(SecuritySettings(ssl_keystore_location=str(store)))


class Pair:
    """The pipe under test and a client of OpenSSL's own."""

    def __init__(self, directory: Path) -> None:
        self.served, plain = socket.socketpair()
        self.served.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 10)
        self.served.setblocking(False)
        self.pipe = TlsPipe(self.served.fileno(), context(directory))
        trusting = ssl.create_default_context(cadata=AUTHORITY.pem.decode())
        self.client = trusting.wrap_socket(plain, server_hostname="localhost", do_handshake_on_connect=False)
        self.client.setblocking(False)
        shaken = False
        while not (self.pipe.handshake() and shaken):
            try:
                self.client.do_handshake()
                shaken = True
            except ssl.SSLWantReadError:
                pass

    def close(self) -> None:
        self.client.close()
        self.served.close()

    def received(self) -> bytes:
        try:
            return self.client.recv(1 << 20)
        except ssl.SSLWantReadError:
            return b""


@pytest.fixture(name="pair")
def _pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.close()


def test_who_says_nothing_has_no_tls_yet(tmp_path: Path) -> None:
    """Check that anything but a handshake raises an error before the first byte."""
    served, silent = socket.socketpair()
    with served, silent:
        served.setblocking(False)
        pipe = TlsPipe(served.fileno(), context(tmp_path))
        assert not pipe.handshake()
        assert (pipe.cipher, pipe.version, pipe.peer_certificate) == ("", "", None)
        assert not pipe.has_begun
        with pytest.raises(ssl.SSLError, match="before the handshake"):
            pipe.encrypt(b"data")
        with pytest.raises(ssl.SSLError, match="before the handshake"):
            pipe.recv(1)
        pipe.close()
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.recv(1)
        silent.shutdown(socket.SHUT_WR)
        with pytest.raises(ssl.SSLEOFError):
            pipe.handshake()


@pytest.mark.parametrize("size", [1, 16 << 10, (16 << 10) + 1, 128 << 10, 1_000_003])
def test_what_is_sent_in_parts_arrives_whole(pair: Pair, size: int) -> None:
    data = random.Random(size).randbytes(size)
    got, waited = b"", 0
    for _ in range(2):
        pair.pipe.encrypt(memoryview(data))
        while not pair.pipe.flush():
            waited += 1
            got += pair.received()
    while len(got) < 2 * size:
        got += pair.received()
    assert got == data * 2
    assert waited or size < 64 << 10, "the socket took all at once: nothing was shown"


def test_nothing_more_is_sent_before_the_last_is_written(pair: Pair) -> None:
    pair.pipe.encrypt(memoryview(bytes(1 << 20)))
    assert not pair.pipe.flush()
    with pytest.raises(BlockingIOError):
        pair.pipe.send(b"behind")


def test_what_came_too_early_is_kept(pair: Pair) -> None:
    """Check it with several records in one read of the socket, and a caller with little room."""
    data = random.Random(1).randbytes(50_000)
    assert pair.client.send(data) == len(data)
    got = b""
    while len(got) < len(data):
        got += pair.pipe.recv(7000)
    assert got == data
    with pytest.raises(BlockingIOError):
        pair.pipe.recv(1)


def test_two_pipes_share_buffers_and_no_byte(tmp_path: Path) -> None:
    pairs = [Pair(tmp_path), Pair(tmp_path)]
    for number, pair in enumerate(pairs):
        pair.client.send(bytes([number]) * 40_000)
    got = [b"", b""]
    while min(map(len, got)) < 40_000:
        for number, pair in enumerate(pairs):
            with contextlib.suppress(BlockingIOError):
                got[number] += pair.pipe.recv(9000)
    assert got == [bytes(40_000), b"\1" * 40_000]
    for pair in pairs:
        pair.close()


def test_the_end_is_the_end(pair: Pair) -> None:
    assert pair.received() == b"", "it has read the tickets: what stays unread would make its close a reset"
    pair.client.send(b"last words")
    pair.client.close()
    assert pair.pipe.recv(100) == b"last words"
    assert pair.pipe.recv(100) == b""
    assert pair.pipe.recv(100) == b""


def test_what_is_no_tls_is_refused_with_the_reason(tmp_path: Path) -> None:
    served, plain = socket.socketpair()
    with served, plain:
        served.setblocking(False)
        pipe = TlsPipe(served.fileno(), context(tmp_path))
        plain.send(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(ssl.SSLError, match="http request"):
            pipe.handshake()


def test_a_client_that_leaves_in_the_handshake(tmp_path: Path) -> None:
    served, plain = socket.socketpair()
    with served:
        served.setblocking(False)
        pipe = TlsPipe(served.fileno(), context(tmp_path))
        assert not pipe.handshake()
        plain.close()
        with pytest.raises(ssl.SSLEOFError):
            pipe.handshake()
