"""Measures the lake: `make bench-lake`. Nothing has a bound: Spark and the store decide most of it.

* Spark reads a topic's history, by Python's reader and by the JVM's: from the object store alone, from the
  broker, and the same records from Parquet. Seconds of all columns, of the values alone, of a count.
* The tables job makes a table of this history, from the store: MiB of values a second, CPU for a GiB of them,
  of the job with its JVM and its Python workers.
* The job follows producers: how old the newest record in the table is, each time that a commit is seen.

The store is a directory beside the broker's own, on the same disk. With --record, figures go to
docs/lake.json and from there into the tables of docs/PERFORMANCE.md.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from ops.bench import frames, recorded, tiered
from ops.bench.brokers import Mpbroker
from ops.bench.processes import Tree
from ops.bench.recorded import Figures
from ops.bench.run import data_directory, progress
from ops.bench.scenarios import create_topic
from ops.bench.spark import Shape, batches, environment, run
from ops.docs import figures, tiering
from spark_integration.jvm.jar import jar_path
from spark_integration.tables.catalog import LakeSettings, open_catalog
from spark_integration.tables.spans import covered

QUERIES: Final = ("all", "value", "count")
TABLE: Final = ("lake", tiered.TOPIC)
VALUE_BYTES: Final = 1024
CUTS: Final = {"mpbroker.remote.checkpoint.interval.ms": "1000"}
INTERVAL_S: Final = 2.0
PRODUCE_EVERY_S: Final = 0.1


def fill(broker: Mpbroker, shape: Shape) -> None:
    """Produce the records, and wait until the store has them."""
    requests = (frames.produce_batch(tiered.TOPIC, batch) for _, batch in batches(shape))
    create_topic(broker, tiered.TOPIC, first=next(requests))
    tiered.alter(broker, tiered.TIERED)
    with frames.connected(broker.address) as connection:
        for request in requests:
            error, _ = frames.exchange(connection, request)
            assert not error, f"a batch is refused: error {error}"
    tiered.settle(broker)
    tiered.cut(broker)


def reads(directory: Path, broker: Mpbroker, shape: Shape, rounds: int) -> Figures:
    """Return the seconds of each reader's queries."""
    store = {"mpbroker.bucket": f"file://{directory / 'store'}", "subscribe": tiered.TOPIC}
    live = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": tiered.TOPIC}
    ours: dict[str, Any] = {
        "format": "mpbroker",
        "session": "mpbroker",
        "value_options": {"columns": "value"},
    }
    parquet = str(directory / "parquet")
    run({**ours, "options": store, "write_parquet": parquet})
    readers = {
        "store, Python": {**ours, "options": store},
        "broker, Python": {**ours, "options": live},
        "Parquet": {"format": "parquet", "session": "spark", "options": {"path": parquet}},
    }
    if jar_path() is not None:
        jvm = {"format": "mpbroker", "session": "accelerated"}
        readers |= {"store, JVM": {**jvm, "options": store}, "broker, JVM": {**jvm, "options": live}}
    seconds: Figures = {}
    for name, one in readers.items():
        found, _ = run({**one, "rounds": rounds, "condition": "offset < 500"})
        assert found["rows"] == shape.records, f"{name} has read {found['rows']} of {shape}"
        seconds[name] = {query: found[query] for query in QUERIES}
        progress.print(f"[dim]{name}: {seconds[name]}")
    return seconds


@contextmanager
def tables_job(directory: Path, source: dict[str, str], *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the job, and end it."""
    lake = directory / "lake"
    lake.mkdir(exist_ok=True)
    options = "\n".join(f'"{name}" = "{value}"' for name, value in source.items())
    (directory / "tables.toml").write_text(
        f'[source]\n{options}\n[lake]\nlocation = "file://{lake}"\n[job]\ninterval_s = {INTERVAL_S}\n'
        f'[[tables]]\ntopic = "{TABLE[1]}"\nname = "{".".join(TABLE)}"\n'
    )
    command = [sys.executable, "-m", "mpbroker", "tables", "run", "--tables", str(directory / "tables.toml")]
    log = (directory / "tables.log").open("ab")
    with log, subprocess.Popen([*command, *words], stdout=log, stderr=log, env=environment()) as process:
        try:
            yield process
        finally:
            process.terminate()


def backfill(directory: Path, shape: Shape) -> Figures:
    """Make the table of all that the store has; return rate, and CPU."""
    source = {"mpbroker.bucket": f"file://{directory / 'store'}"}
    begun, cpu_s = time.monotonic(), 0.0
    with tables_job(directory, source, "--once") as process:
        tree = Tree(psutil.Process(process.pid))
        # What has ended has no times: those of a moment before count.
        while process.poll() is None:
            cpu_s = max(cpu_s, tree.cpu_seconds())
            time.sleep(0.05)
    took_s = time.monotonic() - begun
    assert process.returncode == 0, (directory / "tables.log").read_text()
    size = shape.records * shape.value_bytes
    assert ends(directory) == shape.records
    return {"mib_per_s": size / took_s / (1 << 20), "cpu_s_per_gib": cpu_s / (size / (1 << 30))}


def lag(directory: Path, broker: Mpbroker, seconds: float) -> Figures:
    """Produce for a while beside the job; return how old the newest record of the table is at commits."""
    batch = frames.produce(tiered.TOPIC, 10, VALUE_BYTES)
    first, produced, ages = ends(directory), [], []
    with (
        tables_job(directory, {"kafka.bootstrap.servers": broker.bootstrap}),
        frames.connected(broker.address) as connection,
    ):
        seen, until = first, None
        while until is None or time.monotonic() < until:
            error, _ = frames.exchange(connection, batch)
            assert not error
            produced.append(time.monotonic())
            now = ends(directory)
            if now > seen:
                # Spark has begun.
                until = until or time.monotonic() + seconds
                ages.append(time.monotonic() - produced[min((now - first) // 10, len(produced)) - 1])
                seen = now
            time.sleep(PRODUCE_EVERY_S)
    return {
        "interval_s": INTERVAL_S,
        "commits": len(ages),
        "median_s": statistics.median(ages),
        "most_s": max(ages),
    }


def ends(directory: Path) -> int:
    """Return the offset at which the table ends."""
    found = covered(open_catalog(LakeSettings(f"file://{directory / 'lake'}")).load_table(TABLE))
    return sum(span.end for span in found.ends().values()) if found else 0


def measure(place: Path | None, shape: Shape, rounds: int, seconds: float) -> Figures:
    with data_directory(place) as directory:
        broker = tiered.broker_of(directory / "broker", directory / "store", CUTS)
        with tiered.started(broker):
            fill(broker, shape)
            return {
                "bytes": shape.records * shape.value_bytes,
                "reads": reads(directory, broker, shape, rounds),
                "backfill": backfill(directory, shape),
                "lag": lag(directory, broker, seconds),
            }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--megabytes", type=int, default=4_000, help="of values of 1 KiB (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of each query; the best counts (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="for which lag is measured (%(default)s)")
    parser.add_argument("--directory", type=Path, help="where broker, store and table are (TMPDIR)")
    parser.add_argument("--record", action="store_true", help="keep the figures in docs")
    given = parser.parse_args()
    shape = Shape(given.megabytes * 1_000_000 // VALUE_BYTES // 500 * 500, VALUE_BYTES)
    part = {"lake": lambda: measure(given.directory, shape, given.rounds, given.seconds)}
    found = recorded.measure(part, list(part), tiering.LAKE_FILE if given.record else None)
    print(*tiering.lake(found["lake"]), sep="\n")
    if given.record:
        figures.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
