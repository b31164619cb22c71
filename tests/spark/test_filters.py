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
        ("timestamp > timestamp'2024-01-01 00:59:00Z'", 0),
        ("topic = 'left' or offset = 3", 4),
        ("not (topic = 'left' or partition = 1)", 1),
        ("topic = 'left' and (partition = 1 or offset % 2 = 0)", 2),
        ("partition = '1' and offset < 9.5", 2),
        ("offset + 1 = 4 and string(partition) like '1%'", 4),
        ("offset > 5 and offset < 3", 0),
        ("offset <=> null", 0),
        ("offset is null", 0),
        ("partition not in (0, cast(null as int))", 0),
    ],
)
def test_the_same_rows_from_fewer_tasks(
    pushing: SparkSession, events: Path, condition: str, tasks: int
) -> None:
    """Check it also without tasks: there Spark runs one in Python, or none if no row is possible."""
    by_python = frame(pushing, events, filterPushdown="true").filter(condition)
    by_jvm = frame(pushing, events, accelerated="true").filter(condition)
    plain = frame(pushing, events).filter(condition)
    assert sorted(by_python.collect()) == sorted(by_jvm.collect()) == sorted(plain.collect())
    assert by_python.rdd.getNumPartitions() in (tasks, tasks or 1)
    assert by_jvm.rdd.getNumPartitions() == tasks


@pytest.mark.parametrize(
    "condition",
    [
        "timestamp < timestamp'+290000-01-01 00:00:00Z' and partition = 1",
        "timestamp in (timestamp_micros(-9000000000000000000), timestamp'2024-01-01 00:45:00Z')",
    ],
)
def test_times_that_python_cannot_say(spark: SparkSession, events: Path, condition: str) -> None:
    """PySpark itself fails where such a time is pushed into a Python source."""
    plain, pushed = (frame(spark, events, accelerated=one).filter(condition) for one in ("false", "true"))
    rows = sorted(pushed.collect())
    assert rows
    assert rows == sorted(plain.collect())


@pytest.mark.parametrize("instants", ["false", "true"])
def test_both_types_that_java_has_for_times(spark: SparkSession, events: Path, instants: str) -> None:
    spark.conf.set("spark.sql.datetime.java8API.enabled", instants)
    found = frame(spark, events, accelerated="true").filter("timestamp > timestamp'2024-01-01 00:59:00Z'")
    assert found.rdd.getNumPartitions() == 0
    spark.conf.unset("spark.sql.datetime.java8API.enabled")


def test_spark_says_what_to_set(spark: SparkSession, events: Path) -> None:
    with pytest.raises(PySparkException, match=rf"configuration '{SETTING}' is false\. Set it to true"):
        frame(spark, events, filterPushdown="true").count()
    # The option and the setting are for Python.
    assert frame(spark, events, filterPushdown="true", accelerated="true").where("offset = 7").count() == 4


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
