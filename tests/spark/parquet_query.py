"""A streaming query that writes a topic into Parquet files, in a process that a test kills.

`python -m tests.spark.parquet_query LOG_DIR CHECKPOINT FILES`.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import mpbroker.spark

PER_BATCH = 300


def copied(spark: SparkSession, log_dir: str, checkpoint: str, files: str) -> str:
    """Run the query to its end, and return what its progress says of the source."""
    options = {"log.dir": log_dir, "startingOffsets": "earliest", "accelerated": "true"}
    reader = spark.readStream.format("mpbroker").options(**options, subscribe="events")
    rows = reader.option("maxOffsetsPerTrigger", PER_BATCH).load()
    writer = rows.select("partition", "offset", "value").writeStream.format("parquet")
    query = writer.options(path=files, checkpointLocation=checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    return query.lastProgress.sources[0].description if query.lastProgress else "nothing new"


def main(*places: str) -> None:
    spark = mpbroker.spark.session(
        config={
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        },
    )
    copied(spark, *places)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
