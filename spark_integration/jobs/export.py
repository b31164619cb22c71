"""Topics to Parquet: `python -m spark_integration.jobs.export orders --log-dir /var/lib/mpbroker --to /lake`.

Each run writes what came since the run before, partitioned by topic: the end offsets of a run are kept beside
its data, in `_mpbroker/<run>.json`, and are the start offsets of the next. They are written last and in one
step, so a run that fails leaves none; what it had written stays in the directory of its number, `run=<run>`,
until the next try replaces it.

Needs a file system that the driver sees as a directory; Spark's own session settings come from spark-submit.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spark_integration.errors import OptionError, SourceUnavailable
from spark_integration.options import ReadOptions, TopicPartition, parse_options
from spark_integration.plan import Catalog, selected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATE = "_mpbroker"

Offsets = dict[TopicPartition, int]


def read_state(target: Path) -> tuple[int, Offsets]:
    """The number of the next run, and where the last one ended. Raises OSError, ValueError."""
    runs = sorted((target / STATE).glob("*.json"))
    if not runs:
        return 0, {}
    saved = json.loads(runs[-1].read_text("utf-8"))
    found = {(topic, int(number)): end for topic, parts in saved.items() for number, end in parts.items()}
    return int(runs[-1].stem) + 1, found


def write_state(target: Path, run: int, ends: Offsets) -> None:
    """Commits a run; durable when it returns."""
    (target / STATE).mkdir(parents=True, exist_ok=True)
    path = target / STATE / f"{run:010d}.json"
    making = path.with_suffix(".tmp")
    with making.open("w", encoding="utf-8") as file:
        file.write(as_json(ends))
        file.flush()
        os.fsync(file.fileno())
    making.rename(path)


def as_json(offsets: Offsets) -> str:
    """The JSON of startingOffsets and endingOffsets."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(number)] = offset
    return json.dumps(topics)


def run_range(catalog: Catalog, options: ReadOptions, before: Offsets) -> tuple[Offsets, Offsets]:
    """From where the last run ended, or the log starts, to the high watermark of this moment."""
    bounds = catalog.bounds(selected(catalog, options))
    starts = {one: before.get(one, earliest) for one, (earliest, _) in bounds.items()}
    return starts, {one: latest for one, (_, latest) in bounds.items()}


def export(spark: SparkSession, options: dict[str, str], target: Path) -> int:
    """One run; the number of records that it wrote."""
    from spark_integration.source import open_catalog

    parsed = parse_options(options)
    run, before = read_state(target)
    catalog = open_catalog(parsed)
    try:
        starts, ends = run_range(catalog, parsed, before)
    finally:
        catalog.close()
    if starts == ends:
        return 0
    edges = {"startingOffsets": as_json(starts), "endingOffsets": as_json(ends)}
    frame = spark.read.format("mpbroker").options(**options, **edges).load()
    place = str(target / f"run={run:010d}")
    frame.write.mode("overwrite").partitionBy("topic").parquet(place)
    write_state(target, run, ends)
    return spark.read.parquet(place).count()


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="spark_integration.jobs.export", description=__doc__)
    parser.add_argument("topics", help="topics, separated by commas")
    parser.add_argument("--to", type=Path, required=True, help="the directory that gets the Parquet files")
    parser.add_argument("--log-dir", help="the broker's log directory")
    parser.add_argument("--bootstrap-server", help="host:port of a broker, to fetch over the network")
    parser.add_argument("--fail-on-data-loss", choices=("true", "false"), default="true")
    parser.add_argument("--min-partitions", type=int)
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    arguments = _arguments(given)
    chosen = {
        "subscribe": arguments.topics,
        "includeHeaders": "true",
        "failOnDataLoss": arguments.fail_on_data_loss,
        "log.dir": arguments.log_dir,
        "kafka.bootstrap.servers": arguments.bootstrap_server,
        "minPartitions": arguments.min_partitions,
    }
    options = {name: str(value) for name, value in chosen.items() if value is not None}
    try:
        parse_options(options)
    except OptionError as error:
        print(f"export: {error}", file=sys.stderr)
        return 2
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName(f"export {arguments.topics}").getOrCreate()
    try:
        written = export(spark, options, arguments.to)
    except (OptionError, SourceUnavailable, PySparkException, OSError) as error:
        print(f"export: {error}", file=sys.stderr)
        return 1
    finally:
        spark.stop()
    print(f"{written} records written to {arguments.to}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
