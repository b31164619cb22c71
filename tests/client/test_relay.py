"""The transport by a relay: what it sends first, and what the answer means."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from mpbroker.client.config import ClientConfig
from mpbroker.client.connection import NotConnected
from mpbroker.client.errors import AuthenticationFailed
from mpbroker.client.relay import RelayTransport

CONFIG = ClientConfig(relay="/relay", relay_settings=(("sasl.mechanism", "GSSAPI"), ("x", "y" * 300_000)))


@pytest.fixture
def ends() -> Iterator[tuple[RelayTransport, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield RelayTransport(CONFIG, "host:9092", ours), theirs


def first_frame(transport: RelayTransport, theirs: socket.socket) -> bytes:
    """Receive while the transport sends, since the frame fits no buffer."""
    assert not transport.handshake()
    assert transport.wants_write
    received = bytearray()
    while transport.wants_write:
        received += theirs.recv(1 << 20)
        assert not transport.handshake()
    while len(received) < 4 + int.from_bytes(received[:4]):
        received += theirs.recv(1 << 20)
    return bytes(received[4:])


def test_an_empty_answer_makes_it_ready(ends: tuple[RelayTransport, socket.socket]) -> None:
    transport, theirs = ends
    wanted = json.loads(first_frame(transport, theirs))
    assert wanted == {"server": "host:9092", "settings": dict(CONFIG.relay_settings)}
    theirs.send(b"\0\0")
    assert not transport.handshake()
    assert not transport.ready
    # The first answer of the broker may follow at once.
    theirs.send(b"\0\0\0\0\0\5")
    assert transport.handshake()
    assert transport.ready
    room = memoryview(bytearray(8))
    assert (transport.receive_into(room), bytes(room[:4])) == (4, b"\0\0\0\5")


def test_an_error_is_a_failed_login(ends: tuple[RelayTransport, socket.socket]) -> None:
    transport, theirs = ends
    first_frame(transport, theirs)
    theirs.send(b"\0\0\0\x05no K")
    assert not transport.handshake()
    theirs.send(b"D")
    with pytest.raises(AuthenticationFailed, match=r"^no KD$"):
        transport.handshake()


def test_an_end_is_no_connection(ends: tuple[RelayTransport, socket.socket]) -> None:
    transport, theirs = ends
    first_frame(transport, theirs)
    theirs.close()
    with pytest.raises(NotConnected, match="see the log of Spark's driver"):
        transport.handshake()
