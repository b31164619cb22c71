"""Produces beside a compaction: `python -m ops.bench.compaction`.

A topic is filled with records of a few hundred thousand keys while the broker has no cleaner. Then it is
started with one, which begins at once, and 64 connections produce to another topic: in turns while it works
and while it is stopped (SIGSTOP), so that whatever else happens on the machine meets both, until it is done.
What counts is the median of their p99 beside that of the turns in which it stood still. Each connection sends
the next request when it is answered, which takes all CPUs that there are; `--rate` has them sent at a fixed
rate below that.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import psutil

from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from ops.bench import frames
from ops.bench.brokers import Broker, Mpbroker
from ops.bench.processes import title_of
from ops.bench.scenarios import Result, build_generator, create_topic, merged, run_load, told

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


def cleaner_of(broker: Broker) -> psutil.Process:
    (found,) = (each for each in broker.tree().members() if title_of(each) == "cleaner")
    return found


def is_done(broker: Broker) -> bool:
    return DONE in broker.output()


def in_turns(broker: Broker, seconds: float, rate: float) -> tuple[list[Result], list[Result]]:
    """Without the turn in which the compaction ended."""
    load = frames.produce(LOADED_TOPIC, 1, 100)
    cleaner = cleaner_of(broker)
    quiet: list[Result] = []
    busy: list[Result] = []
    while True:
        cleaner.suspend()
        alone = run_load(broker, load, CONNECTIONS, seconds, rate=rate)
        cleaner.resume()
        beside = run_load(broker, load, CONNECTIONS, seconds, rate=rate)
        if is_done(broker):
            return quiet, busy
        quiet.append(alone)
        busy.append(beside)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="of each turn")
    parser.add_argument("--megabytes", type=int, default=5000)
    parser.add_argument(
        "--rate", type=float, default=0, help="requests per second; 0: as many as are answered"
    )
    given = parser.parse_args()
    build_generator()
    with tempfile.TemporaryDirectory() as directory:
        broker = Mpbroker(Path(directory), flags=(*FLAGS, "-o", "log.cleaner.enable=false"))
        try:
            broker.start()
            create_topic(broker, LOADED_TOPIC)
            fill(broker, given.megabytes)
            broker.stop()
            os.sync()
            broker.flags = (*FLAGS, "-o", "log.cleaner.backoff.ms=1000")
            broker.start()
            quiet, busy = in_turns(broker, given.seconds, given.rate)
        finally:
            broker.kill()
        said = [line for line in broker.output().splitlines() if DONE in line]
    if not busy:
        print(f"it was over before the first turn was: {said[-1]}")
        return 1
    times = merged(busy).p99_us / merged(quiet).p99_us
    print(told("quiet", quiet))
    print(told("beside a compaction", busy))
    print(said[-1])
    print(f"that is {times:.1f} times")
    return 0 if times <= TIMES_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
