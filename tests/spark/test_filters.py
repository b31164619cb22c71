"""Filters that Spark hands over: fewer tasks, the same rows; and what Spark says when it may not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as spark_filters

from mpbroker.records.record import NewRecord
from spark_integration.source import FilteringReader, MpbrokerDataSource, MpbrokerReader
from tests.support.spark_logs import PartitionWriter, checkpoint, new_log_dir

AT = datetime(2024, 1, 1, tzinfo=UTC)
SETTING = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topics with two partitions; times go to and fro."""
    log_dir = new_log_dir(tmp_path_factory.mktemp("events") / "log")
    for topic in ("left", "right"):
        for number in range(2):
            writer = PartitionWriter(log_dir, topic, number)
            for first in range(0, 200, 20):
                minutes = [(first + n) * 7 % 60 for n in range(20)]
                times = [round((AT + timedelta(minutes=minute)).timestamp() * 1000) for minute in minutes]
                writer.append([NewRecord(key=b"k", value=b"." * 500, timestamp=time) for time in times])
            checkpoint(log_dir, {(topic, n): 200 for topic in ("left", "right") for n in range(2)})
    return log_dir


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(SETTING, "true")
    yield spark
    spark.conf.unset(SETTING)


def frame(spark: SparkSession, log_dir: Path, **options: str) -> DataFrame:
    given = {
        "log.dir": str(log_dir),
        "subscribe": "left,right",
        "columns": "topic,partition,offset,timestamp",
    }
    return spark.read.format("mpbroker").options(**given, **options).load()


@pytest.mark.parametrize(
    ("condition", "tasks"),
    [
        ("topic = 'left' and partition = 1", 1),
        ("topic like 'le%' and offset between 10 and 30", 2),
        ("partition in (1, 7) and offset in (3, 50)", 2),
        ("partition <> 0 and topic is not null", 2),
        ("timestamp >= timestamp'2024-01-01 00:45:00Z' and timestamp < timestamp'2024-01-01 00:50:00Z'", 4),
        ("timestamp > timestamp'2024-01-01 00:59:00Z'", 1),
        ("topic = 'left' or offset = 3", 4),
        ("offset > 5 and offset < 3", 1),
        ("offset <=> null", 1),
        ("partition not in (0, cast(null as int))", 1),
    ],
)
def test_the_same_rows_from_fewer_tasks(
    pushing: SparkSession, events: Path, condition: str, tasks: int
) -> None:
    pushed = frame(pushing, events, filterPushdown="true").filter(condition)
    plain = frame(pushing, events).filter(condition)
    assert sorted(pushed.collect()) == sorted(plain.collect())
    # Of a plan without tasks Spark makes one, or none if it knows that no row can be.
    assert pushed.rdd.getNumPartitions() in (tasks, 0 if tasks == 1 else tasks)


def test_spark_says_what_to_set(spark: SparkSession, events: Path) -> None:
    with pytest.raises(PySparkException, match=rf"configuration '{SETTING}' is false\. Set it to true"):
        frame(spark, events, filterPushdown="true").count()


def test_the_reader_is_plain_unless_asked(events: Path) -> None:
    for text, wanted in (("false", MpbrokerReader), ("TRUE", FilteringReader)):
        source = MpbrokerDataSource({"log.dir": str(events), "subscribe": "left", "filterpushdown": text})
        assert type(source.reader(source.schema())) is wanted


def test_what_spark_still_evaluates(events: Path) -> None:
    source = MpbrokerDataSource({"log.dir": str(events), "subscribe": "left,right", "filterpushdown": "true"})
    reader = source.reader(source.schema())
    exact = [
        spark_filters.EqualTo(("topic",), "left"),
        spark_filters.Not(spark_filters.In(("partition",), (0,))),
        spark_filters.LessThan(("offset",), 40),
        spark_filters.IsNotNull(("offset",)),
    ]
    others = [
        spark_filters.GreaterThan(("timestamp",), AT),
        spark_filters.EqualTo(("key",), b"k"),
        spark_filters.EqualTo(("headers", "key"), "k"),
        spark_filters.In(("offset",), (3, 30)),
    ]
    assert list(reader.pushFilters([*exact, *others])) == others
    (task,) = reader.partitions()
    # The first record of partition 1 that is behind AT has offset 1; the least wanted offset is 3.
    assert str(task) == "left-1 offsets [3, 31)"
