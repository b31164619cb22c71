"""Measures how soon a streaming query returns a new record, and its costs: `make bench-spark-stream`.

One broker, one topic, and one query after the other: mpbroker's source on files and over the network, in the
JVM and in Python, and Spark's own Kafka connector (`--without-connector` leaves it out). The results of each
query: the median time of a micro-batch of one record, the latency from produce() to the row in foreachBatch,
and the CPU use while idle.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from ops.bench.brokers import ROOT, Mpbroker, running
from ops.bench.connector import connector_jars
from ops.bench.scenarios import create_topic
from spark_integration.jvm.jar import jar_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "bench"
RECORDS = 40
# The first ones are slow: the JVM compiles.
WARM_UP = 15
IDLE_S = 10.0
PAUSE_S = 0.3
PATIENCE_S = 120.0
RUNNER = "python_streaming_source_runner"
SOURCES = ("files", "wire", "python files", "python wire", "kafka")


def session(source: str, work: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("mpbroker stream bench")
    jars = connector_jars() if source == "kafka" else str(jar_path())
    spark: SparkSession = (
        builder.config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def stream(spark: SparkSession, source: str, address: str, log_dir: str) -> DataFrame:
    reader = spark.readStream.format("kafka" if source == "kafka" else "mpbroker").option("subscribe", TOPIC)
    if source != "kafka":
        reader = reader.option("accelerated", "python" not in source)
    if "files" in source:
        return reader.option("log.dir", log_dir).option("readMode", "local").load()
    return reader.option("kafka.bootstrap.servers", address).load()


class Latencies:
    """Produces single records, and waits for the row of each before the next."""

    def __init__(self, address: str) -> None:
        from confluent_kafka import Producer

        self._producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
        self._rows = 0
        self._has_come = threading.Condition()

    def take(self, batch: DataFrame, _number: int) -> None:
        found = len(batch.select("offset").collect())
        with self._has_come:
            self._rows += found
            self._has_come.notify()

    def one(self) -> float:
        """Produce one record; return the milliseconds from produce() until the query has its row."""
        with self._has_come:
            wanted = self._rows + 1
            begun = time.perf_counter()
            self._producer.produce(TOPIC, b"v" * 100)
            self._producer.poll(0)
            if not self._has_come.wait_for(lambda: self._rows >= wanted, PATIENCE_S):
                raise TimeoutError(f"a record was no row within {PATIENCE_S:.0f} s")
            return (time.perf_counter() - begun) * 1000


def cpu_s() -> tuple[float, float]:
    """Return the CPU seconds so far of the process of mpbroker's source, and of all other child processes."""
    ours = others = 0.0
    for process in psutil.Process().children(recursive=True):
        # Spark's workers come and go.
        with contextlib.suppress(psutil.NoSuchProcess):
            is_ours = RUNNER in " ".join(process.cmdline())
            times = process.cpu_times()
            if is_ours:
                ours += times.user + times.system
            else:
                others += times.user + times.system
    return ours, others


def measure(source: str, address: str, log_dir: str) -> dict[str, float]:
    """Return the figures of one source, in an interpreter of its own."""
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        spark = session(source, work)
        latencies = Latencies(address)
        writer = stream(spark, source, address, log_dir).writeStream.foreachBatch(latencies.take)
        query = writer.option("checkpointLocation", str(work / "checkpoint")).start()
        query.processAllAvailable()
        found = []
        for _ in range(WARM_UP + RECORDS):
            found.append(latencies.one())
            time.sleep(PAUSE_S)
        progress: list[Any] = list(query.recentProgress)
        batches = [one["durationMs"]["triggerExecution"] for one in progress if one["numInputRows"]]
        before, begun = cpu_s(), time.monotonic()
        time.sleep(IDLE_S)
        after, seconds = cpu_s(), time.monotonic() - begun
        query.stop()
        spark.stop()
    measured = sorted(found[WARM_UP:])
    return {
        "batch_ms": statistics.median(batches[WARM_UP:]),
        "latency_ms": statistics.median(measured),
        "latency_p95_ms": measured[int(len(measured) * 0.95)],
        "idle_source_percent": 100 * (after[0] - before[0]) / seconds,
        "idle_rest_percent": 100 * (after[1] - before[1]) / seconds,
    }


def run(source: str, broker: Mpbroker) -> dict[str, float]:
    command = [sys.executable, "-m", "ops.bench.spark_stream", "--measure", source]
    command += ["--address", broker.bootstrap, "--log-dir", str(broker.log_dir)]
    kept = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"}
    environment = {**kept, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=broker.directory, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--without-connector", action="store_true")
    parser.add_argument("--measure", choices=SOURCES, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--log-dir", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.address, arguments.log_dir)))
        return
    print(f"{'source':18}{'batch ms':>10}{'latency ms':>12}{'p95':>8}{'idle: source %':>16}{'rest %':>8}")
    with tempfile.TemporaryDirectory() as directory, running(Mpbroker(Path(directory))) as broker:
        assert isinstance(broker, Mpbroker)
        create_topic(broker, TOPIC)
        for source in SOURCES[:-1] if arguments.without_connector else SOURCES:
            found = run(source, broker)
            print(
                f"{source:18}{found['batch_ms']:10.0f}{found['latency_ms']:12.0f}"
                f"{found['latency_p95_ms']:8.0f}{found['idle_source_percent']:16.1f}"
                f"{found['idle_rest_percent']:8.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
