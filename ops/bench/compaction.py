"""Produces beside a compaction: `python -m ops.bench.compaction`.

A topic is filled with records of a few hundred thousand keys while the broker has no cleaner. Then it is
started with one, which begins at once, and 64 connections produce to another topic until it is done. What
counts is their p99 beside that of the same load alone.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from ops.bench import frames
from ops.bench.brokers import Broker, Mpbroker
from ops.bench.scenarios import build_generator, create_topic, run_load

LOADED_TOPIC = "loaded"
COMPACTED_TOPIC = "compacted"
CONFIGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.bytes": str(100 << 20)}
CONNECTIONS = 64
KEYS = 300_000
RECORDS_PER_BATCH = 1000
VALUE_BYTES = 1000
TIMES_MAX = 2.0
DONE = "is clean up to offset"
FLAGS = ("--processors", "1", "-o", "log.flush.offset.checkpoint.interval.ms=1000")


def fill(broker: Broker, megabytes: int) -> None:
    chance = random.Random(1)
    value = chance.randbytes(VALUE_BYTES)
    with frames.connected(broker.address, timeout_s=120) as connection:
        error, _ = frames.exchange(connection, frames.create_topic(COMPACTED_TOPIC, 1, CONFIGS))
        assert not error, f"topic {COMPACTED_TOPIC} was not created: error {error}"
        for _ in range((megabytes << 20) // (RECORDS_PER_BATCH * VALUE_BYTES)):
            keys = (b"%d" % chance.randrange(KEYS) for _ in range(RECORDS_PER_BATCH))
            batch = build_batch(NewRecord(value, key, 1_700_000_000_000) for key in keys)
            while (
                error := frames.exchange(connection, frames.produce_batch(COMPACTED_TOPIC, batch))[0]
            ) == 3:
                time.sleep(0.05)
            assert not error, f"topic {COMPACTED_TOPIC} was not filled: error {error}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--megabytes", type=int, default=3000)
    given = parser.parse_args()
    build_generator()
    load = frames.produce(LOADED_TOPIC, 1, 100)
    with tempfile.TemporaryDirectory() as directory:
        broker = Mpbroker(Path(directory), flags=(*FLAGS, "-o", "log.cleaner.enable=false"))
        try:
            broker.start()
            create_topic(broker, LOADED_TOPIC)
            fill(broker, given.megabytes)
            quiet = run_load(broker, load, CONNECTIONS, given.seconds)
            broker.stop()
            broker.flags = (*FLAGS, "-o", "log.cleaner.backoff.ms=1000")
            broker.start()
            before = broker.output().count(DONE)
            busy = run_load(broker, load, CONNECTIONS, given.seconds)
            goes_on = broker.output().count(DONE) == before
        finally:
            broker.kill()
        said = [line for line in broker.output().splitlines() if DONE in line]
    times = busy.p99_us / quiet.p99_us
    print(f"quiet: {quiet.requests_per_s:,.0f}/s, p99 {quiet.p99_us:,.0f} us")
    print(f"beside a compaction: {busy.requests_per_s:,.0f}/s, p99 {busy.p99_us:,.0f} us")
    print("it went on all the time" if goes_on else f"it was over before: {said[-1]}")
    print(f"that is {times:.1f} times")
    return 0 if times <= TIMES_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
