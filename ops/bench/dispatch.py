"""Small requests beside one that keeps a handler busy for seconds: `python -m ops.bench.dispatch`.

The busy handler recompresses one batch with gzip's slowest level; the load is one-record produces and small
fetches on the same broker with two handlers. What counts is their p99 beside that of the same load without
it. Dispatch is right when nothing ever waits behind the heavy request: what is left is its share of the CPU.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from ops.bench import frames
from ops.bench.brokers import Broker, Mpbroker, running
from ops.bench.scenarios import Result, build_generator, create_topic, run_load

# Random text of two letters is what zlib's level 9 is slowest with: about half a megabyte a second.
SLOW_BYTES_PER_S = 420_000
HEAVY_TOPIC = "heavy"
SMALL_TOPIC = "small"
CONNECTIONS = 8
TIMES_MAX = 3.0
CONFIGS = {"compression.type": "gzip", "compression.gzip.level": "9", "max.message.bytes": str(64 << 20)}


def heavy_request(seconds: float) -> frames.Request:
    """A produce of one batch that takes about so long to recompress."""
    value = bytes(random.Random(1).choices(b"ab", k=int(seconds * SLOW_BYTES_PER_S)))
    return frames.produce_value(HEAVY_TOPIC, value)


def prepare(broker: Broker) -> dict[str, frames.Request]:
    create_topic(broker, SMALL_TOPIC)
    with frames.connected(broker.address) as connection:
        error, _ = frames.exchange(connection, frames.create_topic(HEAVY_TOPIC, 1, CONFIGS))
    assert not error, f"topic {HEAVY_TOPIC} was not created: error {error}"
    return {
        "produce": frames.produce(SMALL_TOPIC, 1, 100),
        "fetch": frames.fetch(SMALL_TOPIC, 0, 100),
    }


def beside_heavy(broker: Broker, load: frames.Request, seconds: float) -> tuple[Result, float]:
    """The load while the heavy request is under way, and for how long that was."""
    heavy = heavy_request(2 * seconds + 2)
    took: list[float] = []

    def send() -> None:
        with frames.connected(broker.address, timeout_s=120) as connection:
            start = time.monotonic()
            error, _ = frames.exchange(connection, heavy)
            assert not error, f"the heavy produce failed: error {error}"
            took.append(time.monotonic() - start)

    sending = threading.Thread(target=send)
    sending.start()
    result = run_load(broker, load, CONNECTIONS, seconds)
    assert sending.is_alive(), "the heavy request was over before the load"
    sending.join()
    return result, took[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    seconds = parser.parse_args().seconds
    build_generator()
    worst = 0.0
    with tempfile.TemporaryDirectory() as directory, running(Mpbroker(Path(directory))) as broker:
        for name, load in prepare(broker).items():
            quiet = run_load(broker, load, CONNECTIONS, seconds)
            busy, took_s = beside_heavy(broker, load, seconds)
            times = busy.p99_us / quiet.p99_us
            worst = max(worst, times)
            print(
                f"{name:8} quiet p50 {quiet.p50_us:.0f} p99 {quiet.p99_us:.0f} us; beside a request of "
                f"{took_s:.1f} s p50 {busy.p50_us:.0f} p99 {busy.p99_us:.0f} us: {times:.1f} times"
            )
    return 0 if worst <= TIMES_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
