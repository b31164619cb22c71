"""Pauses of clients over their quota, compared with Apache Kafka's: `python -m ops.bench.quotas`.

Three clients run at once, each with one quota and one connection. They send the same requests to each broker,
and pause as long as the broker asks for, as every client does (KIP-219). Two clients have a quota of bytes
and send at a fixed rate, so that each broker gets the same bytes in the same time until the quota is used up;
after that the pauses determine the rate. The third client has a quota of request time, and asks for metadata
as fast as it is answered. A faster broker may answer more often in the same time: only the total of pauses
has to be alike.
"""

from __future__ import annotations

import argparse
import dataclasses
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ops.bench import frames
from ops.bench.brokers import Broker, Kafka, Mpbroker, running
from ops.bench.scenarios import create_topic

# Longer than a window of the quotas, which is 10 to 11 s: earlier use is forgotten once or twice.
SECONDS = 23.0
WARMUP_REQUESTS = 300
BYTES_PER_S = 500_000
PERCENT = 1.0
# A hundredth of a second of the quota, so that one pause more or less makes no difference.
PIECE_BYTES = 5_000
# Four times what the quota allows.
PER_S = 400
# Behind the record that a new topic begins with.
READ_FROM = 1
# Kafka answers an alteration a moment before its quota managers know of it.
SETTLE_S = 0.5
APART_MAX = 0.1


@dataclasses.dataclass(frozen=True)
class Load:
    """The request that a client sends again and again, its rate, and the client's quota.

    `throttle_at`: position of throttle_time_ms in the response, from its end if negative. A Fetch response
    below `served_bytes_min` has no records. `per_s`: requests a second; None: no limit.
    """

    quota: str
    value: float
    request: frames.Request
    throttle_at: int
    piece_bytes: int
    served_bytes_min: int = 0
    per_s: float | None = PER_S


@dataclasses.dataclass
class Measured:
    """The pauses of a load. `paused_s` is their sum; the last pause counts up to the end of the run."""

    requests: int = 0
    throttled: int = 0
    throttle_ms: int = 0
    paused_s: float = 0.0
    moved_bytes: int = 0
    seconds: float = 0.0

    @property
    def bytes_per_s(self) -> float:
        return self.moved_bytes / self.seconds

    @property
    def mean_ms(self) -> float:
        return self.throttle_ms / self.throttled if self.throttled else 0.0


def loads() -> Sequence[Load]:
    """Return the loads. The client id of each load is the name of its quota."""
    write = frames.produce("written", 1, PIECE_BYTES, acks=1, client_id="producer_byte_rate")
    read = frames.fetch("read", READ_FROM, PIECE_BYTES, client_id="consumer_byte_rate")
    ask = frames.metadata("request_percentage")
    return (
        Load("producer_byte_rate", BYTES_PER_S, write, -4, len(write.frame) - 4),
        Load("consumer_byte_rate", BYTES_PER_S, read, 8, PIECE_BYTES, served_bytes_min=PIECE_BYTES // 2),
        Load("request_percentage", PERCENT, ask, 8, 0, per_s=None),
    )


class Client(threading.Thread):
    """Sends a load for some time. After each response it pauses for the response's throttle time."""

    def __init__(self, broker: Broker, load: Load, seconds: float) -> None:
        super().__init__()
        self.load = load
        self.measured = Measured()
        self._broker = broker
        self._seconds = seconds

    def run(self) -> None:
        load, found = self.load, self.measured
        with frames.connected(self._broker.address) as connection:
            begun = due = time.monotonic()
            end = begun + self._seconds
            while (now := time.monotonic()) < end:
                if load.per_s is not None:
                    due = max(due + 1 / load.per_s, now - 1 / load.per_s)
                    time.sleep(max(0.0, due - now))
                size, throttle_ms = exchange(connection, load)
                found.requests += 1
                found.moved_bytes += load.piece_bytes if size >= load.served_bytes_min else 0
                if throttle_ms:
                    found.throttled += 1
                    found.throttle_ms += throttle_ms
                    pause_s = max(0.0, min(throttle_ms / 1000, end - time.monotonic()))
                    found.paused_s += pause_s
                    time.sleep(pause_s)
            found.seconds = time.monotonic() - begun


def exchange(connection: socket.socket, load: Load) -> tuple[int, int]:
    """Return (bytes of the response, the pause that it asks for in ms)."""
    connection.sendall(load.request.frame)
    size = frames.receive(connection, 4)
    response = size + frames.receive(connection, int.from_bytes(size))
    at = load.throttle_at if load.throttle_at >= 0 else len(response) + load.throttle_at
    (throttle_ms,) = struct.unpack_from(">i", response, at)
    return len(response), throttle_ms


def measure(broker: Broker, seconds: float) -> list[Measured]:
    """Return the pauses of each load at a broker."""
    for topic in ("written", "read"):
        create_topic(broker, topic)
    with frames.connected(broker.address) as connection:
        error, _ = frames.exchange(connection, frames.produce("read", 1, PIECE_BYTES))
        assert not error, f"nothing to read: error {error}"
        for load in loads():
            for _ in range(WARMUP_REQUESTS):
                exchange(connection, load)
        for load in loads():
            error, _ = frames.exchange(connection, frames.set_quota(load.quota, load.quota, load.value))
            assert not error, f"{load.quota} was not set: error {error}"
    time.sleep(SETTLE_S)
    clients = [Client(broker, load, seconds) for load in loads()]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return [client.measured for client in clients]


def row(name: str, ours: float, theirs: float, unit: str) -> str:
    ratio = ours / theirs if theirs else float("nan")
    return f"  {name:16} {ours:14,.1f} {theirs:14,.1f} {unit:6} {ratio:6.3f}"


def report(load: Load, ours: Measured, theirs: Measured) -> bool:
    """Print both brokers' figures side by side; return whether they are alike."""
    print(f"{load.quota}={load.value:g}: mpbroker, {Kafka.name}, ratio")
    print(row("requests", ours.requests, theirs.requests, ""))
    print(row("throttle total", ours.throttle_ms, theirs.throttle_ms, "ms"))
    print(row("throttle mean", ours.mean_ms, theirs.mean_ms, "ms"))
    print(row("paused", ours.paused_s, theirs.paused_s, "s"))
    alike = [(ours.paused_s, theirs.paused_s)]
    if load.piece_bytes:
        print(row("achieved", ours.bytes_per_s, theirs.bytes_per_s, "B/s"))
        alike.append((ours.bytes_per_s, theirs.bytes_per_s))
    return all(theirs > 0 and abs(ours / theirs - 1) <= APART_MAX for ours, theirs in alike)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=SECONDS)
    seconds = parser.parse_args().seconds
    found = []
    for kind in (Mpbroker, Kafka):
        with tempfile.TemporaryDirectory() as directory, running(kind(Path(directory))) as broker:
            found.append(measure(broker, seconds))
    alike = [report(load, ours, theirs) for load, ours, theirs in zip(loads(), *found, strict=True)]
    return 0 if all(alike) else 1


if __name__ == "__main__":
    sys.exit(main())
