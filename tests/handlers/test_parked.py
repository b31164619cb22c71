"""A parked fetch is answered once, whatever dies: with what came, or at its time.

One that has seen two handlers die may be what kills them, and its connection is closed.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
from pathlib import Path

import pytest

from ops.bench import frames
from ops.bench.brokers import Mpbroker
from tests.support.client_tools import eventually
from tests.support.metered_client import Meter
from tests.support.real_brokers import control, create_topic, served, with_settings

# Fetch v4: replica_id, max_wait_ms behind the header.
MAX_WAIT_AT = struct.calcsize(">i hhi h") + len(frames.CLIENT_ID) + 4
FETCHES = 20
RACES = 100
DELAY_S = 0.015
CORRELATION_AT = struct.calcsize(">i hh")
PARKED = "kafka.server:type=DelayedOperationPurgatory,name=NumDelayedOperations,delayedOperation=Fetch"


def handlers(broker: Mpbroker) -> list[int]:
    processes = control(broker).call("status")["processes"]
    return [each["pid"] for each in processes if each["name"].startswith("handler ")]


def test_what_comes_at_its_time_is_one_answer(broker: Mpbroker) -> None:
    """Let a record and the end of the wait race, and check that each fetch is answered once."""
    create_topic(broker.bootstrap, "t", 1)
    wait_ms, outcomes = 15, []
    fetch, produce = bytearray(waiting_fetch(wait_ms).frame), frames.produce("t", 1, 10, acks=1)
    with frames.connected(broker.address) as asking, frames.connected(broker.address) as writing:
        empty_bytes = len(frames.exchange(asking, frames.Request(bytes(fetch), 0))[1]) - 4
        for number in range(RACES):
            struct.pack_into(">i", fetch, CORRELATION_AT, number)
            struct.pack_into(">i", fetch, MAX_WAIT_AT, wait_ms)
            struct.pack_into(">q", fetch, len(fetch) - 12, number)
            asking.sendall(fetch)
            until = time.monotonic() + DELAY_S
            while time.monotonic() < until:
                pass
            assert frames.exchange(writing, produce)[0] == 0
            (size,) = struct.unpack(">i", frames.receive(asking, 4))
            assert struct.unpack_from(">i", frames.receive(asking, size))[0] == number
            outcomes.append(size > empty_bytes)
            # Who won is hindered the next time: so they stay close, however fast machine and disk are.
            wait_ms = wait_ms - 1 if outcomes[-1] else wait_ms + 3
        asking.settimeout(0.1)
        with pytest.raises(TimeoutError):
            asking.recv(1)
    assert len(set(outcomes)) == 2, "there was no race: with a record or without"


def waiting_fetch(wait_ms: int) -> frames.Request:
    made = frames.fetch("t", 0, 1 << 16)
    frame = bytearray(made.frame)
    struct.pack_into(">i", frame, MAX_WAIT_AT, wait_ms)
    return frames.Request(bytes(frame), made.error_at)


def answers(connection: socket.socket) -> tuple[int, bool]:
    """How many whole frames have come, with no piece of another; whether the connection is closed."""
    connection.setblocking(False)
    received, closed, count = b"", False, 0
    try:
        while part := connection.recv(1 << 16):
            received += part
        closed = True
    except BlockingIOError:
        pass
    while received:
        (size,) = struct.unpack_from(">i", received)
        assert len(received) >= 4 + size
        received = received[4 + size :]
        count += 1
    return count, closed


def test_what_waits_has_a_bound_of_memory(tmp_path: Path) -> None:
    """Check that fetches beyond it are answered at once, and that it is given back with the connections."""
    settings = {"max.parked.bytes.per.principal": str(2 * 4096 * 10), "num.io.threads": "2"}
    with served(with_settings(Mpbroker(tmp_path), settings)) as broker:
        create_topic(broker.bootstrap, "t", 1)
        meter = Meter(broker)
        for _ in range(2):
            connections = [socket.create_connection(broker.address) for _ in range(3 * FETCHES)]
            for connection in connections:
                connection.sendall(waiting_fetch(600_000).frame)
            answered = [0] * len(connections)

            def all_known(these: list[socket.socket] = connections, counts: list[int] = answered) -> bool:
                for number, connection in enumerate(these):
                    counts[number] += answers(connection)[0]
                return sum(counts) + meter.get(PARKED, "Value") == len(these)

            eventually(all_known, "each waits or is answered")
            assert FETCHES / 2 <= len(connections) - sum(answered) <= 2 * FETCHES
            for connection in connections:
                connection.close()
            eventually(lambda: meter.get(PARKED, "Value") == 0, "nobody waits")


@pytest.mark.parametrize("deaths", [0, 1, 2])
def test_each_is_answered_once_when_handlers_die(broker: Mpbroker, deaths: int) -> None:
    create_topic(broker.bootstrap, "t", 1)
    fetch, produce = waiting_fetch(60_000), frames.produce("t", 1, 10)
    connections = [socket.create_connection(broker.address) for _ in range(FETCHES)]
    for connection in connections:
        connection.sendall(fetch.frame)
    for pid in handlers(broker)[:deaths]:
        os.kill(pid, signal.SIGKILL)
        eventually(lambda gone=pid: gone not in handlers(broker), "it is replaced")  # type: ignore[misc]
    with frames.connected(broker.address) as connection:
        eventually(lambda: frames.exchange(connection, produce)[0] == 0, "it takes produces")
    found, closed = [0] * FETCHES, [False] * FETCHES

    def all_answered() -> bool:
        for number, connection in enumerate(connections):
            count, closed[number] = answers(connection)
            found[number] += count
        return all(map(max, found, closed))

    eventually(all_answered, "each fetch gets the record or is closed")
    assert max(found) == 1 or (deaths == 2 and all(closed))
    assert deaths == 2 or not any(closed)
    for connection in connections:
        connection.close()
