"""Real queries: Spark finds the source, accepts its batches, and shows the user what is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrameReader, SparkSession

from mpbroker.records.compression import Codec
from mpbroker.records.record import NewRecord
from tests.support.spark_logs import FakeBroker, PartitionWriter, fill

FULL_SCHEMA = [
    ("key", "binary"),
    ("value", "binary"),
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("timestamp", "timestamp"),
    ("timestampType", "int"),
]


@pytest.fixture
def reader(spark: SparkSession, log_dir: Path) -> DataFrameReader:
    return spark.read.format("mpbroker").option("log.dir", str(log_dir)).option("subscribe", "t")


@pytest.fixture
def writer(log_dir: Path, fake_broker: FakeBroker) -> PartitionWriter:
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 60, 20, roll_every=25, codecs=list(Codec))
    fake_broker.publish(writer)
    return writer


@pytest.mark.usefixtures("writer")
def test_found_without_registration_and_read_whole(reader: DataFrameReader) -> None:
    frame = reader.option("minPartitions", "2").load()
    assert frame.dtypes == FULL_SCHEMA
    assert frame.rdd.getNumPartitions() == 2
    rows = frame.selectExpr(
        "string(key)", "topic", "partition", "offset", "unix_millis(timestamp)", "timestampType"
    )
    expected = [(f"k{n}", "t", 0, n, 1_700_000_000_000 + n, 0) for n in range(1200)]
    assert sorted(rows.collect(), key=lambda row: row.offset) == expected


def test_headers_nulls_and_not_null(reader: DataFrameReader, log_dir: Path, fake_broker: FakeBroker) -> None:
    writer = PartitionWriter(log_dir, "t")
    headers = (("a", b"1"), ("b", None))
    writer.append(
        [NewRecord(key=b"k", value=b"v", timestamp=1, headers=headers), NewRecord(value=None, timestamp=2)]
    )
    fake_broker.publish(writer)
    first, second = sorted(
        reader.option("includeHeaders", "true").load().collect(), key=lambda row: row.offset
    )
    assert [(h.key, h.value) for h in first.headers] == list(headers)
    assert (second.key, second.value, second.headers) == (None, None, None)
    chosen = "headers array<struct<key:string,value:binary>>, offset long not null"
    assert [row.offset for row in reader.schema(chosen).load().collect()] == [0, 1]
    with pytest.raises(PySparkException, match="NOT NULL in the given schema"):
        reader.schema("value binary not null").load().collect()


@pytest.mark.usefixtures("writer")
def test_as_a_view_in_sql(spark: SparkSession, log_dir: Path) -> None:
    options = f"`log.dir` '{log_dir}', subscribe 't', columns 'key,offset'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW events USING mpbroker OPTIONS ({options})")
    assert spark.sql("SELECT count(*), max(offset) FROM events WHERE offset >= 200").collect() == [
        (1000, 1199)
    ]


def test_an_empty_topic_has_no_rows(reader: DataFrameReader, log_dir: Path, fake_broker: FakeBroker) -> None:
    fake_broker.publish(PartitionWriter(log_dir, "t"))
    assert reader.load().collect() == []


def test_a_segment_larger_than_the_memory_of_a_worker(
    reader: DataFrameReader, writer: PartitionWriter
) -> None:
    """The session limits the address space of workers; a preallocated segment is larger than that."""
    for path in writer.directory.glob("*0001000.log"):
        os.truncate(path, 4 << 30)
    assert reader.load().count() == 1200


@pytest.mark.usefixtures("writer")
def test_records_that_arrive_between_two_queries(
    reader: DataFrameReader, writer: PartitionWriter, fake_broker: FakeBroker
) -> None:
    frame = reader.option("columns", "offset").load()
    before = frame.count()
    fill(writer, 5, 20)
    fake_broker.publish(writer)
    assert (before, reader.load().count()) == (1200, 1300)


@pytest.mark.usefixtures("writer")
@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("startingOffsets", "latest", "starting offset can't be latest for batch queries"),
        ("endingOffsets", '{"t":{"0":5000}}', "last stable offset is 1200"),
        ("subscribe", "missing", "topic missing is not in the log directory"),
    ],
)
def test_complaints_reach_the_user(reader: DataFrameReader, option: str, value: str, complaint: str) -> None:
    with pytest.raises(PySparkException, match=complaint):
        reader.option(option, value).load().count()
