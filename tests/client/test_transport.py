"""Plaintext over a pair of sockets: what comes, what goes, and "not now"."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from mpbroker.client.transport import SEGMENTS_MAX, PlaintextTransport


@pytest.fixture
def pair() -> Iterator[tuple[PlaintextTransport, socket.socket]]:
    ours, peer = socket.socketpair()
    ours.setblocking(False)
    with ours, peer:
        yield PlaintextTransport(ours), peer


def test_bytes_both_ways(pair: tuple[PlaintextTransport, socket.socket]) -> None:
    transport, peer = pair
    room = memoryview(bytearray(4))
    assert transport.handshake()
    assert transport.receive_into(room) is None
    peer.sendall(b"abcdef")
    assert (transport.receive_into(room), bytes(room)) == (4, b"abcd")
    assert transport.send([b"1", b"23"]) == 3
    assert peer.recv(3) == b"123"
    peer.close()
    assert [transport.receive_into(room) for _ in range(2)] == [2, 0]


def test_more_segments_than_a_system_call_takes(pair: tuple[PlaintextTransport, socket.socket]) -> None:
    transport, peer = pair
    assert transport.send([b"x"] * (SEGMENTS_MAX + 5)) == SEGMENTS_MAX
    assert len(peer.recv(2 * SEGMENTS_MAX)) == SEGMENTS_MAX


def test_a_full_socket(pair: tuple[PlaintextTransport, socket.socket]) -> None:
    transport, _ = pair
    while transport.send([bytes(1 << 16)]) is not None:
        continue
    assert transport.send([b"x"]) is None
