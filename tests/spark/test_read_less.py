"""What the JVM reader does not read: less than the topic where filters, aggregates and limits allow it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.support.spark_logs import FakeBroker, PartitionWriter, fill

Read = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession, log_dir: Path) -> Read:
    """A query of topic t, which the JVM reads."""

    def frame(**options: object) -> DataFrame:
        given = {"log.dir": str(log_dir), "subscribe": "t", "accelerated": "true"}
        return spark.read.format("mpbroker").options(**given, **options).load()

    return frame


def physical_plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def planned(frame: DataFrame) -> Callable[[], list[Any]]:
    """What reads a query whose tasks are planned already."""
    rdd = frame.rdd
    assert rdd.getNumPartitions() > 0
    return rdd.collect


def test_explain_shows_which_filters_made_the_plan_smaller(
    read: Read, log_dir: Path, fake_broker: FakeBroker, capsys: pytest.CaptureFixture[str]
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
