"""Small requests beside one that keeps a handler busy for seconds: `python -m ops.bench.dispatch`.

The busy handler recompresses one batch with gzip's slowest level; the load is one-record produces and small
fetches on the same broker with two handlers. What counts is their p99 beside that of the same load without
it. Dispatch is right when nothing ever waits behind the heavy request: what is left is its share of the CPU.

The heavy request comes in two shapes. A large frame is known by its size, and goes alone. A compressed one
is a frame of a few kilobytes like any other, and only its handler finds out what is in it.
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
# Repeated at a distance that zstd sees and gzip does not: little to send, and nothing that gzip could skip.
REPEATED_BYTES = 64 << 10
# Far less than what a processor sends alone.
COMPRESSED_BYTES_MAX = 64 << 10
HEAVY_TOPIC = "heavy"
SMALL_TOPIC = "small"
SHAPES = ("large", "compressed")
CONNECTIONS = 8
TIMES_MAX = 3.0
CONFIGS = {"compression.type": "gzip", "compression.gzip.level": "9", "max.message.bytes": str(64 << 20)}


def heavy_request(shape: str, seconds: float) -> frames.Request:
    """A produce of one batch that takes about so long to recompress."""
    size = int(seconds * SLOW_BYTES_PER_S)
    if shape == "large":
        return frames.produce_value(HEAVY_TOPIC, slow_text(size))
    repeated = slow_text(REPEATED_BYTES) * (size // REPEATED_BYTES + 1)
    request = frames.produce_value(HEAVY_TOPIC, repeated[:size], zstd=True)
    assert len(request.frame) < COMPRESSED_BYTES_MAX, f"the frame has {len(request.frame)} bytes"
    return request


def slow_text(size: int) -> bytes:
    return bytes(random.Random(1).choices(b"ab", k=size))


def prepare(broker: Broker) -> dict[str, frames.Request]:
    create_topic(broker, SMALL_TOPIC)
    with frames.connected(broker.address) as connection:
        error, _ = frames.exchange(connection, frames.create_topic(HEAVY_TOPIC, 1, CONFIGS))
    assert not error, f"topic {HEAVY_TOPIC} was not created: error {error}"
    return {
        "produce": frames.produce(SMALL_TOPIC, 1, 100),
        "fetch": frames.fetch(SMALL_TOPIC, 0, 100),
    }


def beside_heavy(broker: Broker, load: frames.Request, shape: str, seconds: float) -> tuple[Result, float]:
    """The load while the heavy request is under way, and for how long that was."""
    heavy = heavy_request(shape, 2 * seconds + 2)
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
            print(f"{name:8} quiet p50 {quiet.p50_us:.0f} p99 {quiet.p99_us:.0f} us")
            for shape in SHAPES:
                busy, took_s = beside_heavy(broker, load, shape, seconds)
                times = busy.p99_us / quiet.p99_us
                worst = max(worst, times)
                print(
                    f"{name:8} beside a {shape} request of {took_s:.1f} s p50 {busy.p50_us:.0f} "
                    f"p99 {busy.p99_us:.0f} us: {times:.1f} times"
                )
    return 0 if worst <= TIMES_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
