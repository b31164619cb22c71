"""TLS over a socket that takes and gives what it likes: nothing is lost, nothing is kept that grows."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.network.tls_pipe import UNREAD_BYTES_MAX, TlsPipe
from tests.security.certificates import Authority

AUTHORITY = Authority()


class Pair:
    """The pipe under test and a client of OpenSSL's own."""

    def __init__(self, directory: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(AUTHORITY.sign("broker").write(directory / "broker.pem"))
        self.served, plain = socket.socketpair()
        self.served.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 10)
        self.served.setblocking(False)
        self.pipe = TlsPipe(self.served, context)
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

    def received(self) -> bytes:
        try:
            return self.client.recv(1 << 20)
        except ssl.SSLWantReadError:
            return b""


@pytest.fixture(name="pair")
def _pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.client.close()
    pair.served.close()


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


class Chatty:
    """OpenSSL with a client that only asks for new keys: always something to answer, and nothing to read."""

    def __init__(self, outgoing: ssl.MemoryBIO) -> None:
        self.outgoing = outgoing

    def read(self, *_: object) -> int:
        self.outgoing.write(bytes(1000))
        raise ssl.SSLWantReadError


def test_who_reads_no_answers_of_tls_itself_is_cut_off(pair: Pair) -> None:
    pair.pipe.tls = Chatty(pair.pipe._outgoing)  # type: ignore[assignment]

    def read_on() -> None:
        for _ in range(10_000):
            with contextlib.suppress(BlockingIOError):
                pair.pipe.recv_into(memoryview(bytearray(100)))
            pair.pipe.flush()

    with pytest.raises(ConnectionAbortedError, match="reads nothing"):
        read_on()
    assert pair.pipe._outgoing.pending <= UNREAD_BYTES_MAX + 1000
