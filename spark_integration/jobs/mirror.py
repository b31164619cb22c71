"""Mirrors topics from one cluster to another as they grow: a streaming query from the source into the sink.

The query's checkpoint holds the progress. With `exactly_once` records are written in transactions: after a
kill the last batch is either committed, or aborted and written again. Without it, the last batch may be
written twice. The headers of each record name its source.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from mpbroker.writing.options import parse_write_options
from spark_integration.jobs.frame import Notice, Silent, Source
from spark_integration.jobs.mirror_targets import Targets
from spark_integration.jobs.streams import Running, in_order, triggered
from spark_integration.schema import HEADERS

# Headers. A record that was mirrored before has them twice; the last ones are of this mirror.
SOURCE_TOPIC: Final = "__source.topic"
SOURCE_PARTITION: Final = "__source.partition"
SOURCE_OFFSET: Final = "__source.offset"


@dataclass(frozen=True)
class MirrorSettings:
    """The records to write, and their target.

    `options` are the sink's, such as kafka.bootstrap.servers. `checkpoint` is a directory of this mirror
    alone. With `exactly_once`, `name` is the sink's id, which must not change while the checkpoint is in use.
    The names of the target's topics begin with `prefix`. `keep_partitions` writes into partitions of the same
    numbers; otherwise the key decides. Missing topics are created with the partitions and settings of their
    sources, and get more partitions when their sources do.
    """

    source: Source
    options: dict[str, str] = field(repr=False)
    checkpoint: Path
    name: str = "mirror"
    prefix: str = ""
    keep_partitions: bool = True
    exactly_once: bool = True
    once: bool = False
    every_s: float = 1.0


def mirror(spark: SparkSession, settings: MirrorSettings, notice: Notice | None = None) -> Running:
    """Start the mirror; the caller waits for it.

    Raises OptionError, SourceUnavailable, JobError (the target's topics do not fit), PySparkException.
    """
    options = {"startingOffsets": "earliest", **settings.source.options(), "includeHeaders": "true"}
    records = spark.readStream.format("mpbroker").options(**in_order(options)).load()
    targets = Targets(settings.source.options(), settings.prefix, settings.keep_partitions)
    sink = {**settings.options, **targets.options()}
    notice = notice or Silent()
    # Spark makes the directory with the first batch.
    has_begun = (settings.checkpoint / "offsets").is_dir()
    for topic in targets.make(parse_write_options(settings.options), has_begun=has_begun):
        notice.say(f"created topic {topic}")
    if settings.exactly_once:
        sink = {**sink, "exactlyOnce": "true", "sinkId": settings.name}
    writer = copies(records, settings).writeStream.format("mpbroker").options(**sink)
    writer = writer.queryName(settings.name).option("checkpointLocation", str(settings.checkpoint.absolute()))
    query = triggered(writer, once=settings.once, every_s=settings.every_s).start()
    return Running(query, notice, sink if settings.exactly_once else None)


def copies(records: DataFrame, settings: MirrorSettings) -> DataFrame:
    """Return rows for the sink: `records` with the target's topics, and headers that name their source."""
    before = F.coalesce(F.col("headers"), F.array().cast(HEADERS))
    here = F.array(
        _header(SOURCE_TOPIC, F.col("topic")),
        _header(SOURCE_PARTITION, F.col("partition")),
        _header(SOURCE_OFFSET, F.col("offset")),
    )
    columns = ["topic", "key", "value", "headers", "timestamp"]
    if settings.keep_partitions:
        columns.append("partition")
    marked = records.withColumn("headers", F.concat(before, here).cast(HEADERS))
    return marked.withColumn("topic", F.concat(F.lit(settings.prefix), F.col("topic"))).select(*columns)


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
