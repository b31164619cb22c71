"""The selector's contract over real sockets: what Kafka's own SelectorTest covers, for a client."""

import gc
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpbroker.client.channel import Channel
from mpbroker.client.sasl import NoAuthentication
from mpbroker.client.selector import Address, ChannelState, Selector
from mpbroker.client.transport import PlaintextTransport

PATIENCE_MS = 5000
FRAME_MAX = 1 << 24


def frame(payload: bytes) -> list[bytes]:
    return [struct.pack(">i", len(payload)), payload]


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now_ms = 0.0

    def __call__(self) -> float:
        return self.now_ms


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_MS / 1000)
        yield server


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def selector(clock: Clock) -> Iterator[Selector]:
    made = Selector(max_idle_ms=60_000, clock_ms=clock)
    yield made
    made.close_all()


def address_of(server: socket.socket) -> Address:
    return Address(server.family, server.getsockname())


def channel(channel_id: int) -> Channel:
    return Channel(channel_id, "there", PlaintextTransport(), NoAuthentication(), FRAME_MAX)


def poll_until(selector: Selector, condition: Callable[[], object]) -> None:
    """Polls; each poll ends when something happens, the last one with the condition."""
    for _ in range(10_000):
        selector.poll(PATIENCE_MS)
        if condition():
            return
    raise AssertionError("the condition never came true")


def connect(selector: Selector, listener: socket.socket, channel_id: int = 1) -> socket.socket:
    selector.connect(channel(channel_id), address_of(listener))
    poll_until(selector, lambda: channel_id in selector.connected)
    peer, _ = listener.accept()
    peer.settimeout(PATIENCE_MS / 1000)
    return peer


def open_files() -> int:
    """Of this process; what earlier tests left to the collector is no longer among them."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_frame_there_and_back(selector: Selector, listener: socket.socket) -> None:
    with connect(selector, listener) as peer:
        assert selector.is_ready(1)
        selector.send(1, frame(b"hello"))
        poll_until(selector, lambda: selector.completed_sends == [1])
        assert peer.recv(9, socket.MSG_WAITALL) == b"\0\0\0\5hello"
        peer.sendall(b"".join(frame(b"you")))
        poll_until(selector, lambda: selector.completed_receives)
        assert selector.completed_receives == {1: b"you"}


def test_results_are_valid_until_the_next_poll(selector: Selector, listener: socket.socket) -> None:
    with connect(selector, listener) as peer:
        assert selector.connected == [1]
        selector.send(1, frame(b"x"))
        peer.sendall(b"".join(frame(b"y")))
        poll_until(selector, lambda: selector.completed_receives)
        kept = selector.completed_receives
        selector.poll(0)
        assert (selector.connected, selector.completed_sends, selector.completed_receives) == ([], [], {})
        assert kept == {1: b"y"}


def test_an_id_is_used_once(selector: Selector, listener: socket.socket) -> None:
    with connect(selector, listener):
        before = open_files()
        with pytest.raises(ValueError, match="id 1 already"):
            selector.connect(channel(1), address_of(listener))
        assert open_files() <= before
        selector.close(1)
        with connect(selector, listener):
            assert selector.is_ready(1)


def test_a_host_without_an_address_leaves_nothing(selector: Selector, listener: socket.socket) -> None:
    before = open_files()
    with pytest.raises(socket.gaierror):
        selector.connect(channel(1), Address(socket.AF_INET, ("no.such.host.invalid", 1)))
    assert open_files() <= before
    connect(selector, listener).close()


def test_a_refused_connection_is_disconnected(selector: Selector, listener: socket.socket) -> None:
    address = address_of(listener)
    listener.close()
    selector.connect(channel(1), address)
    poll_until(selector, lambda: selector.disconnected)
    gone = selector.disconnected[1]
    assert (gone.state, gone.reason) == (ChannelState.NOT_CONNECTED, os.strerror(111))
    assert selector.connected == []


def test_a_connection_that_is_made_at_once(selector: Selector, tmp_path: Path) -> None:
    """No event comes for it: over Unix-domain sockets every connection is of that kind."""
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        selector.connect(channel(1), Address(socket.AF_UNIX, path))
        selector.poll(PATIENCE_MS)
        assert selector.connected == [1]
        peer, _ = server.accept()
        with peer:
            selector.send(1, frame(b"x"))
            selector.poll(PATIENCE_MS)
            assert selector.completed_sends == [1]


def test_one_send_at_a_time(selector: Selector, listener: socket.socket) -> None:
    with connect(selector, listener):
        selector.send(1, frame(b"x"))
        with pytest.raises(RuntimeError, match="under way"):
            selector.send(1, frame(b"y"))
        with pytest.raises(KeyError):
            selector.send(2, frame(b"z"))


def test_a_send_larger_than_the_sockets_buffers(selector: Selector, listener: socket.socket) -> None:
    payload = os.urandom(8 << 20)
    received = bytearray()

    def read_all() -> None:
        while len(received) < len(payload) + 4:
            received.extend(peer.recv(1 << 20))

    with connect(selector, listener) as peer:
        selector.send(1, frame(payload))
        selector.poll(0)
        assert selector.completed_sends == []
        reader = threading.Thread(target=read_all)
        reader.start()
        poll_until(selector, lambda: selector.completed_sends)
        reader.join()
        assert received[4:] == payload


def test_a_failed_send_is_a_disconnect_of_the_next_poll(selector: Selector, listener: socket.socket) -> None:
    peer = connect(selector, listener)
    # Closing with unread data resets the connection; the reset is noticed only by writing or reading.
    selector.send(1, frame(b"never read"))
    poll_until(selector, lambda: selector.completed_sends)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    selector.send(1, frame(b"into nothing"))
    selector.poll(PATIENCE_MS)
    assert selector.disconnected[1].state is ChannelState.FAILED_SEND
    assert selector.completed_sends == []
    with pytest.raises(KeyError):
        selector.send(1, frame(b"x"))


def test_one_frame_per_channel_and_poll(selector: Selector, listener: socket.socket) -> None:
    """And the rest of what one read of the socket could have brought comes without a wait."""
    with connect(selector, listener) as peer:
        peer.sendall(b"".join(frame(b"1") + frame(b"") + frame(b"3")))
        seen = []
        for _ in range(3):
            poll_until(selector, lambda: selector.completed_receives)
            seen.append(bytes(selector.completed_receives[1]))
        assert seen == [b"1", b"", b"3"]
        peer.close()
        poll_until(selector, lambda: selector.disconnected)
        assert selector.disconnected[1].reason == "closed by the broker"
        assert selector.disconnected[1].frames == 3


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (struct.pack(">i", -1), "a response of -1 bytes"),
        (struct.pack(">i", FRAME_MAX + 1), "a response of 16777217 bytes, at most 16777216"),
        (b"HTTP/1.1 400 Bad Request\r\n", "it speaks HTTP"),
        (bytes.fromhex("15030300020228"), "it speaks TLS: set security.protocol to SSL"),
    ],
)
def test_frames_that_are_none(selector: Selector, listener: socket.socket, sent: bytes, reason: str) -> None:
    with connect(selector, listener) as peer:
        peer.sendall(sent)
        poll_until(selector, lambda: selector.disconnected)
        gone = selector.disconnected[1]
        assert gone.state is ChannelState.INVALID_RECEIVE
        assert reason in gone.reason


def test_a_frame_in_single_bytes(selector: Selector, listener: socket.socket) -> None:
    with connect(selector, listener) as peer:
        for byte in b"".join(frame(b"slow")):
            peer.sendall(bytes([byte]))
            selector.poll(1)
        assert selector.completed_receives == {1: b"slow"}


def test_a_local_close_is_not_reported(selector: Selector, listener: socket.socket) -> None:
    with connect(selector, listener) as peer:
        selector.close(1)
        selector.close(1)
        selector.poll(0)
        assert (selector.disconnected, selector.is_ready(1)) == ({}, False)
        assert peer.recv(1) == b""


def test_all_that_are_idle_are_closed(selector: Selector, listener: socket.socket, clock: Clock) -> None:
    peers = [connect(selector, listener, number) for number in (1, 2, 3)]
    clock.now_ms = 59_999
    selector.poll(0)
    assert selector.disconnected == {}
    peers[1].sendall(b"".join(frame(b"alive")))
    poll_until(selector, lambda: selector.completed_receives)
    clock.now_ms = 60_000
    selector.poll(0)
    assert {one: gone.state for one, gone in selector.disconnected.items()} == {
        1: ChannelState.EXPIRED,
        3: ChannelState.EXPIRED,
    }
    assert selector.is_ready(2)
    for peer in peers:
        peer.close()


def test_a_wakeup_from_another_thread(selector: Selector) -> None:
    began = time.monotonic()
    waker = threading.Thread(target=selector.wakeup)
    waker.start()
    selector.poll(60_000)
    waker.join()
    # Woken up before it waits: the same.
    selector.wakeup()
    selector.wakeup()
    selector.poll(60_000)
    assert time.monotonic() - began < 60
    # And not for ever after.
    began = time.monotonic()
    selector.poll(50)
    assert time.monotonic() - began >= 0.04


def test_a_negative_timeout_is_refused(selector: Selector) -> None:
    with pytest.raises(ValueError, match="negative"):
        selector.poll(-1)


def test_closing_leaves_no_file_open(listener: socket.socket) -> None:
    before = open_files()
    made = Selector()
    peers = [connect(made, listener, number) for number in range(5)]
    made.connect(channel(9), address_of(listener))
    made.close_all()
    for peer in peers:
        peer.close()
    assert open_files() <= before
