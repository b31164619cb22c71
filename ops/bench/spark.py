"""Compares mpbroker's readers for Spark with Spark's own Kafka connector: `python -m ops.bench.spark`.

The same records are in a log directory, in Apache Kafka and in plain Parquet. Queries read each of them on
local[2]: all columns, the values alone, a count, a WHERE that only records of the last batch fulfil, the
largest offset, a count by partition, a stream that ends after the present records, and one micro-batch of a
stream. mpbroker's readers read the log directory, and also fetch from Apache Kafka. The table also has
PySpark's own time for batches that are ready: no source in Python can be faster. The connector's jars need
Maven and the network once. The program fails if a bound is missed. The bounds are for the readers' speed
relative to the connector, for the JVM reader's speed relative to Parquet, for how much a job slows down
produces, and for the memory of Python workers. `--short` takes little data, and checks no bounds.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import psutil

from mpbroker.records.batch import assign_offset_and_epoch
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from mpbroker.storage.checkpoints import write_offsets, write_topic_id
from mpbroker.storage.names import (
    HIGH_WATERMARKS,
    INDEX_SUFFIX,
    META_PROPERTIES,
    SNAPSHOT_SUFFIX,
    segment_name,
)
from mpbroker.storage.producer_state import Producers
from ops.bench import frames
from ops.bench.brokers import ROOT, Kafka, Mpbroker, running
from ops.bench.connector import connector_jars
from ops.bench.processes import Tree
from ops.bench.scenarios import build_generator, create_topic, run_load
from ops.bench.spark_load import WorkerMemory, burning, with_cores
from spark_integration.jvm.jar import jar_path

TOPIC = "bench"
LOADED_TOPIC = "loaded"
RECORDS_PER_BATCH = 500
SEGMENT_BYTES = 512 << 20
DISTINCT_BATCHES = 20
CONNECTIONS = 16
READY = "PySpark, bare"
QUERIES = ("all", "value", "count", "where", "max", "groups", "stream", "batch")

# How many times the connector's speed each reader has at least.
# The topic has one partition, of which the connector makes two tasks: with four partitions the multiples are
# larger (docs/SPARK.md).
TIMES_MIN = {
    "mpbroker, Python": {"all": 2.2, "value": 2.3},
    "mpbroker, JVM": {"all": 6.0, "value": 6.0, "where": 25.0, "max": 20.0, "stream": 1.8, "batch": 3.3},
    "mpbroker, JVM, fetching": {"all": 4.0, "value": 4.5},
}
# Unless PySpark's own time for ready batches is most of it: then no reader can be faster.
TIMES_BARE_MAX = 1.25
PRODUCE_LOSS_MAX = 0.05
# Two batches of Arrow, one of a codec, and what Python and PyArrow take themselves.
WORKER_BYTES_MAX = 256 << 20


@dataclass(frozen=True)
class Shape:
    """The size of a topic: `records` records with values of `value_bytes` bytes."""

    records: int
    value_bytes: int

    def __str__(self) -> str:
        return f"{self.records} records of {self.value_bytes} bytes"


def shapes(records: int, large_megabytes: int) -> list[Shape]:
    large = large_megabytes * 1_000_000 // 1024
    return [
        Shape(records // RECORDS_PER_BATCH * RECORDS_PER_BATCH, 100),
        Shape(large // RECORDS_PER_BATCH * RECORDS_PER_BATCH, 1024),
    ]


def batches(shape: Shape) -> Iterator[tuple[int, bytearray]]:
    """Yield (base offset, batch) of the topic: a few batches, over and over."""
    templates = [_batch(number, shape.value_bytes) for number in range(DISTINCT_BATCHES)]
    for offset in range(0, shape.records, RECORDS_PER_BATCH):
        yield offset, templates[offset // RECORDS_PER_BATCH % DISTINCT_BATCHES]


def _batch(number: int, value_bytes: int) -> bytearray:
    values = Random(number)
    keys = [number * RECORDS_PER_BATCH + place for place in range(RECORDS_PER_BATCH)]
    return build_batch(
        [
            NewRecord(
                key=b"%08d" % key, value=values.randbytes(value_bytes), timestamp=1_700_000_000_000 + key
            )
            for key in keys
        ]
    )


def write_log(log_dir: Path, topics: Mapping[str, Iterator[tuple[int, bytearray]]], records: int) -> None:
    """Write a log directory with topics, each in one partition, as a cleanly stopped broker leaves it."""
    log_dir.mkdir(parents=True)
    (log_dir / META_PROPERTIES).write_text("cluster.id=AAAAAAAAAAAAAAAAAAAAAA\nnode.id=1\nversion=1\n")
    for number, (topic, rest) in enumerate(topics.items(), start=1):
        directory = log_dir / f"{topic}-0"
        directory.mkdir()
        write_topic_id(directory, number.to_bytes(16, "big"))
        offset, batch = next(rest)
        while offset < records:
            base, position = offset, 0
            with (
                (directory / segment_name(base)).open("wb") as log,
                (directory / segment_name(base, INDEX_SUFFIX)).open("wb") as index,
            ):
                while offset < records and position < SEGMENT_BYTES:
                    assign_offset_and_epoch(batch, offset, 0)
                    if position:
                        index.write(struct.pack(">ii", offset + RECORDS_PER_BATCH - 1 - base, position))
                    log.write(batch)
                    position += len(batch)
                    offset, batch = next(rest, (records, batch))
        # Without it each plan of the reader would search the whole log for transactions.
        (directory / segment_name(records, SNAPSHOT_SUFFIX)).write_bytes(Producers().snapshot())
    write_offsets(log_dir / HIGH_WATERMARKS, {(topic, 0): records for topic in topics})


def fill_kafka(kafka: Kafka, shape: Shape) -> None:
    requests = (frames.produce_batch(TOPIC, batch) for _, batch in batches(shape))
    create_topic(kafka, TOPIC, first=next(requests))
    with frames.connected(kafka.address) as connection:
        for request in requests:
            error, _ = frames.exchange(connection, request)
            assert not error, f"Apache Kafka refused a batch with error {error}"


def command(specification: dict[str, Any]) -> list[str]:
    given = json.dumps({"settings": {}, "rounds": 1, **specification})
    # As a script it would have this directory first in its path, and shm.py here is not the package shm.
    return [sys.executable, "-m", "ops.bench.spark_queries", given]


def environment() -> dict[str, str]:
    found = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return found | {"PYTHONPATH": str(ROOT)}


def run(specification: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the results of the queries, and the largest memory of a Python worker in bytes."""
    with (
        subprocess.Popen(
            command(specification), stdout=subprocess.PIPE, text=True, env=environment()
        ) as process,
        WorkerMemory(psutil.Process(process.pid)) as memory,
    ):
        out, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"the queries of {specification} ended with {process.returncode}")
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found, memory.peak_bytes


def readers(place: Path, shape: Shape) -> dict[str, dict[str, Any]]:
    """Return the readers that run on this machine's PySpark."""
    options = {"log.dir": str(place / "log"), "subscribe": TOPIC, "minPartitions": "2"}
    ours: dict[str, Any] = {"format": "mpbroker", "options": options, "streams": True}
    ready = {"records": str(shape.records), "valueBytes": str(shape.value_bytes)}
    found = {
        READY: {
            "format": "ready",
            "options": ready,
            "value_options": {"columns": "value"},
            "session": "mpbroker",
        },
        "mpbroker, Python": {**ours, "value_options": {"columns": "value"}, "session": "mpbroker"},
        "plain Parquet": {
            "format": "parquet",
            "options": {"path": str(place / "parquet")},
            "session": "spark",
        },
    }
    if jar_path() is not None:
        found["mpbroker, JVM"] = {**ours, "session": "accelerated"}
    return found


def read_by_all(shape: Shape, place: Path, rounds: int) -> tuple[dict[str, dict[str, Any]], int]:
    """Return the seconds of each reader's queries, and the largest memory of a Python worker in bytes."""
    write_log(place / "log", {TOPIC: batches(shape)}, shape.records)
    found, workers = {}, 0
    last = f"partition = 0 AND offset >= {shape.records - RECORDS_PER_BATCH}"
    queries: dict[str, Any] = {"rounds": rounds, "condition": last}
    ours = readers(place, shape)
    run({**ours["mpbroker, Python"], "write_parquet": str(place / "parquet")})
    # Recent writes would be on their way to the disk during the first reader's run.
    os.sync()
    for name, specification in ours.items():
        found[name], bytes_of_worker = run({**specification, **queries})
        workers = max(workers, bytes_of_worker)
    with running(Kafka(place / "kafka")) as kafka:
        assert isinstance(kafka, Kafka)
        fill_kafka(kafka, shape)
        os.sync()
        options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": TOPIC, "minPartitions": "2"}
        fetching = {"format": "mpbroker", "options": options, "streams": True, **queries}
        found["mpbroker, Python, fetching"], _ = run(
            {**fetching, "value_options": {"columns": "value"}, "session": "mpbroker"}
        )
        if jar_path() is not None:
            found["mpbroker, JVM, fetching"], _ = run({**fetching, "session": "accelerated"})
        connector = {**fetching, "format": "kafka", "session": "spark"}
        found["Spark's connector"], _ = run({**connector, "settings": {"spark.jars": connector_jars()}})
    assert all("JVM reader" in one["plan"] for name, one in found.items() if name.startswith("mpbroker, JVM"))
    for name, one in found.items():
        assert one["rows"] == shape.records, f"{name} has read {one['rows']} of {shape}"
        assert one["value_bytes"] == shape.records * shape.value_bytes, f"{name} has read other values"
    return found, workers


def compare(shape: Shape, place: Path, rounds: int) -> list[str]:
    """Read a topic of this size with all readers and print their times; return a line per missed bound."""
    found, workers = read_by_all(shape, place, rounds)
    print_table(shape, found)
    return missed(shape, found, workers)


def print_table(shape: Shape, found: dict[str, dict[str, Any]]) -> None:
    slowest = found["Spark's connector"]
    print(f"\n{shape}, local[2]: seconds, and times the speed of Spark's connector")
    print(f"{'':27}" + "".join(f"{query:>18}" for query in QUERIES))
    for name, one in found.items():
        cells = (
            f"{one[query]:8.2f} {slowest[query] / one[query]:7.1f} x" if query in one else " " * 18
            for query in QUERIES
        )
        print(f"{name:27}" + "".join(cells), flush=True)


def missed(shape: Shape, found: dict[str, dict[str, Any]], worker_bytes: int) -> list[str]:
    slowest, parquet = found["Spark's connector"], found["plain Parquet"]
    wrong = []
    for name, bounds in TIMES_MIN.items():
        if name not in found:
            wrong.append(f"{shape}: {name} is not there: make setup builds it where there is a JDK")
            continue
        for query, times in bounds.items():
            ratio = slowest[query] / found[name][query]
            is_python = name == "mpbroker, Python"
            if ratio < times and not (
                is_python and found[name][query] < TIMES_BARE_MAX * found[READY][query]
            ):
                wrong.append(f"{shape}: {name}, {query}: {ratio:.1f} times the connector, not {times}")
    for query in ("all", "value"):
        if "mpbroker, JVM" in found and found["mpbroker, JVM"][query] > parquet[query]:
            wrong.append(f"{shape}: mpbroker, JVM, {query}: slower than plain Parquet")
    print(f"a Python worker had at most {worker_bytes >> 20} MiB of its own")
    if worker_bytes > WORKER_BYTES_MAX:
        wrong.append(f"{shape}: a worker had {worker_bytes >> 20} MiB, not {WORKER_BYTES_MAX >> 20}")
    return wrong


def during_job(place: Path, shape: Shape, seconds: float) -> list[str]:
    """Measure how much slower produces are during a job that reads; return a line if the bound is missed.

    Compare with produces while other processes use as many cores as the job does.
    """
    write_log(place / "log", {TOPIC: batches(shape)}, shape.records)
    load = frames.produce(LOADED_TOPIC, 1, 100)
    specification = {**readers(place, shape)["mpbroker, Python"], "seconds": 3 * seconds}
    with running(Mpbroker(place / "broker")) as broker:
        create_topic(broker, LOADED_TOPIC)
        quiet = run_load(broker, load, CONNECTIONS, seconds).requests_per_s
        words = command(specification)
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment()) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "reading\n", "the job did not begin"
            tree = Tree(psutil.Process(process.pid))
            busy, cores = with_cores(tree, lambda: run_load(broker, load, CONNECTIONS, seconds))
            assert process.poll() is None, "the job ended before the produces did"
            process.communicate()
        with burning(cores, 2 * seconds):
            burnt = run_load(broker, load, CONNECTIONS, seconds).requests_per_s
    loss = 1 - busy.requests_per_s / burnt
    print(f"\nproduces/s: quiet {quiet:,.0f};")
    print(f"during a job that takes {cores:.2f} cores {busy.requests_per_s:,.0f};")
    print(f"during processes that take as much {burnt:,.0f}: the job itself costs {100 * loss:.1f} %")
    return [] if loss < PRODUCE_LOSS_MAX else [f"produces during a job: {100 * loss:.1f} % less"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--records", type=int, default=8_000_000, help="of 100 bytes")
    parser.add_argument("--large-megabytes", type=int, default=4_000, help="of records of 1 KiB")
    parser.add_argument("--rounds", type=int, default=3, help="of each query; the best counts")
    parser.add_argument("--seconds", type=float, default=10, help="of produces during a job")
    parser.add_argument("--short", action="store_true", help="little data, no bounds")
    given = parser.parse_args()
    if given.short:
        given.records, given.large_megabytes, given.rounds, given.seconds = 100_000, 20, 1, 2.0
    build_generator()
    wrong: list[str] = []
    both = shapes(given.records, given.large_megabytes)
    for shape in both:
        with tempfile.TemporaryDirectory(prefix="mpbroker-bench-") as place:
            wrong += compare(shape, Path(place), given.rounds)
    with tempfile.TemporaryDirectory(prefix="mpbroker-bench-") as place:
        wrong += during_job(Path(place), both[0], given.seconds)
    if given.short:
        return 0
    print(*(f"MISSED {one}" for one in wrong), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
