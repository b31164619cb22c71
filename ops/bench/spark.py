"""How fast Spark reads a topic in place: `python -m ops.bench.spark [--records N] [--value-bytes N]`.

Writes a log directory natively, then runs a few queries on local[2], each several times, and prints the
best. For comparison: Spark's own Kafka connector reads eight million records of 100 bytes at 1.15 million a
second on two cores.
"""

from __future__ import annotations

import argparse
import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mpbroker.log.checkpoints import write_offsets, write_topic_id
from mpbroker.log.names import HIGH_WATERMARKS, INDEX_SUFFIX, META_PROPERTIES, segment_name
from mpbroker.records.batch import assign_offset_and_epoch
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from ops.bench.timing import best_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).resolve().parents[2]
TOPIC = "bench"
RECORDS_PER_BATCH = 500
SEGMENT_BYTES = 512 << 20
DISTINCT_BATCHES = 20
REPEATS = 3
KAFKA_CONNECTOR_RECORDS_PER_S = 1_150_000


def write_log(log_dir: Path, records: int, value_bytes: int) -> int:
    """A topic of one partition with so many records; its bytes."""
    directory = log_dir / f"{TOPIC}-0"
    directory.mkdir(parents=True)
    (log_dir / META_PROPERTIES).write_text("cluster.id=AAAAAAAAAAAAAAAAAAAAAA\nnode.id=1\nversion=1\n")
    write_topic_id(directory, (1).to_bytes(16, "big"))
    templates = [_batch(number, value_bytes) for number in range(DISTINCT_BATCHES)]
    offset = written = 0
    while offset < records:
        base, position = offset, 0
        with (
            (directory / segment_name(base)).open("wb") as log,
            (directory / segment_name(base, INDEX_SUFFIX)).open("wb") as index,
        ):
            while offset < records and position < SEGMENT_BYTES:
                batch = templates[offset // RECORDS_PER_BATCH % DISTINCT_BATCHES]
                assign_offset_and_epoch(batch, offset, 0)
                if position:
                    index.write(struct.pack(">ii", offset + RECORDS_PER_BATCH - 1 - base, position))
                log.write(batch)
                position += len(batch)
                offset += RECORDS_PER_BATCH
        written += position
    write_offsets(log_dir / HIGH_WATERMARKS, {(TOPIC, 0): offset})
    return written


def _batch(number: int, value_bytes: int) -> bytearray:
    keys = [number * RECORDS_PER_BATCH + place for place in range(RECORDS_PER_BATCH)]
    return build_batch(
        [
            NewRecord(key=b"%08d" % key, value=os.urandom(value_bytes), timestamp=1_700_000_000_000 + key)
            for key in keys
        ]
    )


def session(warehouse: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("mpbroker bench")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.warehouse.dir", str(warehouse))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def measure(spark: SparkSession, log_dir: Path, records: int, written: int) -> None:
    def frame(columns: str | None = None) -> DataFrame:
        reader = spark.read.format("mpbroker").option("log.dir", str(log_dir)).option("subscribe", TOPIC)
        return (reader.option("columns", columns) if columns else reader).option("minPartitions", "2").load()

    def drained(found: DataFrame) -> None:
        found.write.format("noop").mode("overwrite").save()

    queries: dict[str, Callable[[], object]] = {
        "all columns": lambda: drained(frame()),
        "count": lambda: frame().count(),
        "count, only offset": lambda: frame("offset").count(),
        "group by key": lambda: drained(frame().groupBy("key").count()),
        "group by key, only key": lambda: drained(frame("key").groupBy("key").count()),
    }
    print(f"{records} records, {written / 1e6:.0f} MB, local[2], best of {REPEATS}")
    print(f"{'query':26}{'s':>8}{'records/s':>14}{'MB/s':>8}{'of Kafka connector':>20}")
    for name, run in queries.items():
        took_s = best_seconds(run, rounds=REPEATS, round_s=0)
        rate = records / took_s
        ratio = rate / KAFKA_CONNECTOR_RECORDS_PER_S
        print(f"{name:26}{took_s:8.2f}{rate:14,.0f}{written / took_s / 1e6:8.0f}{ratio:19.1f}x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=8_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--dir", type=Path, help="where to write the topic (default: a temporary directory)")
    given = parser.parse_args()
    records = given.records // RECORDS_PER_BATCH * RECORDS_PER_BATCH
    place = Path(tempfile.mkdtemp(prefix="mpbroker-bench-", dir=given.dir))
    try:
        written = write_log(place / "log", records, given.value_bytes)
        spark = session(place / "warehouse")
        try:
            measure(spark, place / "log", records, written)
        finally:
            spark.stop()
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
