"""A streaming query that changes its source: `… -m ops.bench.connector.checkpoints ADDRESS LOG_DIR WORK`.

To be run with the interpreter of `ops.bench.connector`. Each line of standard input names a source: `kafka`,
`local` or `remote`. With that source the program continues the same query from the same checkpoint, until
all records are read. Then it prints the (partition, offset) pairs of the records that it has read, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from ops.bench import connector

TOPIC = "events"


def session(work: Path) -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", connector.jars())
        .config("spark.ui.enabled", "false")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .getOrCreate()
    )


def stream(spark: SparkSession, source: str, address: str, log_dir: str) -> DataFrame:
    reader = spark.readStream.format("kafka" if source == "kafka" else "mpbroker")
    reader = reader.option("subscribe", TOPIC).option("startingOffsets", "earliest")
    if source == "local":
        return reader.option("log.dir", log_dir).option("readMode", "local").load()
    return reader.option("kafka.bootstrap.servers", address).load()


def run(frame: DataFrame, work: Path) -> list[tuple[int, int]]:
    """Run the query until it has read all present records; return their (partition, offset) pairs."""
    got: list[tuple[int, int]] = []

    def take(batch: DataFrame, _number: int) -> None:
        got.extend((row.partition, row.offset) for row in batch.select("partition", "offset").collect())

    writer = frame.writeStream.foreachBatch(take)
    query = writer.option("checkpointLocation", str(work / "checkpoint")).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return sorted(got)


def main(address: str, log_dir: str, work: Path) -> None:
    spark = session(work)
    spark.sparkContext.setLogLevel("ERROR")
    for line in sys.stdin:
        found = run(stream(spark, line.strip(), address, log_dir), work)
        print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
