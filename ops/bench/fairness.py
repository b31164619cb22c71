"""Small requests beside a client that takes 100 MB at a time: `python -m ops.bench.fairness`.

200 connections make small fetches, one fetches as much as a response may hold, over and over. What counts is
the p99 of the small ones beside that of the same load alone: with bytes per channel and turn bounded nobody
waits for the large answers, only for their share of the CPU.
"""

import argparse
import sys
import tempfile
import threading
from pathlib import Path

from ops.bench import frames
from ops.bench.brokers import Broker, Mpbroker, running
from ops.bench.scenarios import Result, build_generator, create_topic, run_load

SMALL_TOPIC = "small"
LARGE_TOPIC = "large"
SMALL_CONNECTIONS = 200
LARGE_BYTES = 100_000_000
FILL_BYTES = 1_000_000
TIMES_MAX = 5.0
FLAGS = ("--processors", "1", "-o", "log.flush.policy=os", "-o", f"fetch.max.bytes={2 * LARGE_BYTES}")


def prepare(broker: Broker) -> frames.Request:
    """Fills the large topic; the request of the small ones."""
    create_topic(broker, SMALL_TOPIC)
    create_topic(broker, LARGE_TOPIC)
    fill = frames.produce(LARGE_TOPIC, 1, FILL_BYTES)
    with frames.connected(broker.address) as connection:
        for _ in range(LARGE_BYTES // FILL_BYTES + 1):
            error, _ = frames.exchange(connection, fill)
            assert not error, f"topic {LARGE_TOPIC} was not filled: error {error}"
    return frames.fetch(SMALL_TOPIC, 0, 100)


class Glutton(threading.Thread):
    """One large fetch after the other until it is told to stop; the bytes go nowhere."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.responses = 0
        self._broker = broker
        self._enough = threading.Event()

    def run(self) -> None:
        request = frames.fetch(LARGE_TOPIC, 0, LARGE_BYTES, LARGE_BYTES)
        scratch = bytearray(1 << 20)
        with frames.connected(self._broker.address, timeout_s=120) as connection:
            while not self._enough.is_set():
                connection.sendall(request.frame)
                left = int.from_bytes(frames.receive(connection, 4))
                assert left > LARGE_BYTES // 2, f"the large response has {left} bytes"
                while left:
                    left -= connection.recv_into(memoryview(scratch)[:left])
                self.responses += 1

    def stop(self) -> None:
        self._enough.set()
        self.join()


def beside_glutton(broker: Broker, load: frames.Request, seconds: float) -> tuple[Result, int]:
    glutton = Glutton(broker)
    glutton.start()
    try:
        result = run_load(broker, load, SMALL_CONNECTIONS, seconds)
    finally:
        glutton.stop()
    assert glutton.responses, "no large response came"
    return result, glutton.responses


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    seconds = parser.parse_args().seconds
    build_generator()
    with (
        tempfile.TemporaryDirectory() as directory,
        running(Mpbroker(Path(directory), flags=FLAGS)) as broker,
    ):
        load = prepare(broker)
        quiet = run_load(broker, load, SMALL_CONNECTIONS, seconds)
        busy, responses = beside_glutton(broker, load, seconds)
    times = busy.p99_us / quiet.p99_us
    print(
        f"{SMALL_CONNECTIONS} small fetchers quiet: {quiet.requests_per_s:,.0f}/s, p99 {quiet.p99_us:,.0f} us"
    )
    print(f"beside {responses} responses of 100 MB: {busy.requests_per_s:,.0f}/s, p99 {busy.p99_us:,.0f} us")
    print(f"that is {times:.1f} times")
    return 0 if times <= TIMES_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
