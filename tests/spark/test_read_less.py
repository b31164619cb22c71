"""What the JVM reader does not read: less than the topic where filters, aggregates and limits allow it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import desc, expr

from tests.support.reading_queries import UNCOMMITTED, TransactionalWriter
from tests.support.spark_logs import FakeBroker, PartitionWriter, checkpoint, fill, new_log_dir

Read = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession, log_dir: Path) -> Read:
    """A query of topic t, which the JVM reads."""

    def frame(**options: object) -> DataFrame:
        names = {} if "assign" in options else {"subscribe": "t"}
        given = {"log.dir": str(log_dir), "accelerated": "true", **names}
        return spark.read.format("mpbroker").options(**given, **options).load()

    return frame


def physical_plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def planned(frame: DataFrame) -> Callable[[], list[Any]]:
    """Plan the tasks of a query; return a function that reads them."""
    rdd = frame.rdd
    assert rdd.getNumPartitions() > 0
    return rdd.collect


def test_explain_shows_which_filters_made_the_plan_smaller(
    spark: SparkSession,
    read: Read,
    log_dir: Path,
    fake_broker: FakeBroker,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for number in range(2):
        writer = PartitionWriter(log_dir, "t", number)
        fill(writer, 5, 10)
        fake_broker.publish(writer)
    query = "partition = 1 and offset > 30 and length(value) > 3"
    read().where(query).explain("formatted")
    printed = capsys.readouterr().out
    known = "IsNotNull(partition), IsNotNull(offset), EqualTo(partition,1), GreaterThan(offset,30)"
    assert f"PushedFilters: [{known}]" in printed
    assert "by its JVM reader" in printed
    # Spark evaluates them, too.
    assert "Condition : " in printed
    assert "PushedFilters" not in physical_plan(read().where("length(value) > 3"))
    # Only Python reads such values. It says which filters Spark need not evaluate again.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    by_python = read(valueFormat="msgpack", valueSchema="id int", filterPushdown="true")
    assert "(Python), PushedFilters: [IsNotNull(offset), GreaterThan(offset,30)]" in physical_plan(
        by_python.where("offset > 30")
    )
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_loss_of_records_that_the_filters_exclude(read: Read, log_dir: Path, fake_broker: FakeBroker) -> None:
    """A plan looks at partitions that the filters leave, and a task at offsets that they leave."""
    for number in range(2):
        writer = PartitionWriter(log_dir, "t", number)
        fill(writer, 20, 10, roll_every=5)
        fake_broker.publish(writer, log_start=10 if number else 0)
    asked = json.dumps({"t": {"0": 5, "1": 5}})
    assert read(startingOffsets=asked).where("partition = 0").count() == 195
    for query in ("partition = 1", "partition = 1 and offset > 100", "offset > 100"):
        with pytest.raises(PySparkException, match="offsets 5 to 9 of t-1: its log starts at 10"):
            read(startingOffsets=asked).where(query).count()
    frame = read(startingOffsets=json.dumps({"t": {"0": 5, "1": 10}}))
    late, early = (planned(frame.where(f"partition = 1 and offset > {one}")) for one in (120, 20))
    (writer.directory / f"{0:020d}.log").unlink()
    assert [row.offset for row in late()] == list(range(121, 200))
    with pytest.raises(PySparkException, match=r"offsets 21 to 49 of t-1 .*the log starts at 50 now"):
        early()


def test_ranges_are_cut_after_the_filters(read: Read, log_dir: Path, fake_broker: FakeBroker) -> None:
    """Options about the number of tasks are about what is left to read."""
    for number in range(4):
        writer = PartitionWriter(log_dir, "t", number)
        fill(writer, 20, 10, value_bytes=2000)
        fake_broker.publish(writer)
    for options, tasks in (
        ({}, 1),
        ({"minPartitions": 4}, 4),
        ({"maxRecordsPerPartition": 30}, 4),
        ({"endingOffsets": '{"t":{"0":200,"1":200,"2":110,"3":200}}', "maxRecordsPerPartition": 30}, 1),
    ):
        frame = read(**options).where("partition = 2 and offset >= 100")
        assert frame.rdd.getNumPartitions() == tasks, options
        assert frame.count() == (10 if "endingOffsets" in options else 100), options


@pytest.fixture
def at_once(spark: SparkSession) -> Iterator[None]:
    """A plan does not change while the query runs, so that it has the metrics of its scan."""
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    yield
    spark.conf.unset("spark.sql.adaptive.enabled")


def rows_and_bytes(frame: DataFrame) -> tuple[list[tuple[Any, ...]], int]:
    """Return the rows of the query, and how many bytes its scan has read."""
    rows = [tuple(row) for row in frame.collect()]
    scan = frame._jdf.queryExecution().executedPlan().collectLeaves().head()
    return rows, scan.metrics().apply("bytesRead").value()


HOW_MUCH_IS_READ = {
    "select min(offset) from t": ([(0,)], 2),
    "select max(offset) from t": ([(999,)], 2),
    "select min(offset), max(offset) from t": ([(0, 999)], 4),
    "select partition, max(offset) from t group by partition": ([(0, 999), (1, 999)], 2),
    "select max(partition), min(topic) from t": ([(1, "t")], 2),
    "select distinct topic, partition from t": ([("t", 0), ("t", 1)], 2),
    "select count(*), count(offset), min(offset), max(offset) from t": ([(2000, 2000, 0, 999)], 0),
    "select topic, count(timestamp) from t group by topic": ([("t", 2000)], 0),
    "select count(key), max(offset) from t": ([(2000, 999)], 200),
    "select partition % 2, count(*) from t group by partition % 2": ([(0, 1000), (1, 1000)], 200),
    "select count(distinct partition) from t": ([(2,)], 200),
    "select max(offset) from t where partition = 1 and offset < 505": ([(504,)], 51),
    "select offset from t where partition = 1 and offset between 301 and 302": ([(301,), (302,)], 1),
    "select offset from t where timestamp > timestamp_millis(1700000000998)": ([(999,), (999,)], 2),
    "select partition, offset from t order by offset desc, partition limit 3": (
        [(0, 998), (0, 999), (1, 999)],
        2,
    ),
    "select partition, offset from t order by partition, offset limit 3": ([(0, 0), (0, 1), (0, 2)], 2),
    "select offset from t where partition = 0 order by offset desc limit 2": ([(998,), (999,)], 100),
    "select offset from t order by key desc, partition limit 2": ([(999,), (999,)], 200),
    "select partition, offset from t limit 3": ([(0, 0), (0, 1), (0, 2)], 1),
    "select partition, offset from t limit 3 offset 10": ([(0, 10), (0, 11), (0, 12)], 2),
    "select count(*) from (select * from t where offset % 1000 = 999 limit 7)": ([(2,)], 200),
}
"""Rows of each query, and how many batches of records it decodes; see the fixture `hundreds`."""


@pytest.fixture(scope="module")
def hundreds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A log of two partitions with a hundred batches, and a batch's size: twice that of all headers."""
    log_dir = new_log_dir(tmp_path_factory.mktemp("hundreds") / "log")
    for number in range(2):
        writer = PartitionWriter(log_dir, "t", number)
        fill(writer, 100, 10, value_bytes=3000, roll_every=40)
    checkpoint(log_dir, {("t", number): 1000 for number in range(2)})
    return log_dir, writer.position // 20


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("query", HOW_MUCH_IS_READ)
def test_how_much_is_read(spark: SparkSession, hundreds: tuple[Path, int], query: str) -> None:
    log_dir, batch_bytes = hundreds
    reader = spark.read.format("mpbroker").option("log.dir", str(log_dir)).option("subscribe", "t")
    reader.option("accelerated", "true").load().createOrReplaceTempView("t")
    rows, size = rows_and_bytes(spark.sql(query))
    assert (sorted(rows), round(size / batch_bytes)) == HOW_MUCH_IS_READ[query]


def test_the_last_record_before_aborted_ones(read: Read, log_dir: Path, fake_broker: FakeBroker) -> None:
    writer = TransactionalWriter(log_dir, "t")
    writer.begin()
    writer.plain(7)
    for _ in range(40):
        writer.write(1, 5)
        writer.abort(1)
    fake_broker.publish(writer, stable=writer.stable, aborted_end=writer.aborted_end)
    last, end = read().selectExpr("max(offset)"), read().orderBy("partition", desc("offset")).limit(2)
    assert "struct<max(offset)" in physical_plan(last)
    assert "last 2" in physical_plan(end)
    assert last.collect() == [(6,)]
    assert [row.offset for row in end.collect()] == [6, 5]
    assert read(**UNCOMMITTED).selectExpr("max(offset)").collect() == [(writer.next_offset - 2,)]
    writer.write(1, 5)
    writer.abort(1, indexed=False)
    fake_broker.publish(writer, stable=writer.stable)
    with pytest.raises(PySparkException, match="producer 1 that no"):
        read().selectExpr("max(offset)").collect()


def test_partitions_without_records_for_readers(read: Read, log_dir: Path, fake_broker: FakeBroker) -> None:
    """Such a partition has no group; without groups SQL wants a row."""
    for number in range(3):
        writer = TransactionalWriter(log_dir, "t", number)
        writer.begin()
        if number:
            writer.write(1, 5)
            writer.abort(1)
        if number == 2:
            writer.plain(4)
        fake_broker.publish(writer, stable=writer.stable, aborted_end=writer.aborted_end)
    columns = "count(1)", "min(offset)", "max(partition)"
    for chosen in (columns, columns[1:]):
        found, alone = read().groupBy("partition"), read(assign='{"t":[0,1]}')
        assert found.agg(*map(expr, chosen)).collect() == [(2, *(4, 6, 2)[3 - len(chosen) :])]
        assert alone.selectExpr(*chosen).collect() == [(0, None, None)[3 - len(chosen) :]]
        assert alone.groupBy("topic").agg(*map(expr, chosen)).collect() == []
    assert read().select("partition").distinct().collect() == [(2,)]
