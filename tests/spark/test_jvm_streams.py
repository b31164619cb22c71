"""Streams that the JVM reads: their progress, their metrics, and what a killed or stopped query leaves."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from ops.bench.brokers import ROOT, Mpbroker
from tests.spark.parquet_query import PER_BATCH, copied
from tests.support.committed_offsets import offset_of
from tests.support.forms import pick
from tests.support.polling import PATIENCE_S, until
from tests.support.real_brokers import served
from tests.support.spark_logs import FakeBroker, PartitionWriter, fill, numbered
from tests.support.spark_produced import PARTITIONS, make_topic, produce, records
from tests.support.spark_streams import rows_of

KILLS = pick("kills of a driver", short=1, long=20)
RECORDS = 400


@pytest.fixture
def writers(log_dir: Path, fake_broker: FakeBroker) -> list[PartitionWriter]:
    """RECORDS records in each of three partitions."""
    found = [PartitionWriter(log_dir, "events", one, topic_id=b"e" * 16) for one in range(PARTITIONS)]
    for writer in found:
        fill(writer, RECORDS // 10)
        fake_broker.publish(writer)
    return found


@pytest.fixture
def stream(spark: SparkSession, log_dir: Path) -> Any:
    def load(**options: object) -> DataFrame:
        reader = spark.readStream.format("mpbroker").option("accelerated", "true")
        reader = reader.options(**{"log.dir": str(log_dir)}, startingOffsets="earliest")
        if not {"assign", "subscribePattern"} & set(options):
            reader = reader.option("subscribe", "events")
        return reader.options(**options).load()  # type: ignore[arg-type]

    return load


def run(frame: DataFrame, checkpoint: Path) -> StreamingQuery:
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)
    return query


@pytest.mark.parametrize(
    ("options", "description"),
    [
        ({"subscribe": " events, "}, "mpbroker[Subscribe[events]]"),
        ({"subscribePattern": "ev.*"}, "mpbroker[SubscribePattern[ev.*]]"),
        ({"assign": '{"events":[0,1,2]}'}, "mpbroker[Assign[events-0, events-1, events-2]]"),
    ],
)
@pytest.mark.usefixtures("writers")
def test_progress_is_that_of_kafkas_source(
    stream: Any, tmp_path: Path, options: dict[str, str], description: str
) -> None:
    query = run(stream(maxOffsetsPerTrigger=900, **options), tmp_path / "checkpoint")
    sources = [one.sources[0] for one in query.recentProgress if one.numInputRows]
    assert {one.description for one in sources} == {description}
    behind = [
        {"minOffsetsBehindLatest": one, "maxOffsetsBehindLatest": one, "avgOffsetsBehindLatest": f"{one}.0"}
        for one in ("100", "0")
    ]
    assert [one.metrics for one in sources] == behind


@pytest.mark.usefixtures("writers")
def test_tasks_count_what_they_read(stream: Any, spark: SparkSession, log_dir: Path, tmp_path: Path) -> None:
    size = sum(path.stat().st_size for path in log_dir.glob("events-*/*.log"))
    query: Any = run(stream(), tmp_path / "checkpoint")
    batch: Any = spark.read.format("mpbroker").option("accelerated", "true")
    batch = batch.options(**{"log.dir": str(log_dir)}, subscribe="events").load()
    batch.collect()
    for plan in (
        query._jsq.streamingQuery().lastExecution().executedPlan(),
        batch._jdf.queryExecution().executedPlan(),
    ):
        metrics = plan.collectLeaves().head().metrics()
        names = ("bytesRead", "recordsFromFiles", "recordsFetched")
        assert [metrics.apply(name).value() for name in names] == [size, RECORDS * PARTITIONS, 0]


def test_retention_between_two_runs(
    stream: Any, writers: list[PartitionWriter], fake_broker: FakeBroker, tmp_path: Path
) -> None:
    """Records deleted before they were read are an error, or are left out with a warning."""
    checkpoint = tmp_path / "checkpoint"
    assert len(rows_of(stream(), checkpoint)) == RECORDS * PARTITIONS
    for writer in writers:
        writer.roll()
        fill(writer, 10)
        writer.roll()
        fill(writer, 10)
    writers[0].log_start = RECORDS + 100
    for base in (0, RECORDS):
        (writers[0].directory / f"{base:020}.log").unlink()
    for writer in writers:
        fake_broker.publish(writer)
    with pytest.raises(PySparkException, match="Cannot read offsets 400 to 499 of events-0"):
        rows_of(stream(), checkpoint)
    expected = [(0, offset) for offset in range(RECORDS + 100, RECORDS + 200)]
    expected += [(one, offset) for one in (1, 2) for offset in range(RECORDS, RECORDS + 200)]
    assert rows_of(stream(failOnDataLoss="false"), checkpoint) == expected


def test_compaction_and_another_partition_between_two_runs(
    stream: Any, writers: list[PartitionWriter], fake_broker: FakeBroker, log_dir: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    assert len(rows_of(stream(), checkpoint)) == RECORDS * PARTITIONS
    shutil.rmtree(writers[0].directory)
    compacted = PartitionWriter(log_dir, "events", 0, topic_id=writers[0].topic_id)
    for base in range(0, RECORDS + 100, 50):
        compacted.append(numbered(10, first=base))
        compacted.skip(40)
    # The cleaner leaves the active segment alone.
    compacted.roll()
    fill(compacted, 1)
    added = PartitionWriter(log_dir, "events", PARTITIONS, topic_id=writers[0].topic_id)
    fill(added, 1)
    for writer in (compacted, added):
        fake_broker.publish(writer)
    expected = [(0, base + one) for base in range(RECORDS, RECORDS + 150, 50) for one in range(10)]
    assert rows_of(stream(), checkpoint) == [*expected, *((PARTITIONS, one) for one in range(10))]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mpbroker]:
    with served(Mpbroker(tmp_path / "broker")) as running:
        make_topic(running, "events")
        yield running


def test_a_group_has_the_last_finished_batch_of_a_stopped_query(
    spark: SparkSession, broker: Mpbroker, tmp_path: Path
) -> None:
    """Check that it has not the batch that failed, though Spark had planned that."""
    produce(broker, "events", range(10 * PARTITIONS))
    is_failing = False

    def take(batch: DataFrame, _number: int) -> None:
        batch.collect()
        assert not is_failing, "the test fails this batch"

    def start() -> StreamingQuery:
        reader = spark.readStream.format("mpbroker").options(accelerated="true", commitGroupId="watched")
        reader = reader.options(
            **{"kafka.bootstrap.servers": broker.bootstrap, "log.dir": str(broker.log_dir)}
        )
        frame = reader.options(subscribe="events", startingOffsets="earliest").load()
        writer = frame.writeStream.foreachBatch(take).option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        # The query sleeps after its first batch.
        return writer.trigger(processingTime="1 hour").start()

    query = start()
    until(lambda: (tmp_path / "checkpoint/commits/0").exists(), "the batch is finished")
    query.stop()
    assert offset_of(broker, "watched", "events") == 10
    produce(broker, "events", range(10 * PARTITIONS, 15 * PARTITIONS))
    is_failing = True
    with pytest.raises(PySparkException, match="the test fails this batch"):
        start().awaitTermination(PATIENCE_S)
    assert offset_of(broker, "watched", "events") == 10


def test_rows_of_update_mode_are_appended(spark: SparkSession, broker: Mpbroker, tmp_path: Path) -> None:
    make_topic(broker, "counts", 1)
    for number in range(2):
        produce(broker, "events", range(number, number + 10))
        servers = {"kafka.bootstrap.servers": broker.bootstrap}
        reader = spark.readStream.format("mpbroker").options(**servers, subscribe="events")
        rows = reader.option("startingOffsets", "earliest").load()
        counts = rows.groupBy("topic").count().selectExpr("cast(count as string) value")
        writer = counts.writeStream.format("mpbroker").options(**servers, topic="counts").outputMode("update")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(PATIENCE_S)
    assert [message.value() for message in records(broker, "counts")] == [b"10", b"20"]


@pytest.mark.timeout(900)
def test_a_killed_driver_leaves_each_row_once(
    spark: SparkSession,
    writers: list[PartitionWriter],
    fake_broker: FakeBroker,
    log_dir: Path,
    tmp_path: Path,
) -> None:
    """Kill it when a batch is planned, has written files, and is committed by the sink or by the query."""
    checkpoint, files = tmp_path / "checkpoint", tmp_path / "files"
    for writer in writers:
        fill(writer, KILLS * PER_BATCH // PARTITIONS // 10)
        fake_broker.publish(writer)
    steps = (
        (checkpoint, "offsets/*"),
        (files, "*.parquet"),
        (files, "_spark_metadata/*"),
        (checkpoint, "commits/*"),
    )

    places = [str(log_dir), str(checkpoint), str(files)]
    command = [sys.executable, "-m", "tests.spark.parquet_query", *places]
    for kill in range(KILLS):
        directory, pattern = steps[kill % len(steps)]
        before = set(directory.glob(pattern))
        driver = subprocess.Popen(command, cwd=ROOT)
        try:
            until(lambda: set(directory.glob(pattern)) - before, f"{pattern} has another file")  # noqa: B023
        finally:
            driver.kill()
            driver.wait()
    assert copied(spark, *places) == "mpbroker[Subscribe[events]]"
    rows = spark.read.parquet(str(files)).select("partition", "offset", "value").collect()
    assert Counter((row.partition, row.offset) for row in rows) == Counter(
        (writer.partition, offset) for writer in writers for offset in range(writer.next_offset)
    )
    assert all(row.value.startswith(b"v%d." % row.offset) for row in rows)
