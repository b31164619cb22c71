"""Times queries in one Spark session: `python -m ops.bench.spark_queries SPECIFICATION`.

The specification is JSON: {"format", "options", "value_options", "rounds", "settings", "session",
"condition", "streams"}; `session` is "spark", "mpbroker" or "accelerated". Prints {"all", "value", "count",
"where", "max", "groups": best seconds, "rows", "value_bytes", "plan"}, and with "streams" also "stream", the
best seconds of a stream that ends after the present records, and "batch", the median seconds of addBatch
in a stream with PER_BATCH records a batch. With "seconds" it also prints "reading" after the warm-up, repeats
the value query for that time, and prints {"runs"}. With "write_parquet", a path, it writes all columns there
and prints {}.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ALWAYS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
}


# The JVM compiles what runs often: a reader that is quick needs as long as the others, so more rounds.
WARM_UP_S = 6.0
PER_BATCH = 200_000


def open_session(kind: str, settings: dict[str, str]) -> SparkSession:
    wanted = {**ALWAYS, **settings}
    if kind != "spark":
        from mpbroker.spark import session

        return session(master="local[2]", accelerated=kind == "accelerated", config=wanted, quiet=True)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]")
    for name, value in wanted.items():
        builder = builder.config(name, value)
    found: SparkSession = builder.getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    return found


def timed(run: Callable[[], Any], rounds: int) -> tuple[float, Any]:
    """Return the best of `rounds` rounds, after a warm-up, in seconds; and the result of the last one."""
    deadline = time.perf_counter() + WARM_UP_S
    run()
    while time.perf_counter() < deadline:
        run()
    took = []
    for _ in range(rounds):
        begun = time.perf_counter()
        found = run()
        took.append(time.perf_counter() - begun)
    return min(took), found


def measure(spark: SparkSession, given: dict[str, Any]) -> dict[str, Any]:
    def frame(extra: dict[str, str]) -> DataFrame:
        return spark.read.format(given["format"]).options(**{**given["options"], **extra}).load()

    def everything() -> None:
        frame({}).write.format("noop").mode("overwrite").save()

    def value_bytes() -> int:
        found = frame(given.get("value_options", {})).selectExpr("sum(length(value)) total").first()
        return int(found.total) if found is not None else 0

    if "seconds" in given:
        value_bytes()
        print("reading", flush=True)
        end, runs = time.monotonic() + given["seconds"], 0
        while time.monotonic() < end:
            value_bytes()
            runs += 1
        return {"runs": runs}
    rounds = given["rounds"]
    all_s, _ = timed(everything, rounds)
    value_s, total = timed(value_bytes, rounds)
    count_s, rows = timed(lambda: frame({}).count(), rounds)
    where_s, _ = timed(lambda: frame({}).where(given["condition"]).count(), rounds)
    max_s, _ = timed(lambda: frame({}).selectExpr("max(offset)").first(), rounds)
    groups_s, _ = timed(lambda: frame({}).groupBy("partition").count().collect(), rounds)
    # The plan as text is Java's: PySpark itself only prints it.
    plan = frame({})._jdf.queryExecution().toString()
    seconds = {"all": all_s, "value": value_s, "count": count_s}
    seconds |= {"where": where_s, "max": max_s, "groups": groups_s}
    if given.get("streams"):
        seconds["stream"] = min(streamed(spark, given, {}, rows)[0] for _ in range(rounds))
        seconds["batch"] = streamed(spark, given, {"maxOffsetsPerTrigger": str(PER_BATCH)}, rows)[1]
    return {**seconds, "rows": rows, "value_bytes": total, "plan": plan}


def streamed(
    spark: SparkSession, given: dict[str, Any], extra: dict[str, str], rows: int
) -> tuple[float, float]:
    """Read the topic as a stream; return the seconds that it took, and addBatch's median seconds."""
    options = {"startingOffsets": "earliest", **given["options"], **extra}
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = spark.readStream.format(given["format"]).options(**options).load().writeStream.format("noop")
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        begun = time.perf_counter()
        query = writer.start()
        query.awaitTermination()
        took = time.perf_counter() - begun
        batches = [one for one in query.recentProgress if one.numInputRows]
    read = sum(one.numInputRows for one in batches)
    assert read == rows, f"a stream of {given['format']} has read {read} of {rows} records"
    return took, statistics.median(one.durationMs["addBatch"] for one in batches) / 1000


def main() -> None:
    given = json.loads(sys.argv[1])
    spark = open_session(given["session"], given["settings"])
    if given["format"] == "ready":
        from ops.bench.spark_ready import ReadyBatches

        spark.dataSource.register(ReadyBatches)
    try:
        if given.get("write_parquet"):
            source = spark.read.format(given["format"]).options(**given["options"]).load()
            source.write.option("compression", "none").parquet(given["write_parquet"])
            print(json.dumps({}))
        else:
            print(json.dumps(measure(spark, given)))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
