"""What the JVM reads in a bucket: all rows, however objects have them, and what it says if one is gone.

`test_readers` compares it with the other readers on random histories.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec
from mpbroker.records.record import NewRecord
from tests.support.bucket_world import BucketWorld
from tests.support.spark_logs import PartitionWriter, fill, row_of
from tests.support.spark_streams import rows_of

JVM = "by its JVM reader"
LARGE = 1 << 20
# More than a window.
LARGE_RECORDS = 18

Read = Callable[..., DataFrame]


@pytest.fixture
def world(log_dir: Path, tmp_path: Path) -> BucketWorld:
    return BucketWorld(log_dir, tmp_path)


@pytest.fixture
def read(spark: SparkSession, world: BucketWorld) -> Read:
    """A query of topic t in the bucket, which the JVM reads."""

    def frame(**options: object) -> DataFrame:
        given = {"mpbroker.bucket": world.url, "subscribe": "t", "accelerated": "true"}
        found = spark.read.format("mpbroker").options(**given).options(**options).load()  # type: ignore[arg-type]
        assert f"{JVM}, from a bucket" in physical_plan(found)
        return found

    return frame


def physical_plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def planned(frame: DataFrame) -> Callable[[], list[Any]]:
    """Plan the tasks of a query; return a function that reads their offsets."""
    rdd = frame.select("offset").rdd
    assert rdd.getNumPartitions() > 0
    return lambda: sorted(row.offset for row in rdd.collect())


def objects(world: BucketWorld, pattern: str) -> list[Path]:
    found = sorted(world.directory.glob(pattern))
    assert found
    return found


def put(
    writer: PartitionWriter, records: list[NewRecord], codec: Codec = Codec.NONE
) -> list[tuple[object, ...]]:
    """Append a batch; return what a query of `SUMS` has of it."""
    first = writer.next_offset
    writer.append(records, codec=codec)
    return [
        (first + number, one.key and one.key.decode(), None if one.value is None else zlib.crc32(one.value))
        for number, one in enumerate(records)
    ]


SUMS = ("offset", "string(key)", "crc32(value)")


def test_all_rows_of_windows_and_pieces(read: Read, log_dir: Path, world: BucketWorld) -> None:
    """Batches lie across windows of an object, across objects, and beside gaps that compaction left."""
    dice = random.Random(1)
    writer, rows = PartitionWriter(log_dir, "t"), []
    for number in range(LARGE_RECORDS):
        records = [
            NewRecord(key=b"large", value=dice.randbytes(LARGE)),
            NewRecord(key=b"%d" % number, value=b"small"),
        ]
        rows += put(writer, records, [*Codec][number % len(Codec)])
        writer.skip(number % 3)
    writer.roll()
    for number in range(300):
        rows += put(writer, [NewRecord(key=None, value=b"%d" % number * 50), NewRecord(key=b"k", value=None)])
    writer.roll()
    world.upload("t", row_of(writer))
    rows += put(writer, [NewRecord(key=b"tail", value=b"")])
    whole = build_batch([NewRecord(key=b"torn", value=b"x" * 500)], base_offset=writer.next_offset)
    world.publish("t", row_of(writer))
    writer.torn_tail(whole[:100])
    world.cut()
    assert read().selectExpr("max(offset)").collect() == [(rows[-1][0],)]
    rows.append((writer.next_offset, "torn", zlib.crc32(b"x" * 500)))
    writer.torn_tail(whole[100:])
    writer.next_offset, writer.position = writer.next_offset + 1, writer.position + len(whole)
    rows += put(writer, [NewRecord(key=b"last", value=b"1")])
    world.publish("t", row_of(writer))
    world.cut()
    frame = read(minPartitions=7).selectExpr(*SUMS)
    assert sorted(frame.collect()) == rows
    metrics: Any = frame._jdf.queryExecution().executedPlan().collectLeaves().head().metrics()
    names = "recordsFromFiles", "recordsFromBucket", "recordsFetched"
    assert [metrics.apply(name).value() for name in names] == [0, len(rows), 0]
    assert read().selectExpr("count(1)", "min(offset)", "max(offset)").collect() == [
        (len(rows), 0, writer.next_offset - 1)
    ]
    low, high = rows[40][0], rows[500][0]
    some = read().where(f"offset >= {low} and offset < {high}").selectExpr(*SUMS)
    assert sorted(some.collect()) == rows[40:500]


def test_an_index_that_is_wrong_is_not_believed(read: Read, log_dir: Path, world: BucketWorld) -> None:
    """Its entries name no batch, or a later one."""
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 100, value_bytes=200)
    entries = [*struct.iter_unpack(">ii", (writer.directory / f"{0:020}.index").read_bytes())]
    writer.roll()
    world.upload("t", row_of(writer))
    world.cut()
    (stored,) = objects(world, "t-*/0/*.indexes")
    rest = stored.read_bytes()[8 * len(entries) :]
    collect = planned(read(startingOffsets='{"t":{"0":700}}', endingOffsets='{"t":{"0":720}}'))
    assert collect() == [*range(700, 720)]
    for wrong in (77, entries[-1][1]):
        stored.write_bytes(b"".join(struct.pack(">ii", offset, wrong) for offset, _ in entries) + rest)
        assert collect() == [*range(700, 720)]


def test_objects_that_are_gone_or_damaged(read: Read, log_dir: Path, world: BucketWorld) -> None:
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 9, roll_every=3)
    world.upload("t", row_of(writer))
    world.cut()
    strict, lenient = planned(read()), planned(read(failOnDataLoss="false"))
    first, _ = objects(world, "t-*/0/*.log")
    kept = first.read_bytes()
    first.unlink()
    lost = r"Cannot read offsets 0 to 29 of t-0 offsets \[0, 90\): .*0{20}-.*\.log: it is not in the bucket"
    with pytest.raises(PySparkException, match=f"{lost}.*aged out"):
        strict()
    assert lenient() == [*range(30, 90)]
    first.write_bytes(kept[:-10])
    with pytest.raises(PySparkException, match=r"0{20}-.*\.log: the object is shorter"):
        lenient()
    flipped = bytearray(kept)
    flipped[-5] ^= 1
    first.write_bytes(flipped)
    with pytest.raises(PySparkException, match=r"\.log is damaged at position [1-9]\d*: .*CRC"):
        lenient()
    # A wrong length, which leads into the next batch.
    flipped = bytearray(kept)
    flipped[11] ^= 8
    first.write_bytes(flipped)
    with pytest.raises(PySparkException, match=r"\.log is damaged at position 0: "):
        lenient()
    first.write_bytes(kept)
    (bundle,) = objects(world, "mpbroker/bundles/*")
    bundle.unlink()
    with pytest.raises(PySparkException, match=r"offsets 60 to 89 .*no longer kept. Run the query again"):
        lenient()
    world.directory.rename(world.directory.with_name("unmounted"))
    with pytest.raises(PySparkException, match="there is no broker's store at"):
        lenient()


def test_a_stream(spark: SparkSession, log_dir: Path, world: BucketWorld, tmp_path: Path) -> None:
    writers = [PartitionWriter(log_dir, "t", number, topic_id=b"t" * 16) for number in range(2)]
    stream = spark.readStream.format("mpbroker").options(subscribe="t", startingOffsets="earliest")
    stream = stream.options(**{"mpbroker.bucket": world.url, "accelerated": "true"}).load()
    for run in range(2):
        for writer in writers:
            fill(writer, 4, roll_every=3)
            world.upload("t", row_of(writer))
        world.cut()
        found = rows_of(stream, tmp_path / "checkpoint")
        assert found == [(one, run * 40 + offset) for one in range(2) for offset in range(40)]


def test_python_reads_where_hadoop_has_no_file_system(spark: SparkSession) -> None:
    reader = spark.read.format("mpbroker").options(subscribe="t", accelerated="true")
    for url in ("s3://bucket/broker", "az://container/broker"):
        assert JVM not in physical_plan(reader.option("mpbroker.bucket", url).load())
