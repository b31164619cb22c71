"""A client of Spark Connect: `python -m tests.spark.connect_client SERVER HOW LOG_DIR TOPIC PLACE`.

It reads the topic through the server, as a `batch` or as a `stream` whose checkpoint is in PLACE, and prints
what it found as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.spark.named_source import plan_of


def batch(spark: SparkSession, options: dict[str, str], _place: Path) -> dict[str, Any]:
    frame = spark.read.format("mpbroker").options(**options).load()
    rows = frame.selectExpr("partition", "string(value) text").where("partition = 1").collect()
    return {
        "count": frame.count(),
        "of_partition_1": sorted(row.text for row in rows),
        "plan": plan_of(frame),
    }


def stream(spark: SparkSession, options: dict[str, str], place: Path) -> dict[str, Any]:
    frame = spark.readStream.format("mpbroker").options(**options, startingOffsets="earliest").load()
    query = (
        frame.select("partition", "offset")
        .writeStream.format("parquet")
        .option("path", str(place / "lake"))
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return {"streamed": spark.read.parquet(str(place / "lake")).distinct().count()}


def main() -> None:
    server, how, log_dir, topic, place = sys.argv[1:]
    read = {"batch": batch, "stream": stream}[how]
    spark = SparkSession.builder.remote(server).getOrCreate()
    try:
        found = read(spark, {"log.dir": log_dir, "subscribe": topic}, Path(place))
        print(json.dumps({"session": type(spark).__module__, **found}))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
