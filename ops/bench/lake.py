"""Measures the lake: `make bench-lake`. Nothing has a bound: Spark and the store decide most of it.

* Spark reads a topic's history, by Python's reader and by the JVM's: from the object store alone, from the
  broker, and the same records from Parquet. Seconds of all columns, of the values alone, of a count.
* The tables job makes a table of this history, from the store: MiB of values a second, CPU for a GiB of them,
  of the job with its JVM and its Python workers.
* The job follows producers: how old the newest record in the table is, each time that a commit is seen.

The store is a directory beside the broker's own, on the same disk.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from ops.bench import frames, tier
from ops.bench.brokers import Mpbroker
from ops.bench.processes import Tree
from ops.bench.scenarios import attempts, create_topic
from ops.bench.spark import Shape, batches, environment, run
from spark_integration.jvm.jar import jar_path
from spark_integration.tables.catalog import LakeSettings, open_catalog
from spark_integration.tables.spans import covered

QUERIES: Final = ("all", "value", "count")
TABLE: Final = ("lake", tier.TOPIC)
VALUE_BYTES: Final = 1024
CUTS: Final = {"mpbroker.remote.checkpoint.interval.ms": "1000"}
INTERVAL_S: Final = 2.0
PRODUCE_EVERY_S: Final = 0.1


def fill(broker: Mpbroker, shape: Shape) -> None:
    """Produce the records, and wait until the store has them."""
    requests = (frames.produce_batch(tier.TOPIC, batch) for _, batch in batches(shape))
    create_topic(broker, tier.TOPIC, first=next(requests))
    tier.alter(broker, tier.TIERED)
    with frames.connected(broker.address) as connection:
        for request in requests:
            error, _ = frames.exchange(connection, request)
            assert not error, f"a batch is refused: error {error}"
    filled_ms = time.time() * 1000
    tier.settle(broker)
    for _ in attempts(tier.PATIENCE_S):
        if (tier.ask(broker, "remote")["last_cut_ms"] or 0) > filled_ms:
            return
        time.sleep(0.2)


def reads(directory: Path, broker: Mpbroker, shape: Shape, rounds: int) -> None:
    """Print the seconds of each reader's queries."""
    store = {"mpbroker.bucket": f"file://{directory / 'store'}", "subscribe": tier.TOPIC}
    live = {"kafka.bootstrap.servers": address(broker), "subscribe": tier.TOPIC}
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
    print(f"{shape}, local[2]: seconds")
    print(f"{'':16}" + "".join(f"{query:>10}" for query in QUERIES))
    for name, one in readers.items():
        found, _ = run({**one, "rounds": rounds, "condition": "offset < 500"})
        assert found["rows"] == shape.records, f"{name} has read {found['rows']} of {shape}"
        print(f"{name:16}" + "".join(f"{found[query]:>10.2f}" for query in QUERIES), flush=True)


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


def backfill(directory: Path, shape: Shape) -> None:
    """Make the table of all that the store has; print rate and CPU."""
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
    print(
        f"table, backfill  {size / took_s / (1 << 20):,.0f} MiB/s with the start of Spark, "
        f"{cpu_s / (size / (1 << 30)):,.1f} s CPU a GiB",
        flush=True,
    )


def lag(directory: Path, broker: Mpbroker, seconds: float) -> None:
    """Produce for a while beside the job; print how old the newest record of the table is at each commit."""
    batch = frames.produce(tier.TOPIC, 10, VALUE_BYTES)
    first, produced, ages = ends(directory), [], []
    with (
        tables_job(directory, {"kafka.bootstrap.servers": address(broker)}),
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
    print(
        f"table, lag       of {len(ages)} commits, one each {INTERVAL_S:g} s at most: the newest record was "
        f"{statistics.median(ages):.1f} s old (median), {max(ages):.1f} s (most)"
    )


def ends(directory: Path) -> int:
    """Return the offset at which the table ends."""
    found = covered(open_catalog(LakeSettings(f"file://{directory / 'lake'}")).load_table(TABLE))
    return sum(span.end for span in found.ends().values()) if found else 0


def address(broker: Mpbroker) -> str:
    host, port = broker.address
    return f"{host}:{port}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--megabytes", type=int, default=4_000, help="of values of 1 KiB")
    parser.add_argument("--rounds", type=int, default=3, help="of each query; the best counts")
    parser.add_argument("--seconds", type=float, default=60, help="for which lag is measured")
    parser.add_argument("--directory", help="where broker, store and table are (default: a temporary one)")
    given = parser.parse_args(arguments)
    records = given.megabytes * 1_000_000 // VALUE_BYTES // 500 * 500
    shape = Shape(records, VALUE_BYTES)
    with tempfile.TemporaryDirectory(dir=given.directory) as place:
        directory = Path(place)
        broker = tier.broker_in(directory, tier.ON, CUTS)
        try:
            broker.start()
            fill(broker, shape)
            reads(directory, broker, shape, given.rounds)
            backfill(directory, shape)
            lag(directory, broker, given.seconds)
            broker.stop()
        finally:
            broker.kill()
    return 0


if __name__ == "__main__":
    main()
