"""Measures how soon a started broker serves: `python -m ops.bench.start`. Fails if a bound is exceeded.

It measures the memory of an idle partition, with ten thousand partitions and at most 4096 descriptors. With a
batch in each partition, it measures a start after a clean stop and a start after a kill of all processes.
With some gigabytes in one partition, it measures a start after a kill, which checks only the log since the
last recovery point.

A broker is started on an empty directory several times, and the best time counts: other work on the machine
only adds time. The last of these brokers, with two processors and two handlers, then idles for half a minute.
"""

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from ops.bench import frames
from ops.bench.brokers import Broker, Mpbroker

DESCRIPTORS = 4096
# Thousands of files are synced.
STOP_MOST_S = 600.0
TOPICS = 100
CLEAN_MOST_S = 10.0
UNCLEAN_MOST_S = 3.0
STARTS = 5
EMPTY_MOST_S = 0.4
# CPU of the whole tree, of one core. The background work of a start is done after this many seconds.
SETTLE_S, IDLE_S = 35.0, 30.0
IDLE_MOST_PERCENT = 0.25
IDLE_MOST_MB = 85.0
TWO_EACH = ("--processors", "2", "--handlers", "2")
IDLE_PARTITION_MOST_BYTES = 2048
RECORDS_PER_BATCH, VALUE_BYTES = 900, 1000
STAMP_MS = 1_700_000_000_000


class Bounds:
    def __init__(self) -> None:
        self.missed: list[str] = []

    def hold(self, what: str, value: float, most: float, unit: str) -> None:
        verdict = "" if value <= most else "  MISSED"
        print(f"{what}: {value:,.2f} {unit} (at most {most:,.2f}){verdict}", flush=True)
        if value > most:
            self.missed.append(what)


def make_topics(broker: Broker, partitions: int) -> None:
    with frames.connected(broker.address, timeout_s=600) as connection:
        for number in range(TOPICS):
            error, _ = frames.exchange(connection, frames.create_topic(f"many{number}", partitions // TOPICS))
            assert not error, f"topic many{number} was not created: error {error}"


def touch(broker: Broker, partitions: int) -> None:
    """Write one batch to each partition."""
    value = bytes(100)
    with frames.connected(broker.address, timeout_s=600) as connection:
        for number in range(TOPICS):
            batch = build_batch(
                [NewRecord(value, None, STAMP_MS)], producer_id=7, producer_epoch=0, base_sequence=0
            )
            request = frames.produce_batch(f"many{number}", bytes(batch))
            for partition in range(partitions // TOPICS):
                error, _ = frames.exchange(connection, request.for_partition(partition))
                assert not error, f"many{number}-{partition} refuses a batch: error {error}"


def fill(broker: Broker, megabytes: int) -> None:
    value = bytes(VALUE_BYTES)
    with frames.connected(broker.address, timeout_s=600) as connection:
        error, _ = frames.exchange(connection, frames.create_topic("large", 1))
        assert not error, f"topic large was not created: error {error}"
        for number in range((megabytes << 20) // (RECORDS_PER_BATCH * VALUE_BYTES)):
            batch = build_batch(
                [NewRecord(value, None, STAMP_MS)] * RECORDS_PER_BATCH,
                producer_id=8,
                producer_epoch=0,
                base_sequence=number * RECORDS_PER_BATCH,
            )
            error, _ = frames.exchange(connection, frames.produce_batch("large", bytes(batch)))
            assert not error, f"topic large was not filled: error {error}"


def compile_once(directory: Path) -> None:
    broker = Mpbroker(directory)
    try:
        broker.start()
        broker.stop()
    finally:
        broker.kill()


def empty(directory: Path, bounds: Bounds) -> None:
    took = []
    for number in range(STARTS):
        broker = Mpbroker(directory / str(number), flags=TWO_EACH)
        try:
            broker.start()
            took.append(broker.ready_s)
            if number == STARTS - 1:
                time.sleep(SETTLE_S)
                bounds.hold("CPU when idle", broker.tree().idle_cpu_percent(IDLE_S), IDLE_MOST_PERCENT, "%")
                bounds.hold("memory when idle", broker.tree().pss_bytes() / 1e6, IDLE_MOST_MB, "MB")
            broker.stop()
        finally:
            broker.kill()
    bounds.hold(f"ready on an empty directory, best of {STARTS}", min(took), EMPTY_MOST_S, "s")


def many(directory: Path, partitions: int, bounds: Bounds) -> None:
    broker = Mpbroker(directory, stop_timeout_s=STOP_MOST_S)
    try:
        broker.start()
        broker.stop()
        broker.start()
        empty_bytes = broker.tree().pss_bytes()
        make_topics(broker, partitions)
        broker.stop()
        broker.start()
        each = (broker.tree().pss_bytes() - empty_bytes) / partitions
        bounds.hold("memory of an idle partition", each, IDLE_PARTITION_MOST_BYTES, "bytes")
        touch(broker, partitions)
        broker.stop()
        broker.start()
        bounds.hold(f"{partitions} partitions after a clean stop", broker.ready_s, CLEAN_MOST_S, "s")
        touch_again = broker.tree().pss_bytes()
        print(f"with a producer each: {(touch_again - empty_bytes) / partitions:,.0f} bytes a partition")
        broker.kill()
        broker.start()
        bounds.hold(f"{partitions} partitions after a kill", broker.ready_s, UNCLEAN_MOST_S, "s")
        broker.stop()
    finally:
        broker.kill()


def large(directory: Path, megabytes: int, bounds: Bounds) -> None:
    broker = Mpbroker(directory, stop_timeout_s=STOP_MOST_S)
    try:
        broker.start()
        fill(broker, megabytes)
        broker.kill()
        broker.start()
        bounds.hold(f"{megabytes} MiB after a kill", broker.ready_s, UNCLEAN_MOST_S, "s")
        broker.stop()
    finally:
        broker.kill()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--megabytes", type=int, default=3000)
    parser.add_argument("--short", action="store_true", help="only empty directories, and the idle broker")
    given = parser.parse_args(arguments)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    bounds = Bounds()
    with tempfile.TemporaryDirectory() as directory:
        compile_once(Path(directory) / "first")
        empty(Path(directory) / "empty", bounds)
        if not given.short:
            many(Path(directory) / "many", given.partitions, bounds)
            large(Path(directory) / "large", given.megabytes, bounds)
    if bounds.missed:
        print(f"missed: {', '.join(bounds.missed)}")
    return 1 if bounds.missed else 0


if __name__ == "__main__":
    sys.exit(main())
