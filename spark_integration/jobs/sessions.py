"""Joins events to sessions: a key's session ends when no event of the key came for as long as the gap.

This is an example of a query with state, to be read and changed. The watermark limits how late an event may
be. A session is output once, when no more events can belong to it, and its state is dropped. So the last
session of a topic without new records stays open.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from spark_integration.jobs.frame import Notice, Silent, Source
from spark_integration.jobs.streams import Running, triggered


@dataclass(frozen=True)
class SessionSettings:
    """The events to read, and the target of sessions: Parquet files in a directory, or a topic.

    `options` are those of a topic's sink, such as kafka.bootstrap.servers. `gap` and `lateness` are intervals
    as Spark writes them, such as "30 minutes".
    """

    source: Source
    checkpoint: Path
    target: Path | str
    options: dict[str, str] = field(default_factory=dict, repr=False)
    gap: str = "30 minutes"
    lateness: str = "10 minutes"
    once: bool = False
    every_s: float = 1.0


def sessions(spark: SparkSession, settings: SessionSettings, notice: Notice | None = None) -> Running:
    """Start the query; the caller waits for it. Raises OptionError, PySparkException."""
    options = {"startingOffsets": "earliest", **settings.source.options(), "columns": "key,timestamp"}
    events = spark.readStream.format("mpbroker").options(**options).load()
    found = by_key(events, settings.gap, settings.lateness)
    sink = None
    if isinstance(settings.target, Path):
        writer = found.writeStream.format("parquet").option("path", str(settings.target.absolute()))
    else:
        sink = {"sinkId": f"sessions-{settings.target}", **settings.options}
        sink = {**sink, "topic": settings.target, "exactlyOnce": "true"}
        writer = as_records(found).writeStream.format("mpbroker").options(**sink)
    writer = writer.outputMode("append").option("checkpointLocation", str(settings.checkpoint.absolute()))
    query = triggered(writer, once=settings.once, every_s=settings.every_s).start()
    return Running(query, notice or Silent(), sink)


def by_key(events: DataFrame, gap: str, lateness: str) -> DataFrame:
    """Return each session's key, times of its first and last event, and number of events."""
    return (
        events.where("key is not null")
        .withWatermark("timestamp", lateness)
        .groupBy(F.session_window("timestamp", gap), F.col("key"))
        .agg(
            F.min("timestamp").alias("began"), F.max("timestamp").alias("ended"), F.count("*").alias("events")
        )
        .select(F.col("key").cast("string").alias("key"), "began", "ended", "events")
    )


def as_records(found: DataFrame) -> DataFrame:
    """Return each session as a JSON document, with the key of its events."""
    return found.select("key", F.to_json(F.struct("key", "began", "ended", "events")).alias("value"))
