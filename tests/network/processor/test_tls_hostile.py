"""TLS clients that want to hold up, fill or break the processor they share with others."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.config.security import SecuritySettings
from mpbroker.network.processor.tls_pipe import (
    CIPHERTEXT_BYTES_MAX,
    IDLE_RECORDS_MAX,
    UNREAD_BYTES_MAX,
    WASTED_BYTES_MAX,
    MoreLater,
    TlsPipe,
)
from mpbroker.security.openssl import ServerContext
from mpbroker.security.tls import load_context
from tests.network.processor.test_tls_pipe import AUTHORITY, Pair
from tests.support.certificates import Authority
from tests.support.tls_key_changes import TLS_1_2, TLS_1_3, KeyChanger

# A record with a change of keys, and what it is answered with.
CHANGE_BYTES = 27
# What OpenSSL reads of certificates before it says that they are too many.
CHAIN_BYTES_MAX = 100 << 10
CHAINED = Authority("somebody").sign("one of many", hosts=["x" * 60] * 20)


def asking_context(directory: Path) -> ServerContext:
    """Return the context of a listener that has a certificate, and asks its clients for one."""
    store = AUTHORITY.sign("broker").write(directory / "broker.pem")
    authority = AUTHORITY.write(directory / "ca.pem")
    return load_context(
        SecuritySettings(
            ssl_keystore_location=str(store),
            ssl_truststore_location=str(authority),
            ssl_client_auth="requested",
        )
    )


class Hostile:
    """A pipe and a client beneath whose TLS one can reach; the broker's answers go as far as 8 KiB."""

    def __init__(self, directory: Path, version: int = TLS_1_3, chain: bytes = b"") -> None:
        own = asking_context(directory)
        store = AUTHORITY.sign("Mallory").write(directory / "mallory.pem")
        store.write_bytes(store.read_bytes() + chain)
        self.served, self.plain = socket.socketpair()
        self.served.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 10)
        self.plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        self.served.setblocking(False)
        self.plain.setblocking(False)
        self.pipe = TlsPipe(self.served.fileno(), own)
        self.client = KeyChanger(self.plain, store, version)

    def shake(self) -> int:
        """-> how many turns it took."""
        shaken, turns = False, 0
        while True:
            turns += 1
            with contextlib.suppress(MoreLater):
                if self.pipe.handshake() and shaken:
                    return turns
            shaken = self.client.shake() or shaken

    def close(self) -> None:
        self.client.close()
        self.plain.close()
        self.served.close()

    def takes(self, most: int = 1 << 20) -> bytes:
        """Take what the client's socket has."""
        with contextlib.suppress(BlockingIOError):
            return self.plain.recv(most)
        return b""

    def send(self, data: bytes) -> None:
        assert self.plain.send(data) == len(data)


@pytest.fixture(name="hostile")
def _hostile(tmp_path: Path) -> Iterator[Hostile]:
    made = Hostile(tmp_path)
    made.shake()
    yield made
    made.close()


def test_what_one_client_did_not_take_never_reaches_another(tmp_path: Path) -> None:
    """Check it after a failed write, whose records stay in the buffer that all connections share."""
    gone, there = Pair(tmp_path), Pair(tmp_path)
    gone.client.close()
    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        gone.pipe.encrypt(memoryview(bytes(1000)))
    there.pipe.encrypt(memoryview(b"for this one alone"))
    assert there.received() == b"for this one alone"
    there.client.send(b"and back")
    assert there.pipe.recv(100) == b"and back"
    for pair in (gone, there):
        pair.close()


def test_changes_of_keys_have_a_bounded_share(hostile: Hostile) -> None:
    hostile.send(hostile.client.changes(10 * IDLE_RECORDS_MAX, asks=False) + hostile.client.says(b"data"))
    for _ in range(10):
        with pytest.raises(MoreLater):
            hostile.pipe.recv(100)
    assert hostile.pipe.recv(100) == b"data"


def test_a_byte_between_them_does_not_renew_the_share(hostile: Hostile) -> None:
    piece = IDLE_RECORDS_MAX // 2
    flood = b"".join(hostile.client.changes(piece, asks=False) + hostile.client.says(b"x") for _ in range(40))
    hostile.send(flood)
    calls: list[int] = []
    while sum(calls) < 40:
        with contextlib.suppress(MoreLater):
            calls.append(len(hostile.pipe.recv(4096)))
    # Two of these pieces are the share.
    assert max(calls) == 2
    with pytest.raises(BlockingIOError):
        hostile.pipe.recv(1)


def test_a_byte_in_each_record_has_a_bounded_share(hostile: Hostile) -> None:
    """Check it with records of one byte of data, for each of which 22 bytes are received."""
    first = hostile.client.says(b"-")
    count = 2 * WASTED_BYTES_MAX // len(first)
    hostile.send(first + b"".join(hostile.client.says(b"-") for _ in range(count - 1)))
    calls: list[int] = []
    while sum(calls) < count:
        calls.append(len(hostile.pipe.recv(1 << 20)))
        assert hostile.pipe.had_share or sum(calls) == count
    assert max(calls) * (len(first) - 1) <= WASTED_BYTES_MAX + CIPHERTEXT_BYTES_MAX
    with pytest.raises(BlockingIOError):
        hostile.pipe.recv(1)


def test_who_reads_no_answers_of_tls_itself_is_cut_off(hostile: Hostile) -> None:
    def go_on() -> None:
        for _ in range(UNREAD_BYTES_MAX):
            hostile.send(hostile.client.changes(IDLE_RECORDS_MAX, asks=True))
            with contextlib.suppress(BlockingIOError, MoreLater):
                hostile.pipe.recv(100)
            hostile.pipe.flush()

    with pytest.raises(ssl.SSLError, match="reads nothing"):
        go_on()
    assert hostile.pipe.held_bytes <= UNREAD_BYTES_MAX + IDLE_RECORDS_MAX * CHANGE_BYTES


def test_who_reads_some_of_them_and_never_all_costs_no_more(hostile: Hostile) -> None:
    """Check that bytes that were sent are not kept in the buffer with those that wait."""
    taken = 0
    while taken < 4 * UNREAD_BYTES_MAX:
        while hostile.pipe.held_bytes < UNREAD_BYTES_MAX // 2:
            hostile.send(hostile.client.changes(IDLE_RECORDS_MAX, asks=True))
            with contextlib.suppress(BlockingIOError, MoreLater):
                hostile.pipe.recv(100)
            hostile.pipe.flush()
        before = hostile.pipe.held_bytes
        taken += len(hostile.takes(8 << 10))
        assert not hostile.pipe.flush(), "it has all: nothing is shown"
        hostile.send(hostile.client.changes(1, asks=True))
        with contextlib.suppress(BlockingIOError, MoreLater):
            hostile.pipe.recv(100)
        assert hostile.pipe.held_bytes <= before


def test_a_new_handshake_on_an_old_connection_is_refused(tmp_path: Path) -> None:
    """Check that TLS 1.2's renegotiation is refused, and that the client may continue as before."""
    hostile = Hostile(tmp_path, TLS_1_2)
    hostile.shake()
    assert hostile.pipe.version == "TLSv1.2"
    before = hostile.takes()
    hostile.client.hears(before)
    hostile.send(hostile.client.renegotiation())
    with pytest.raises(BlockingIOError):
        hostile.pipe.recv(100)
    hostile.pipe.flush()
    answer = hostile.takes()
    # One record, an alert (21): no hello of ours, no certificate, no signature that costs us a millisecond.
    assert answer[0] == 21
    assert 5 + int.from_bytes(answer[3:5]) == len(answer)
    hostile.close()


def test_a_chain_of_many_certificates_is_read_piece_by_piece(tmp_path: Path) -> None:
    hostile = Hostile(tmp_path, chain=CHAINED.pem * (CHAIN_BYTES_MAX * 9 // 10 // len(CHAINED.der)))
    hostile.shake()
    assert hostile.pipe.peer_certificate is not None
    assert hostile.pipe.held_bytes == 0
    hostile.send(hostile.client.says(b"in"))
    assert hostile.pipe.recv(10) == b"in"
    hostile.close()


def test_a_chain_beyond_all_measure_is_refused(tmp_path: Path) -> None:
    hostile = Hostile(tmp_path, chain=CHAINED.pem * (CHAIN_BYTES_MAX * 3 // len(CHAINED.der)))
    with pytest.raises(ssl.SSLError, match=r"(?i)excessive"):
        hostile.shake()
    assert hostile.pipe.held_bytes <= 2 * CIPHERTEXT_BYTES_MAX
    hostile.close()


@pytest.mark.parametrize("version", [TLS_1_2, TLS_1_3])
def test_a_handshake_in_single_bytes(tmp_path: Path, version: int) -> None:
    hostile = Hostile(tmp_path, version)
    own, passed = socket.socketpair()
    with own, passed:
        own.setblocking(False)
        hostile.client.speak_over(passed)
        passed.setblocking(False)
        shaken, done = False, False
        while not (done and shaken):
            shaken = hostile.client.shake() or shaken
            with contextlib.suppress(BlockingIOError):
                for byte in own.recv(1 << 20):
                    hostile.plain.send(bytes([byte]))
                    done = hostile.pipe.handshake() or done
            with contextlib.suppress(BlockingIOError):
                own.send(hostile.plain.recv(1 << 20))
        hostile.plain.send(hostile.client.says(b"at last"))
        assert hostile.pipe.recv(100) == b"at last"
    hostile.close()


def test_a_handshake_in_records_of_one_byte_has_a_bounded_share(tmp_path: Path) -> None:
    hostile = Hostile(tmp_path)
    assert not hostile.client.shake()
    hello = hostile.served.recv(1 << 20)
    kind, body = hello[:3], hello[5:]
    hostile.send(b"".join(kind + b"\0\1" + bytes([byte]) for byte in body))
    # Its other flight is a usual one.
    assert hostile.shake() >= len(body) // IDLE_RECORDS_MAX
    hostile.close()


def test_who_will_send_nothing_more_is_still_answered(hostile: Hostile) -> None:
    """Send close_notify behind the request and end the stream, and check that the answer arrives."""
    hostile.client.hears(hostile.takes())
    data = random.Random(1).randbytes(300_000)
    hostile.send(hostile.client.says(b"question") + hostile.client.goodbye())
    hostile.plain.shutdown(socket.SHUT_WR)
    assert hostile.pipe.recv(100) == b"question"
    heard = b""
    hostile.pipe.encrypt(memoryview(data))
    while not hostile.pipe.flush():
        heard += hostile.client.hears(hostile.takes())
    while more := hostile.takes():
        heard += hostile.client.hears(more)
    assert heard == data
    assert hostile.pipe.recv(100) == b""


def test_why_a_connection_is_bad_is_told_although_data_came_first(hostile: Hostile) -> None:
    good, bad = hostile.client.says(b"good"), bytearray(hostile.client.says(b"bad"))
    bad[-1] ^= 1
    hostile.send(good + bad)
    assert hostile.pipe.recv(100) == b"good"
    for _ in range(2):
        with pytest.raises(ssl.SSLError, match="bad record mac"):
            hostile.pipe.recv(100)


def test_a_goodbye_while_an_answer_waits_does_not_block_or_lose_it(hostile: Hostile) -> None:
    hostile.client.hears(hostile.takes())
    data = random.Random(2).randbytes(100_000)
    assert not hostile.pipe.encrypt(memoryview(data))
    hostile.pipe.close()
    heard = b""
    while not hostile.pipe.flush():
        heard += hostile.client.hears(hostile.takes())
    while more := hostile.takes():
        heard += hostile.client.hears(more)
    assert heard == data
