"""TLS channels of a processor: their share of a turn, of memory, of time; what ends one ends no other."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import ssl
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpbroker.ipc.counters import Counter
from mpbroker.network.processor.channel import CloseReason
from mpbroker.network.processor.secure_channel import MOVED_PER_TURN_MAX, Stage
from mpbroker.network.processor.tls_pipe import CIPHERTEXT_BYTES_MAX, IDLE_RECORDS_MAX, TlsPipe
from tests.support.polling import PATIENCE_S
from tests.support.processor_rig import answer_frame, frame
from tests.support.tls_key_changes import TLS_1_2, TLS_1_3, KeyChanger
from tests.support.tls_processor_rig import METADATA, TLS, SecureRig, key_changer, receive, secure_rig

POOL = 4 << 20
# What is encrypted at a time, and first (turn_tls.pyx).
CHUNK_BYTES, FIRST_CHUNK_BYTES = 126 << 10, 63 << 10
# Of TCP over IPv6 on the loopback interface: its MTU of 64 KiB without 40 bytes for IP and 32 for TCP.
SEGMENT_BYTES = (64 << 10) - 72


@pytest.fixture(name="rig")
def _rig(tmp_path: Path) -> Iterator[SecureRig]:
    with secure_rig(tmp_path) as made:
        yield made


def consumed_bytes(sock: socket.socket) -> int:
    """How much of what has come was read: tcp_info's tcpi_bytes_received without what lies in the queue."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
    queued = bytearray(4)
    fcntl.ioctl(sock, termios.FIONREAD, queued)
    return int.from_bytes(info[128:136], sys.byteorder) - int.from_bytes(queued, sys.byteorder)


CHANGES = 5000


def test_records_without_data_have_a_bounded_share(rig: SecureRig) -> None:
    """Check that a turn handles only a few of endless key updates."""
    plain = rig.meet(TLS)
    plain.setblocking(False)
    (peer,) = rig.secure.channels.peers.values()
    assert peer.sock is not None
    assert peer.pipe is not None
    with contextlib.closing(KeyChanger(plain, rig.janes_store())) as client:
        shaken = False
        while not shaken or peer.stage is Stage.SHAKING:
            shaken = client.shake() or shaken
            rig.step()
        before = consumed_bytes(peer.sock)
        flood = client.changes(CHANGES, asks=False)
        assert plain.send(flood) == len(flood)
    turns = 0
    # Nothing but its own mark brings the processor back: no edge tells of what is there already.
    while consumed_bytes(peer.sock) - before < len(flood) or peer.pipe.held_bytes:
        rig.turn.turn(0)
        rig.secure.serve()
        turns += 1
        # What was received and not yet looked at is kept, at most a buffer of it.
        assert peer.pipe.held_bytes <= CIPHERTEXT_BYTES_MAX
    assert turns >= CHANGES // IDLE_RECORDS_MAX
    plain.close()


def test_a_client_that_asks_for_many_new_keys_and_hears_the_answers_is_served(rig: SecureRig) -> None:
    """Check that TLS's own answers are sent even when the client has used its share of the turn."""
    with key_changer(rig) as (client, plain):
        asked = client.changes(CHANGES, asks=True)
        plain.sendall(asked + client.says(frame(METADATA, 1, 1)))
        taken: list[Any] = []
        answers = 0

        def came() -> bool:
            nonlocal answers
            with contextlib.suppress(BlockingIOError):
                answers += len(plain.recv(1 << 20))
            taken.extend(rig.requests_taken())
            return bool(taken) and answers >= len(asked) * 9 // 10

        rig.until(came)
    assert rig.ends == []
    rig.answer(taken[0], answer_frame(1))


def test_memory_that_ends_at_one_connection_is_its_own_end(
    rig: SecureRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class WithoutMemory(TlsPipe):
        """OpenSSL's side of a connection is made when its client says something."""

        def handshake(self) -> bool:
            raise MemoryError

    good = rig.handshake()
    with monkeypatch.context() as patch:
        patch.setattr("mpbroker.network.processor.tls_sasl.TlsPipe", WithoutMemory)
        rig.meet(TLS)
        rig.step()
    assert [reason for _, reason in rig.ends] == [CloseReason.CLOSED_FAILED]
    assert "MemoryError" in caplog.text
    assert " on TLS: an error of the processor" in caplog.text
    taken = rig.ask(good, frame(METADATA, 1, 1))
    rig.answer(taken, answer_frame(1))


def push(rig: SecureRig, client: ssl.SSLSocket, data: bytes) -> int:
    """-> how much of it the client could send: as much as the broker reads, and what fits on the way."""
    sent = quiet = 0
    while sent < len(data) and quiet < 50:
        quiet += 1
        with contextlib.suppress(ssl.SSLWantWriteError, ssl.SSLWantReadError):
            sent += client.send(data[sent : sent + (64 << 10)])
            quiet = 0
        rig.step(1)
    rig.step(40)
    return sent


def test_memory_that_is_used_up_mutes_and_what_is_freed_goes_to_who_waits(tmp_path: Path) -> None:
    """Check Kafka's rule: of requests of 60 % each, the second is let in and the third waits."""
    size = POOL * 6 // 10
    with secure_rig(tmp_path, memory_bytes=POOL) as rig:
        clients = [rig.handshake() for _ in range(3)]
        for number, client in enumerate(clients[:2]):
            data = frame(METADATA, 1, number, bytes(size))
            assert push(rig, client, data) == len(data)
        first, second = rig.requests_taken()
        data = frame(METADATA, 1, 2, bytes(size))
        sent = push(rig, clients[2], data)
        assert rig.requests_taken() == []
        assert rig.counter(Counter.COUNT_MEMORY_FULL) == 1, "who waits is not tried again and again"
        (third,) = (
            peer
            for peer in rig.secure.channels.peers.values()
            if peer.connection not in (first.connection, second.connection)
        )
        assert third.pipe is not None
        assert third.pipe.held_bytes <= CIPHERTEXT_BYTES_MAX
        for request in (first, second):
            rig.answer(request, answer_frame(request.correlation))
        rig.step()
        # A client of TLS must offer again what was refused.
        sent += push(rig, clients[2], data[sent:])
        assert sent == len(data)
        (taken,) = rig.requests_taken()
        assert taken.correlation == 2
        assert rig.bytes_of(taken) == data
        rig.answer(taken, answer_frame(2))
        rig.step()


def test_who_reads_nothing_holds_a_chunk_and_goes_when_others_starve(tmp_path: Path) -> None:
    with secure_rig(tmp_path, memory_bytes=64 << 10, stall_ns=1_000_000) as rig:
        deaf, other = rig.handshake(), rig.handshake()
        push(rig, deaf, frame(METADATA, 1, 1, bytes(80 << 10)))
        (held,) = rig.requests_taken()
        rig.answer(held, answer_frame(1, bytes(32 << 20)))
        rig.step(100)
        peer = rig.secure.channels.peers[held.connection]
        assert peer.pipe is not None
        # A chunk at most, and what encryption adds to its records.
        assert 0 < peer.pipe.held_bytes < CHUNK_BYTES + 1000
        push(rig, other, frame(METADATA, 1, 2))
        taken: list[Any] = []
        deadline = time.monotonic() + PATIENCE_S
        while not taken and time.monotonic() < deadline:
            rig.step(1)
            taken = rig.requests_taken()
        assert [request.correlation for request in taken] == [2]
        assert rig.ends == [(held.connection, CloseReason.CLOSED_STALLED)]
        rig.answer(taken[0], answer_frame(2))


def whole_pair() -> tuple[socket.socket, socket.socket]:
    """One whose reader sees what was written at once."""
    served, client = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    served.setblocking(False)
    client.setblocking(False)
    return served, client


@pytest.mark.parametrize(
    ("version", "suite"),
    [
        (TLS_1_3, "TLS_AES_128_GCM_SHA256"),
        (TLS_1_3, "TLS_CHACHA20_POLY1305_SHA256"),
        (TLS_1_2, "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
        # The one that adds most to a record.
        (TLS_1_2, "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384"),
    ],
)
def test_what_is_written_at_once_fills_its_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, suite: str
) -> None:
    """Check the size of writes: with a little more, each would send another packet of a few bytes."""
    answer = answer_frame(1, os.urandom(1 << 20))
    with secure_rig(tmp_path, f"ssl.cipher.suites={suite}\n") as rig:
        monkeypatch.setattr(rig, "pair", whole_pair)
        with key_changer(rig, version) as (client, plain):
            rig.clients.append(plain)
            taken = rig.ask(plain, client.says(frame(METADATA, 1, 1)))
            rig.answer(taken, answer)
            heard, written = b"", []
            while len(heard) < len(answer):
                with contextlib.suppress(BlockingIOError):
                    data = plain.recv(1 << 20)
                    written.append(len(data))
                    heard += client.hears(data)
                rig.step(1)
        assert heard == answer
        first, *others, _ = written
        assert first > FIRST_CHUNK_BYTES
        assert min(others) > CHUNK_BYTES
        for size in (first, *others):
            assert size % SEGMENT_BYTES > SEGMENT_BYTES // 2


def narrow_pair() -> tuple[socket.socket, socket.socket]:
    """Return a pair of sockets like a Unix-domain listener's: a read makes room at once, and little of it."""
    served, client = socket.socketpair()
    served.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 10)
    served.setblocking(False)
    return served, client


def test_who_reads_slowly_is_not_idle(rig: SecureRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check it with a client that reads less than a chunk of its answer at a time."""
    monkeypatch.setattr(rig, "pair", narrow_pair)
    client = rig.handshake()
    taken = rig.ask(client, frame(METADATA, 1, 1))
    rig.answer(taken, answer_frame(1, bytes(32 << 20)))
    rig.step(100)
    plain = socket.socket(fileno=os.dup(client.fileno()))
    rig.clients.append(plain)
    for _ in range(5):
        before_ns = time.monotonic_ns()
        read = 0
        while read < CHUNK_BYTES * 3 // 8:
            with contextlib.suppress(BlockingIOError):
                read += len(plain.recv(1024))
            rig.step(1)
        rig.turn.close_idle(before_ns)
        rig.step()
        assert rig.ends == []


def test_what_was_sent_before_the_end_is_answered(rig: SecureRig) -> None:
    """Send two requests, close_notify and the end of the stream at once, and check for both answers."""
    with key_changer(rig) as (client, plain):
        plain.sendall(
            client.says(frame(METADATA, 1, 1) + frame(METADATA, 1, 2))
            + client.says(frame(METADATA, 1, 3))
            + client.goodbye()
        )
        plain.shutdown(socket.SHUT_WR)
        heard = b""
        for correlation in (1, 2, 3):
            rig.step()
            (taken,) = rig.requests_taken()
            assert taken.correlation == correlation
            rig.answer(taken, answer_frame(correlation))
            rig.step()
            with contextlib.suppress(BlockingIOError):
                heard += client.hears(plain.recv(1 << 20))
        assert heard == b"".join(answer_frame(n) for n in (1, 2, 3))
        assert [reason for _, reason in rig.ends] == [CloseReason.CLOSED_BY_PEER]


@pytest.mark.parametrize("fatal", [False, True])
def test_alerts_end_the_connection_of_who_sends_them(
    rig: SecureRig, fatal: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Check it in the middle of a frame, whose memory must be free again."""
    caplog.set_level(logging.INFO, "mpbroker")
    good, client = rig.handshake(), rig.handshake()
    client.send(frame(METADATA, 1, 1, bytes(100_000))[:50_000])
    rig.step()
    assert rig.in_use_bytes() > 50_000
    raw = socket.socket(fileno=os.dup(client.fileno()))
    rig.clients.append(raw)
    # In plain text, which TLS 1.3 refuses behind the handshake.
    raw.sendall(b"\x15\x03\x03\x00\x02" + (b"\x02\x28" if fatal else b"\x01\x00"))
    rig.step()
    assert [reason for _, reason in rig.ends] == [CloseReason.CLOSED_TLS]
    assert " on TLS: TLS failed" in caplog.text
    assert rig.in_use_bytes() == 0
    taken = rig.ask(good, frame(METADATA, 1, 1))
    rig.answer(taken, answer_frame(1))


def wide_pair() -> tuple[socket.socket, socket.socket]:
    """One with room for more than a turn moves."""
    served, client = socket.socketpair()
    for one in (served, client):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
    served.setblocking(False)
    return served, client


def test_a_huge_request_and_a_huge_answer_leave_room_for_others_in_every_turn(
    rig: SecureRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that others wait for no more than one share of encryption or decryption."""
    monkeypatch.setattr(rig, "pair", wide_pair)
    reading, writing, *small = (rig.handshake() for _ in range(4))
    taken = rig.ask(reading, frame(METADATA, 1, 1))
    data = memoryview(frame(METADATA, 1, 2, bytes(3 << 20)))
    sent = 0
    with contextlib.suppress(ssl.SSLWantWriteError):
        while sent < len(data):
            sent += writing.send(data[sent : sent + (16 << 10)])
    assert sent > 3 * MOVED_PER_TURN_MAX // 2, "there is less than two turns would move"
    rig.answer(taken, answer_frame(1, bytes(3 << 20)))
    in_before, out_before = rig.counter(Counter.COUNT_BYTES_IN), rig.counter(Counter.COUNT_BYTES_OUT)
    for turn in (1, 2):
        small[turn - 1].send(frame(METADATA, 1, 3))
        rig.turn.turn(0)
        rig.secure.serve()
        # The small one is through already.
        (asked,) = (one for one in rig.requests_taken() if one.correlation == 3)
        rig.answer(asked, answer_frame(3))
        share = turn * (MOVED_PER_TURN_MAX + CHUNK_BYTES)
        assert 0 < rig.counter(Counter.COUNT_BYTES_IN) - in_before <= share
        assert 0 < rig.counter(Counter.COUNT_BYTES_OUT) - out_before <= share
    rig.step()
    for whole in rig.requests_taken():
        rig.answer(whole, answer_frame(2))
    assert [receive(rig, each, 8) for each in small] == [answer_frame(3)] * 2
