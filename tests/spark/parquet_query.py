"""A streaming query that writes a topic into Parquet files, in a process that a test kills.

`python -m tests.spark.parquet_query LOG_DIR CHECKPOINT FILES`.
"""

from __future__ import annotations

import sys

import mpbroker.spark

PER_BATCH = 300


def main(log_dir: str, checkpoint: str, files: str) -> None:
    spark = mpbroker.spark.session(
        config={
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        },
    )
    reader = spark.readStream.format("mpbroker").options(**{"log.dir": log_dir}, subscribe="events")
    rows = reader.options(startingOffsets="earliest", maxOffsetsPerTrigger=PER_BATCH).load()
    writer = rows.select("partition", "offset", "value").writeStream.format("parquet")
    query = writer.options(path=files, checkpointLocation=checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    print(query.lastProgress.sources[0].description if query.lastProgress else "nothing new")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
