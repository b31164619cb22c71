"""A client of Spark Connect as a process: `python -m tests.spark.connect_client LOG_DIR TOPIC PLACE`.

It starts a Connect server on this host, reads the topic through it, as a batch and as a stream whose
checkpoint is in PLACE, and prints what it found as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession


def main() -> None:
    log_dir, topic, place = sys.argv[1:]
    options = {"log.dir": log_dir, "subscribe": topic}
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    try:
        frame = spark.read.format("mpbroker").options(**options).load()
        rows = frame.selectExpr("partition", "string(value) text").where("partition = 1").collect()
        found: dict[str, Any] = {
            "session": type(spark).__module__,
            "count": frame.count(),
            "of_partition_1": sorted(row.text for row in rows),
        }
        stream = spark.readStream.format("mpbroker").options(**options, startingOffsets="earliest").load()
        query = (
            stream.select("partition", "offset")
            .writeStream.format("parquet")
            .option("path", f"{place}/lake")
            .option("checkpointLocation", f"{place}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        found["streamed"] = spark.read.parquet(f"{place}/lake").distinct().count()
        print(json.dumps(found))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
