"""The extremes of the network layer on a broker of real processes: who sends or takes 100 MB, a thousand who
read nothing. They cost what they hold, hold up nobody, and expire.
"""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.ipc import topology
from mpbroker.ipc.counters import Counter
from ops.bench import frames
from ops.bench.brokers import Mpbroker
from tests.chaos.leaks import held
from tests.support.acceptor_tools import counted, options
from tests.support.client_tools import eventually
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import control, create_topic, stop_cleanly

LARGE = 100_000_000
CHUNK = 1_000_000
LARGE_LIMITS = {"message_max_bytes": LARGE + 1000, "fetch_max_bytes": 2 * LARGE}
CROWD = 1_000
SMALL_BLOCK = 2048
IDLE_MS = 2_000
ASK_EVERY_S = 0.05


@pytest.fixture(autouse=True)
def _many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def running(directory: Path, **settings: int) -> Iterator[Mpbroker]:
    broker = Mpbroker(directory / "broker")
    broker.flags = ("--config", str(properties(broker)), *options(**settings))
    broker.directory.mkdir()
    properties(broker).touch()
    try:
        broker.start()
        yield broker
        eventually(lambda: not held(broker), "nothing is held when all have gone")
        assert "ERROR" not in broker.output()
        stop_cleanly(broker)
    finally:
        broker.kill()


def properties(broker: Mpbroker) -> Path:
    return broker.directory / "server.properties"


def let_idle_expire(broker: Mpbroker) -> None:
    """Set the idle time, once all of a crowd are there: on a slow machine that takes long."""
    with open(properties(broker), "a") as file:
        file.write(f"\nconnections.max.idle.ms={IDLE_MS}\n")
    changed = control(broker).call("reload")["changed"]
    assert len(changed) == 1, changed


class Small:
    """A client whose requests are answered by no file and no other process than the two in front.

    It asks in the midst of what others send and take: one that waited for their end would wait for ever.
    """

    def __init__(self, broker: Mpbroker) -> None:
        self.address = broker.address
        self.answered = 0
        self.connect()

    def connect(self) -> None:
        self.sock = socket.create_connection(self.address, timeout=PATIENCE_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def asks(self, times: int = 1) -> None:
        for _ in range(times):
            frames.exchange(self.sock, frames.api_versions())
            self.answered += 1

    def close(self) -> None:
        self.sock.close()


def request_bytes(broker: Mpbroker) -> int:
    return counted(broker, Counter.COUNT_ARENA_BYTES)


def reply_bytes(broker: Mpbroker) -> int:
    return sum(counted(broker, Counter.COUNT_ARENA_BYTES, topology.handler(n)) for n in (0, 1))


def is_readable(sock: socket.socket, within_s: float = 0) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(within_s))


def serve_small_beside(broker: Mpbroker, large: socket.socket) -> None:
    """Small requests are, while `large` sends 100 MB and takes them again."""
    small = Small(broker)
    frames.exchange(large, frames.create_topic("large", 1))
    request = frames.produce("large", 1, LARGE)
    for at in range(0, len(request.frame), CHUNK):
        large.sendall(request.frame[at : at + CHUNK])
        small.asks()
    while not is_readable(large):
        small.asks()
    answer = frames.receive(large, int.from_bytes(frames.receive(large, 4)))
    assert struct.unpack_from(">h", answer, request.error_at - 4) == (0,)
    large.sendall(frames.fetch("large", 0, LARGE * 2, LARGE * 2).frame)
    left = int.from_bytes(frames.receive(large, 4))
    assert left > LARGE
    assert reply_bytes(broker) < SMALL_BLOCK, "records are sent from the file"
    while left:
        frames.receive(large, min(CHUNK, left))
        left -= min(CHUNK, left)
        small.asks()
    assert small.answered > 2 * LARGE // CHUNK
    small.close()


def test_100_mb_each_way_beside_small_requests(tmp_path: Path) -> None:
    with running(tmp_path, **LARGE_LIMITS) as broker, frames.connected(broker.address) as large:
        serve_small_beside(broker, large)


class Crowd:
    """Many connections of one kind."""

    def __init__(self, broker: Mpbroker, count: int) -> None:
        self.socks: list[socket.socket] = []
        for _ in range(count):
            sock = socket.socket()
            # What they do not read stays with the broker.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(broker.address)
            sock.settimeout(PATIENCE_S)
            self.socks.append(sock)

    def send(self, data: bytes) -> int:
        """Send to all that are still connected, and return how many they are."""
        there = 0
        for sock in self.socks:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(data)
                there += 1
        return there

    def close(self) -> None:
        for sock in self.socks:
            sock.close()


def connections(broker: Mpbroker) -> int:
    """Return the number of connections of all listeners."""
    return sum(count for what, count in held(broker).items() if what.startswith("listener"))


def expire_all_but(small: Small, broker: Mpbroker) -> None:
    """Let all connections expire but those that ask something."""
    small.close()
    let_idle_expire(broker)
    # One that had been there before would have been idle for as long as that took.
    small.connect()
    until = time.monotonic() + PATIENCE_S
    while connections(broker) > 1 and time.monotonic() < until:
        small.asks()
        is_readable(small.sock, ASK_EVERY_S)
    assert connections(broker) == 1


@pytest.mark.parametrize("what", ["metadata", "records"])
def test_a_thousand_who_never_read_hold_an_answer_each_and_expire(tmp_path: Path, what: str) -> None:
    with running(tmp_path, socket_send_buffer_bytes=4096) as broker:
        create_topic(broker.bootstrap, "wide", 100)
        with frames.connected(broker.address) as connection:
            assert frames.exchange(connection, frames.produce("wide", 1, CHUNK))[0] == 0
            metadata = frames.Request(frames.frame(3, 1, struct.pack(">i", -1)), 8)
            answer_bytes = len(frames.exchange(connection, metadata)[1])
        asked = metadata if what == "metadata" else frames.fetch("wide", 0, CHUNK)
        most = answer_bytes if what == "metadata" else 512
        crowd, small = Crowd(broker, CROWD), Small(broker)
        crowd.send(asked.frame * 8)
        small.asks(100)
        if what == "metadata":
            eventually(lambda: reply_bytes(broker) >= CROWD * most // 2, "answers wait for them")
        # The first ones may still be on their way into the sockets.
        one_each = CROWD * most + SMALL_BLOCK
        eventually(lambda: reply_bytes(broker) <= one_each, "one each, and one of who asks")
        assert request_bytes(broker) <= CROWD * 2 * SMALL_BLOCK
        expire_all_but(small, broker)
        eventually(lambda: reply_bytes(broker) == request_bytes(broker) == 0, "what they held is free")
        small.close()
        crowd.close()
