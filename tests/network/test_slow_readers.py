"""Clients that read a byte now and then, or nothing, of each kind of response there is.

Each costs what it has asked for and does not read, at most; others are served meanwhile, and when all have
gone nothing is left. What a thousand of them cost is in test_real_broker.py.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

import pytest

from mpbroker.handlers.apis import all_apis
from mpbroker.protocol.api_keys import ApiKey
from ops.bench import frames
from ops.bench.brokers import Mpbroker, running
from tests.chaos.leaks import complaints, held
from tests.network.hostile import GROWS_AT_MOST_BYTES, MEGABYTE, SETTINGS, Behaved, said, tidy
from tests.support.hostile_requests import KNOWN, Hostile, Mood, Writer, arrays, framed, message_of
from tests.support.polling import until
from tests.support.watched import Watch

SEED = 5
ELEMENTS = 500
REQUEST_MAX_BYTES = 100_000
# Requests of each client that it sends at once. The broker works on one of them: for most APIs the next one
# waits in the socket until the answer before it is in the socket, too.
PIPELINED = 20
READS = 10
# What requests and answers of all may take of the broker's shared memory; records are sent from their files.
BORROWED_MAX_BYTES = 64 * MEGABYTE
ROOM_BYTES = 4096


class Listing(Writer):
    """Writes requests with one list of some length, which most have answers as long as."""

    def count_of(self, size: int, _wanted: tuple[int, ...]) -> int:
        return min(ELEMENTS, REQUEST_MAX_BYTES // max(1, size))


def requests(broker: Mpbroker) -> Iterator[Hostile]:
    """Yield requests of the latest version of each API: a plain one, and one for each list in it."""
    known_id = tidy(broker)
    for key, (_, version) in sorted(frames.advertised_apis(broker.address).items()):
        if key not in all_apis():
            continue
        message = message_of(key)
        lists = arrays(message, version)
        for number, large in enumerate([None, *lists]):
            chance = random.Random(f"{SEED}/{key}/{number}")
            mood = Mood.PLAIN if large is None else Mood.DUPLICATES
            writer = Listing(chance, message, version, mood, known_id)
            writer.large = large
            yield Hostile(key, version, mood, framed(chance, key, version, writer, writer.body(), number))


class SlowReader:
    """A connection with little room for what it does not read."""

    def __init__(self, broker: Mpbroker, asks: Hostile) -> None:
        self.asks = asks
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, ROOM_BYTES)
        self.sock.connect(broker.address)
        self.sock.setblocking(False)
        self.left = asks.frame * PIPELINED
        self.received = 0

    def go_on(self) -> None:
        """Send what can be sent, and read a byte if there is one."""
        try:
            if self.left:
                self.left = self.left[self.sock.send(self.left) :]
        except BlockingIOError:
            pass
        except ConnectionError:
            self.left = b""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            self.received += len(self.sock.recv(1))


@pytest.fixture(scope="module", name="broker")
def _broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mpbroker]:
    flags = (*SETTINGS, "-o", "socket.send.buffer.bytes=4096")
    with running(Mpbroker(tmp_path_factory.mktemp("broker"), flags=flags)) as started:
        assert isinstance(started, Mpbroker)
        yield started


def records(broker: Mpbroker) -> Iterator[Hostile]:
    """Yield fetches of a megabyte, which is sent from its file."""
    with frames.connected(broker.address) as sock:
        assert frames.exchange(sock, frames.produce(KNOWN, 1, MEGABYTE - 1_000))[0] == 0
    for _ in range(5):
        yield Hostile(ApiKey.FETCH, 4, Mood.PLAIN, frames.fetch(KNOWN, 0, MEGABYTE).frame)


def answered(readers: list[SlowReader]) -> set[int]:
    """Return the APIs of which somebody has begun to read an answer."""
    return {reader.asks.key for reader in readers if reader.received > 0}


def test_who_reads_a_byte_of_each_kind_of_response_costs_what_it_asked_for(broker: Mpbroker) -> None:
    watch = Watch(broker)
    before, status, logged = watch.bytes_now(), watch.status(), len(broker.output())
    readers = [SlowReader(broker, asks) for asks in (*requests(broker), *records(broker))]
    rounds = 0
    # Some requests close their connection, or wait for other members.
    enough = 0.8 * len(all_apis())
    with Behaved(broker) as behaved, watch:

        def have_read() -> bool:
            nonlocal rounds
            served, rounds = behaved.served, rounds + 1
            for reader in readers:
                reader.go_on()
            until(lambda: behaved.served > served or behaved.failure is not None, "others are served")
            borrowed = sum(size for what, size in held(broker).items() if what.endswith("bytes"))
            assert borrowed < BORROWED_MAX_BYTES, held(broker)
            return rounds >= READS and len(answered(readers)) > enough

        until(have_read, "answers to most kinds of requests")
    assert behaved.failure is None
    for one in watch.processes:
        assert one.most_bytes - before[one.name] < GROWS_AT_MOST_BYTES, one.name
    for reader in readers:
        reader.sock.close()
    assert complaints(broker) == []
    assert [one["pid"] for one in watch.status()] == [one["pid"] for one in status]
    assert said(broker.output()[logged:]) == []
