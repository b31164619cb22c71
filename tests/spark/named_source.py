"""A program that knows nothing of this package but the name of its format.

`named_source.py LOG_DIR BOOTSTRAP TOPIC COPIES CHECKPOINT [SETTING=VALUE…]` reads TOPIC as a batch, copies it
to COPIES as a stream, appends 5 records by a `save()` without a mode, and prints as JSON what it counted and
who read; the log has what this package says at INFO. `register=before` registers the Python source first,
`register=after` after a first read. `mode` is that of the `save()`.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from io import StringIO

from pyspark.sql import DataFrame, SparkSession

FORMAT = "mpbroker"


def plan_of(frame: DataFrame) -> str:
    with redirect_stdout(StringIO()) as printed:
        frame.explain()
    return printed.getvalue()


def register(spark: SparkSession) -> None:
    from spark_integration.source import MpbrokerDataSource

    spark.dataSource.register(MpbrokerDataSource)


def main() -> None:
    log_dir, bootstrap, topic, copies, checkpoint, *rest = sys.argv[1:]
    settings = dict(one.split("=", 1) for one in rest)
    registered, mode = settings.pop("register", None), settings.pop("mode", None)
    builder = SparkSession.builder.appName("named source")
    for name, value in settings.items():
        builder = builder.remote(value) if name == "remote" else builder.config(name, value)
    spark = builder.getOrCreate()
    if "remote" not in settings:
        log4j = spark._jvm.org.apache.logging.log4j
        log4j.core.config.Configurator.setLevel("mpbroker.spark", log4j.Level.INFO)
    if registered == "before":
        register(spark)
    places = {"log.dir": log_dir, "subscribe": topic}
    frame = spark.read.format(FORMAT).options(**places).load()
    found = {"count": frame.count(), "plan": plan_of(frame)}
    if registered == "after":
        register(spark)
        found["plan"] = plan_of(spark.read.format(FORMAT).options(**places).load())
    target = {"kafka.bootstrap.servers": bootstrap, "topic": copies}
    stream = spark.readStream.format(FORMAT).options(**places, startingOffsets="earliest").load()
    query = (
        stream.select("key", "value")
        .writeStream.format(FORMAT)
        .options(**target)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    frame.limit(5).select("key", "value").write.format(FORMAT).options(**target).mode(mode).save()
    written = spark.read.format(FORMAT).option("log.dir", log_dir).option("subscribe", copies)
    found["copies"] = written.load().count()
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
