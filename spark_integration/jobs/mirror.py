"""Topics from one cluster to another as they grow: a streaming query from the source into the sink.

How far it is is in the query's checkpoint. With `exactly_once` a batch is committed as one, and after a kill
finished or written anew; else the batch that the job was killed in may be written twice. Each record tells in
its headers where it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_integration.jobs.frame import Notice, Silent, Source
from spark_integration.jobs.streams import Running, in_order, triggered

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# As headers; a record that was mirrored before has them twice, and the last ones are of this mirror.
SOURCE_TOPIC: Final = "__source.topic"
SOURCE_PARTITION: Final = "__source.partition"
SOURCE_OFFSET: Final = "__source.offset"


@dataclass(frozen=True)
class MirrorSettings:
    """What to write where.

    `options`: of the sink, such as kafka.bootstrap.servers. `checkpoint`: a directory of this mirror alone.
    `name`: of the sink, with `exactly_once`; it belongs to the checkpoint. `prefix`: of the topics' names
    there. `keep_partitions`: into partitions of the same numbers, which have to be there; else by key.
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
    """Starts the mirror; whoever calls waits for it. Raises OptionError, PySparkException."""
    options = {"startingOffsets": "earliest", **settings.source.options(), "includeHeaders": "true"}
    records = spark.readStream.format("mpbroker").options(**in_order(options)).load()
    sink = dict(settings.options)
    if settings.exactly_once:
        sink = {**sink, "exactlyOnce": "true", "sinkId": settings.name}
    writer = copies(records, settings).writeStream.format("mpbroker").options(**sink)
    writer = writer.queryName(settings.name).option("checkpointLocation", str(settings.checkpoint.absolute()))
    query = triggered(writer, once=settings.once, every_s=settings.every_s).start()
    return Running(query, notice or Silent(), sink if settings.exactly_once else None)


def copies(records: DataFrame, settings: MirrorSettings) -> DataFrame:
    """What the sink is given."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

    from spark_integration.schema import HEADERS

    before = F.coalesce(F.col("headers"), F.array().cast(HEADERS))
    here = F.array(
        _header(SOURCE_TOPIC, F.col("topic")),
        _header(SOURCE_PARTITION, F.col("partition")),
        _header(SOURCE_OFFSET, F.col("offset")),
    )
    columns = ["topic", "key", "value", "headers", "timestamp"]
    if settings.keep_partitions:
        columns.append("partition")
    told = records.withColumn("headers", F.concat(before, here).cast(HEADERS))
    return told.withColumn("topic", F.concat(F.lit(settings.prefix), F.col("topic"))).select(*columns)


def _header(name: str, value: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
