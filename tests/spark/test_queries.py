"""Real queries: Spark finds the source, accepts its batches, and shows the user what is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrameReader, SparkSession

from mpbroker.records.compression import Codec
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
    assert frame.count() == 1200


def test_a_segment_larger_than_the_memory_of_a_worker(
    reader: DataFrameReader, writer: PartitionWriter
) -> None:
    """The session limits the address space of workers; a preallocated segment is larger than that."""
    for path in writer.directory.glob("*0001000.log"):
        os.truncate(path, 4 << 30)
    assert reader.load().count() == 1200


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
