"""One suite for two readers: the Python source and the jar in Spark's JVM read by the same rules."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from itertools import groupby, product
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.functions import desc, expr

from mpbroker.ipc.table import Partition
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec
from mpbroker.records.markers import COMMIT
from mpbroker.records.record import NewRecord
from mpbroker.storage.checkpoints import write_topic_id
from mpbroker.testing import Broker
from ops.bench.connector import connector_jars
from ops.setup import jvm_reader
from ops.setup.maven import MissingToolError
from spark_integration.jvm import jar
from tests.support import generated_queries
from tests.support.bucket_world import BucketWorld
from tests.support.forms import pick, rounds
from tests.support.generated_queries import Queries, make_expected, make_tables
from tests.support.partition_model import PartitionModel, pairs_of
from tests.support.partition_walk import LOG_DIR, Content, history, walker
from tests.support.polling import PATIENCE_S
from tests.support.programs import ran
from tests.support.reading_queries import UNCOMMITTED, TransactionalWriter
from tests.support.spark_logs import FakeBroker, PartitionWriter, checkpoint, fill, new_log_dir, numbered

READERS = ("python", "jvm")
BY_JVM = "by its JVM reader"
# What Spark publishes for programs and data sources.
PUBLIC = re.compile(
    r"org/apache/spark/(SparkContext|QueryContext|package\$|sql/[A-Za-z]+"
    r"|sql/(sources|types|util|vectorized|connector/(read|write|catalog|expressions|metric))/.*)"
)


COMMITTED = {"kafka.isolation.level": "read_committed"}
QUERIES = pick("generated queries", short=4, long=400)
HISTORIES = pick("histories", short=rounds(20), long=500)

Read = Callable[..., DataFrame]


@pytest.fixture(scope="module")
def spark(beside_the_connector: SparkSession) -> SparkSession:
    return beside_the_connector


@pytest.fixture(params=READERS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def read(spark: SparkSession, log_dir: Path, kind: str) -> Read:
    """A query of one reader, which is the one that Spark says it is."""

    def frame(schema: str | None = None, **options: object) -> DataFrame:
        reader = spark.read.format("mpbroker").option("log.dir", str(log_dir))
        if not {"assign", "subscribePattern"} & set(options):
            reader = reader.option("subscribe", "t")
        for name, value in options.items():
            reader = reader.option(name.replace("_", "."), str(value))
        reader = with_reader(reader, kind)
        found = (reader.schema(schema) if schema else reader).load()
        if spark_plans(found):
            assert (BY_JVM in physical_plan(found)) == (kind == "jvm")
        return found

    return frame


def with_reader(reader: DataFrameReader, kind: str) -> DataFrameReader:
    return reader if kind == "jvm" else reader.option("accelerated", "false")


def spark_plans(frame: DataFrame) -> bool:
    """Whether the query can be planned at all; if not its error is that of the test."""
    try:
        physical_plan(frame)
    except PySparkException:
        return False
    return True


def physical_plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def offsets(frame: DataFrame) -> list[int]:
    return [row.offset for row in frame.select("offset").collect()]


def planned(frame: DataFrame) -> Callable[[], list[Any]]:
    """Plan the tasks of a query; return a function that reads them."""
    rdd = frame.rdd
    assert rdd.getNumPartitions() > 0
    return rdd.collect


def replace(path: Path, content: bytes) -> None:
    """As the cleaner does it: another file of that name."""
    fresh = path.with_suffix(".swap")
    fresh.write_bytes(content)
    fresh.replace(path)


class Last(Content):
    """What the broker of a history says of the partition at its end."""

    def compare_elsewhere(self, _log_dir: Path, published: Partition, _model: PartitionModel) -> None:
        self.published = published


def test_random_histories(spark: SparkSession, tmp_path: Path) -> None:
    """Both readers get what the model says, of logs that random histories have left here and in a bucket."""
    log_dir = new_log_dir(tmp_path / "all")
    bucket = BucketWorld(log_dir, tmp_path)
    ends: dict[tuple[str, int], int] = {}
    starts: dict[tuple[str, int], int] = {}
    committed, everything = [], []
    with walker(tmp_path) as made:
        for seed in range(HISTORIES):
            topic = f"h{seed}"
            policy, steps = history(seed)
            model = made.walk(policy, steps, last := Last())
            shutil.copytree(tmp_path / LOG_DIR / "t-0", log_dir / f"{topic}-0")
            topic_id = bytes([1]) * 8 + seed.to_bytes(8, "big")
            write_topic_id(log_dir / f"{topic}-0", topic_id)
            (bucket.upload if policy == "delete" else bucket.publish)(
                topic, last.published._replace(topic_id=topic_id)
            )
            ends[topic, 0], starts[topic, 0] = model.end, model.log_start
            committed += [(topic, *row) for row in pairs_of(model.committed())]
            everything += [(topic, *row) for row in pairs_of(model.records())]
    checkpoint(log_dir, ends, starts)
    bucket.cut()
    places = {"log.dir": str(log_dir)}, {"mpbroker.bucket": bucket.url}
    for place, (isolation, wanted) in product(places, ((COMMITTED, committed), (UNCOMMITTED, everything))):
        for kind in READERS:
            options = {**place, "subscribePattern": "h.*", **isolation}
            reader = with_reader(spark.read.format("mpbroker").options(**options), kind)
            frame = reader.load().select("topic", "offset", "key", "value")
            assert (BY_JVM in physical_plan(frame)) == (kind == "jvm")
            found = [
                (row.topic, row.offset, bytes(row.key), row.value and bytes(row.value))
                for row in frame.collect()
            ]
            assert sorted(found) == sorted(wanted), (kind, place)
            if kind == "jvm" and (isolation is COMMITTED or place is places[0]):
                check_edges(frame, [row[:2] for row in wanted])


def check_edges(frame: DataFrame, wanted: list[tuple[str, int]]) -> None:
    """What batch headers and few records tell is right for the wanted topics and offsets."""
    of_topic = {
        topic: [offset for _, offset in rows] for topic, rows in groupby(sorted(wanted), key=itemgetter(0))
    }
    edges = [(topic, found[0], found[-1], len(found)) for topic, found in of_topic.items()]
    aggregates = ("min(offset)", "max(offset)", "count(1)")
    for chosen in (aggregates, aggregates[:2], aggregates[:1]):
        found = frame.groupBy("topic").agg(*map(expr, chosen))
        assert "struct<topic:string,min(offset):bigint" in physical_plan(found)
        assert sorted(map(tuple, found.collect())) == [row[: 1 + len(chosen)] for row in edges]
    largest = frame.groupBy("topic").agg(expr("max(offset)")).collect()
    assert sorted(map(tuple, largest)) == [(topic, last) for topic, _, last, _ in edges]
    assert sorted(row.topic for row in frame.select("topic").distinct().collect()) == list(of_topic)
    end = frame.orderBy(desc("offset"), "topic").limit(60)
    assert "last 60" in physical_plan(end)
    assert [row[:2] for row in end.collect()] == sorted(wanted, key=lambda row: (-row[1], row[0]))[:60]


def test_every_column_codec_and_segment(read: Read, log_dir: Path, fake_broker: FakeBroker) -> None:
    for number in range(2):
        writer = PartitionWriter(log_dir, "t", number)
        fill(writer, 60, 20, roll_every=25, codecs=list(Codec))
        writer.append([NewRecord(key=b"x", value=b"y", timestamp=5)], append_time=1_700_000_000_999)
        fake_broker.publish(writer)
    frame = read(minPartitions=5)
    rows = frame.selectExpr(
        *("partition", "offset", "string(key)", "value", "topic", "unix_micros(timestamp)", "timestampType")
    ).collect()
    expected = [
        (p, n, f"k{n}", (b"v%d" % n).ljust(20, b"."), "t", (1_700_000_000_000 + n) * 1000, 0)
        for p in range(2)
        for n in range(1200)
    ] + [(p, 1200, "x", b"y", "t", 1_700_000_000_999_000, 1) for p in range(2)]
    assert sorted(rows, key=lambda row: row[:2]) == sorted(expected)
    assert frame.count() == len(expected)


def test_headers_nulls_and_empty_values(read: Read, log_dir: Path, fake_broker: FakeBroker) -> None:
    writer = PartitionWriter(log_dir, "t", first_offset=100)
    headers = (("a", b"1"), ("b", None), ("a", b""), ("µ" * 200, b"\xff" * 300))
    records = [
        NewRecord(key=b"k", value=b"v", timestamp=1, headers=headers),
        NewRecord(key=None, value=b"", timestamp=-1),
        NewRecord(key=b"", value=None, timestamp=2),
        NewRecord(key=b"z", value=b"z" * 70_000, timestamp=3, headers=(("c", b"2"),)),
    ]
    for codec in Codec:
        writer.append(records, codec=codec)
    fake_broker.publish(writer)
    rows = read(includeHeaders=True).orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(100, 120))
    for number, row in enumerate(rows):
        record = records[number % 4]
        assert (row.key, row.value) == (record.key, record.value)
        assert [tuple(one) for one in row.headers or ()] == list(record.headers)
        assert (row.headers is None) == (not record.headers)


NESTED = {
    "select headers.key from t": [(["a", "b"],), (None,)],
    "select headers.value from t": [([b"1", None],), (None,)],
    "select headers[0].key, offset from t": [("a", 0), (None, 1)],
    "select offset, h.key from t lateral view explode(headers) e as h": [(0, "a"), (0, "b")],
    "select h.value from t lateral view explode(headers) e as h": [(b"1",), (None,)],
    "select timestampType, headers.key, value, offset from t limit 1": [(0, ["a", "b"], b"v", 0)],
    "select headers.value v, headers.key k from t limit 1": [([b"1", None], ["a", "b"])],
    "select inline(headers) from t": [("a", b"1"), ("b", None)],
    "select size(headers), exists(headers, h -> h.value is null) from t": [(2, True), (None, None)],
    "select count(headers.key), max(size(headers.value)) from t": [(1, 2)],
    "select 1 from t": [(1,), (1,)],
}


def test_a_query_that_reads_parts_of_headers(
    spark: SparkSession, read: Read, log_dir: Path, fake_broker: FakeBroker
) -> None:
    """Spark prunes fields of the headers that a query does not name."""
    writer = PartitionWriter(log_dir, "t")
    writer.append(
        [
            NewRecord(key=b"k", value=b"v", timestamp=1, headers=(("a", b"1"), ("b", None))),
            NewRecord(key=b"k", value=b"v", timestamp=1),
        ]
    )
    fake_broker.publish(writer)
    read(includeHeaders=True).createOrReplaceTempView("t")
    for sql, rows in NESTED.items():
        assert [tuple(row) for row in spark.sql(sql).collect()] == rows, sql


def test_not_null_is_held(read: Read, log_dir: Path, fake_broker: FakeBroker) -> None:
    writer = PartitionWriter(log_dir, "t")
    writer.append([NewRecord(key=b"k", value=b"v", timestamp=1), NewRecord(value=None, timestamp=2)])
    fake_broker.publish(writer)
    chosen = "headers array<struct<key:string,value:binary>>, offset long not null"
    assert offsets(read(chosen)) == [0, 1]
    with pytest.raises(PySparkException, match="t-0 has records whose value is null, but it is NOT NULL"):
        read("value binary not null").collect()
    with pytest.raises(PySparkException, match="schema: column 'value' is binary, not string"):
        read("value string").collect()


def test_committed_records(read: Read, log_dir: Path, fake_broker: FakeBroker) -> None:
    """Over two segments; at the end a transaction is open."""
    writer = TransactionalWriter(log_dir, "t")
    writer.begin()
    writer.write(1, 3)
    writer.plain(2)
    writer.write(2, 2)
    writer.abort(1)
    writer.write(1, 2)
    writer.roll()
    writer.commit(2)
    writer.write(3, 2)
    writer.abort(1)
    writer.commit(3)
    writer.write(4, 2)
    writer.plain(1)
    fake_broker.publish(writer, stable=writer.stable, aborted_end=writer.aborted_end)
    expected = writer.committed_below(writer.stable.offset)
    assert 0 < len(expected) < len(offsets(read(**UNCOMMITTED)))
    assert offsets(read()) == expected
    assert read().count() == len(expected)
    assert sorted(offsets(read(maxRecordsPerPartition=1))) == expected


def test_an_abort_that_the_index_has_missed(read: Read, log_dir: Path, fake_broker: FakeBroker) -> None:
    """Records of it would be handed out; the marker behind them says that they must not be."""
    writer = TransactionalWriter(log_dir, "t")
    writer.begin()
    writer.write(1, 2)
    writer.commit(1)
    writer.write(1, 2)
    writer.abort(1)
    writer.index.unlink()
    writer.roll()
    writer.plain(1)
    fake_broker.publish(writer, stable=writer.stable)
    for query in (read().collect, read().groupBy().count().collect, read(check_crcs=False).count):
        with pytest.raises(PySparkException, match=r"damaged at position \d+: .* producer 1 that no"):
            query()
    # A query of what lies before it does not know, and need not.
    assert offsets(read(endingOffsets='{"t":{"0":3}}')) == [0, 1]
    assert read(**UNCOMMITTED).count() == len(offsets(read(**UNCOMMITTED))) == 5


def test_an_abort_behind_records_whose_marker_compaction_has_removed(
    read: Read, log_dir: Path, fake_broker: FakeBroker
) -> None:
    """A task meets this where its first file is older than the next one."""
    writer = TransactionalWriter(log_dir, "t")
    writer.begin()
    writer.write(1, 2)
    writer.producers.ended(1, 0, 0, 0)
    writer.skip(1)
    writer.write(1, 2)
    writer.abort(1)
    writer.plain(1)
    fake_broker.publish(writer, stable=writer.stable, aborted_end=writer.aborted_end)
    assert offsets(read()) == [0, 1, 6]
    assert read().count() == 3


def test_an_empty_plan(read: Read, log_dir: Path, fake_broker: FakeBroker) -> None:
    fake_broker.publish(PartitionWriter(log_dir, "t"))
    frame = read()
    assert frame.collect() == []
    assert frame.count() == 0


def test_a_compacted_batch_counts_what_it_has(read: Read, log_dir: Path, fake_broker: FakeBroker) -> None:
    """The cleaner keeps a batch's offsets and leaves records out."""
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 2, 10)
    whole = build_batch(numbered(10), base_offset=writer.next_offset)
    writer.append_bytes(compacted(bytes(whole), {0, 9}), 10, 1)
    fill(writer, 1, 10)
    fake_broker.publish(writer)
    assert offsets(read()) == [*range(20), 20, 29, *range(30, 40)]
    assert read().count() == 32
    assert read(endingOffsets='{"t":{"0":25}}').count() == 21


def compacted(batch: bytes, kept: set[int]) -> bytes:
    """A batch of short records, of which these are kept."""
    records, at = [], 61
    while at < len(batch):
        length = 1 + (batch[at] >> 1)
        records.append(batch[at : at + length])
        at += length
    header = bytearray(batch[:61])
    stream = b"".join(record for number, record in enumerate(records) if number in kept)
    header[8:12] = (len(header) - 12 + len(stream)).to_bytes(4)
    header[57:61] = len(kept).to_bytes(4)
    header[17:21] = crc32c(bytes(header[21:]) + stream).to_bytes(4)
    return bytes(header) + stream


def test_damage_names_file_and_position(read: Read, log_dir: Path, fake_broker: FakeBroker) -> None:
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 3, 10)
    fake_broker.publish(writer)
    path = writer.directory / "00000000000000000000.log"
    collect = planned(read("value binary"))
    content = bytearray(path.read_bytes())
    content[100] ^= 0x40
    path.write_bytes(content)
    with pytest.raises(PySparkException, match=r"0+\.log is damaged at position 0: .*t-0 offsets \[0, 30\)"):
        collect()


def test_checksums_may_be_left_out(read: Read, log_dir: Path, fake_broker: FakeBroker) -> None:
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 1, 1)
    fake_broker.publish(writer)
    path = writer.directory / "00000000000000000000.log"
    content = bytearray(path.read_bytes())
    content[-3] ^= 0x01
    path.write_bytes(content)
    assert read(check_crcs=False).collect()[0].value == b"v0................/."
    with pytest.raises(PySparkException, match="damaged at position 0"):
        read().collect()


def test_a_file_that_became_shorter(read: Read, log_dir: Path, fake_broker: FakeBroker) -> None:
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 3, 10)
    fake_broker.publish(writer)
    path = writer.directory / "00000000000000000000.log"
    collect = planned(read())
    os.truncate(path, 100)
    with pytest.raises(PySparkException, match=r"has 100 bytes|beyond position 100"):
        collect()


def test_retention_between_plan_and_task(read: Read, log_dir: Path, fake_broker: FakeBroker) -> None:
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 20, 10, roll_every=5)
    fake_broker.publish(writer)
    strict, lenient = planned(read()), planned(read(failOnDataLoss=False))
    for base in (0, 50):
        (writer.directory / f"{base:020d}.log").unlink()
    with pytest.raises(
        PySparkException, match=r"offsets 0 to 99 of t-0 .*the log starts at 100 now.*aged out"
    ):
        strict()
    assert [row.offset for row in lenient()] == list(range(100, 200))
    shutil.rmtree(writer.directory)
    with pytest.raises(PySparkException, match="t-0 was deleted"):
        strict()


def overwrite(path: Path, content: bytes) -> None:
    """As if the cleaner's file had the inode number of the old one, which is free once that is removed."""
    path.write_bytes(content)


@pytest.mark.parametrize("put", [replace, overwrite])
def test_the_cleaner_between_plan_and_task(
    read: Read, log_dir: Path, fake_broker: FakeBroker, put: Callable[[Path, bytes], None]
) -> None:
    writer = PartitionWriter(log_dir, "t", first_offset=100)
    fill(writer, 20, 10, roll_every=10)
    fake_broker.publish(writer)
    path = writer.directory / "00000000000000000100.log"
    collect = planned(read(minPartitions=3))
    content = path.read_bytes()
    size = len(content) // 10
    put(path, b"".join(content[n * size : (n + 1) * size] for n in (0, 2, 7, 9)))
    path.with_suffix(".index").write_bytes(b"")
    kept = [100 + n for batch in (0, 2, 7, 9) for n in range(batch * 10, batch * 10 + 10)]
    assert sorted(row.offset for row in collect()) == [*kept, *range(200, 300)]


def test_a_topic_made_anew_is_not_read_as_the_old_one(
    read: Read, log_dir: Path, fake_broker: FakeBroker
) -> None:
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 3, 10)
    fake_broker.publish(writer)
    collect = planned(read())
    shutil.rmtree(writer.directory)
    fill(PartitionWriter(log_dir, "t"), 3, 10)
    with pytest.raises(PySparkException, match="belongs to another topic of that name now"):
        collect()


def test_a_host_without_the_files_says_so(read: Read, log_dir: Path, fake_broker: FakeBroker) -> None:
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 3, 10)
    fake_broker.publish(writer)
    collect = planned(read())
    (log_dir / "meta.properties").unlink()
    with pytest.raises(PySparkException, match=r"log of the broker .* not on this host\. .*kafka\.bootstrap"):
        collect()


def test_many_logs_and_ranges(spark: SparkSession, tmp_path: Path) -> None:
    """Whatever logs look like and wherever a query cuts them, both readers give each wanted record once."""
    dice = random.Random(7)
    log_dir = new_log_dir(tmp_path / "many")
    starts, ends, expected, bounds = {}, {}, [], {}
    for number in range(16):
        writer, written = PartitionWriter(log_dir, "t", number), []
        for _ in range(dice.randint(1, 12)):
            writer.skip(dice.choice([0, 0, 0, 1, 500]))
            if dice.random() < 0.2 and writer.position:
                writer.roll()
            if dice.random() < 0.3:
                writer.append_marker(COMMIT)
            first, count = writer.next_offset, dice.randint(1, 40)
            written += range(first, first + count)
            size = dice.choice([1, 100, 1500])
            writer.append(numbered(count, first=first, value_bytes=size), codec=dice.choice(list(Codec)))
        edges = sorted(dice.randint(0, writer.next_offset) for _ in range(3))
        starts[number], ends[number], bounds["t", number] = edges
        expected += [(number, offset) for offset in written if edges[0] <= offset < edges[1]]
    checkpoint(log_dir, bounds)
    options = {
        "log.dir": str(log_dir),
        "subscribe": "t",
        "startingOffsets": json.dumps({"t": starts}),
        "endingOffsets": json.dumps({"t": ends}),
        "minPartitions": "30",
    }
    for kind in READERS:
        frame = with_reader(spark.read.format("mpbroker").options(**options), kind).load()
        rows = frame.selectExpr("partition", "offset", "string(key)").collect()
        assert sorted(row[:2] for row in rows) == sorted(expected)
        assert all(row[2] == f"k{row.offset}" for row in rows)
        assert frame.count() == len(expected)


def test_a_batch_longer_than_its_file(spark: SparkSession, log_dir: Path, fake_broker: FakeBroker) -> None:
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 3, 10)
    fake_broker.publish(writer)
    reader = spark.read.format("mpbroker").option("log.dir", str(log_dir)).option("subscribe", "t")
    collect, counted = planned(reader.load()), reader.load().groupBy().count()
    assert "count(*)" in physical_plan(counted)
    path = writer.directory / "00000000000000000000.log"
    content = bytearray(path.read_bytes())
    content[8] ^= 0x40
    path.write_bytes(content)
    for query in (collect, counted.collect):
        with pytest.raises(
            PySparkException, match="damaged at position 0: the batch reaches beyond position"
        ):
            query()


def test_what_spark_leaves_to_the_jvm_reader(
    spark: SparkSession, log_dir: Path, fake_broker: FakeBroker
) -> None:
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 500, 10, value_bytes=1000, roll_every=200)
    fake_broker.publish(writer)
    frame = spark.read.format("mpbroker").option("log.dir", str(log_dir)).option("subscribe", "t").load()
    assert "struct<value:binary>" in physical_plan(frame.selectExpr("sum(length(value))"))
    assert "struct<count(*):bigint>" in physical_plan(frame.groupBy().count())
    assert "struct<count(*):bigint>" not in physical_plan(frame.where("offset > 7").groupBy().count())
    assert "limit 3" in physical_plan(frame.select("offset").limit(3))
    assert offsets(frame.limit(3)) == [0, 1, 2]
    assert frame.where("offset % 1000 = 999").count() == 5
    size = frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()
    assert size > writer.end.position
    narrow = frame.select("offset")._jdf.queryExecution().optimizedPlan().stats()
    assert narrow.sizeInBytes() < 100_000


def test_generated_queries(spark: SparkSession, tmp_path: Path) -> None:
    """Both readers and Spark's own connector return the same rows. The connector's are read once."""
    try:
        connector_jars()
    except MissingToolError as error:
        pytest.fail(str(error), pytrace=False)
    with Broker(generated_queries.BROKER, log_dir=tmp_path / "log") as broker:
        topics = generated_queries.Topics(broker.bootstrap_servers, broker.log_dir, random.Random(1))
        views = [
            make_expected(spark, broker.bootstrap_servers),
            *(make_tables(kind, partial(reader_of, spark, broker.log_dir, kind)) for kind in READERS),
        ]
        assert BY_JVM in physical_plan(spark.table("jvm_mixed_read_committed"))
        made, whole = Queries(1), [f"select * from {{{name}}}" for name in generated_queries.TABLES]
        fetching = [
            make_tables(f"{kind}_fetching", partial(fetching_reader, spark, broker.bootstrap_servers, kind))
            for kind in READERS
        ]
        assert f"{BY_JVM}, fetching" in physical_plan(spark.table("jvm_fetching_mixed_read_committed"))
        # These tables have the records of the others.
        fetched = [sql for sql in whole if "{every" in sql or "{part" in sql]
        for sql in (*whole, *(made.next() for _ in range(QUERIES))):
            names = views + fetching if sql in fetched else views
            wanted, *found = (sorted_rows(spark.sql(sql.format_map(one))) for one in names)
            assert found == [wanted] * len(found), sql
        del topics


def reader_of(spark: SparkSession, log_dir: Path, kind: str) -> DataFrameReader:
    return with_reader(spark.read.format("mpbroker").option("log.dir", str(log_dir)), kind)


def fetching_reader(spark: SparkSession, bootstrap: str, kind: str) -> DataFrameReader:
    # Batches of the topics are larger, and come alone.
    options = {"kafka.bootstrap.servers": bootstrap, "kafka.max.partition.fetch.bytes": "2000"}
    return with_reader(spark.read.format("mpbroker").options(**options), kind)


def sorted_rows(frame: DataFrame) -> list[str]:
    return sorted(map(repr, frame.collect()))


def test_views_joins_and_sorts(spark: SparkSession, log_dir: Path, fake_broker: FakeBroker) -> None:
    """What Spark keeps of a batch is a copy: rows of earlier ones do not change."""
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 30, 1000, codecs=[Codec.NONE, Codec.LZ4])
    fake_broker.publish(writer)
    options = f"`log.dir` '{log_dir}', subscribe 't'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW events USING mpbroker OPTIONS ({options})")
    assert BY_JVM in physical_plan(spark.table("events"))
    joined = spark.sql(
        "SELECT a.key FROM events a JOIN events b ON a.key = b.key WHERE a.value = b.value "
        "ORDER BY a.offset DESC"
    )
    assert [row.key for row in joined.collect()] == [b"k%d" % n for n in reversed(range(30_000))]
    cached = spark.table("events").cache()
    assert cached.selectExpr("count(distinct key)", "max(value)").collect()[0][0] == 30_000
    cached.unpersist()


def test_queries_that_are_left_to_python(spark: SparkSession, log_dir: Path, fake_broker: FakeBroker) -> None:
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 1, 10)
    fake_broker.publish(writer)
    packed = {"subscribe": "t", "log.dir": str(log_dir), "valueFormat": "msgpack", "valueSchema": "id int"}
    decoded = spark.read.format("mpbroker").options(**packed).load()
    assert BY_JVM not in physical_plan(decoded)
    assert decoded.where("value._corrupt IS NOT NULL").count() == 10


def test_explain_names_the_reader_of_a_stream_and_writes_keep_the_python_sink(
    spark: SparkSession, log_dir: Path, fake_broker: FakeBroker, tmp_path: Path
) -> None:
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 2, 10)
    fake_broker.publish(writer)
    options = {"log.dir": str(log_dir), "subscribe": "t"}
    stream = spark.readStream.format("mpbroker").options(**options, startingOffsets="earliest").load()
    sink = stream.select("offset").writeStream.format("memory").queryName("read_by_a_stream")
    query = sink.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)
    assert offsets(spark.table("read_by_a_stream")) == list(range(20))
    assert f"mpbroker[Subscribe[t]] {BY_JVM}" in str(query._jsq.explainInternal(False))
    rows = spark.read.format("mpbroker").options(**options).load().select("value")
    refused = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "kafka.key.serializer": "x"}
    # As only the Python sink says it.
    with pytest.raises(PySparkException, match=r"'key\.serializer' is not supported"):
        rows.write.format("mpbroker").options(**refused).mode("append").save()


def test_the_jar_is_that_of_the_sources_byte_for_byte(tmp_path: Path) -> None:
    built = jvm_reader.build(tmp_path)
    found = jar.jar_path()
    assert found is not None
    assert built.name == found.name
    assert built.read_bytes() == found.read_bytes(), "run make setup: the jar is older than its sources"


def test_without_maven_there_is_no_jar_and_setup_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> Path:
        raise jvm_reader.CannotBuild("no Maven")

    monkeypatch.setattr(jvm_reader, "libraries", fail)
    monkeypatch.setattr(sys, "argv", ["jvm_reader", "--into", str(tmp_path)])
    assert jvm_reader.main() == 0
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == "setup: going on without the JVM reader of Spark sessions: no Maven\n"


def test_spark_is_asked_for_each_internal_class_that_the_jar_uses(tmp_path: Path) -> None:
    """Spark's API for data sources is public. Other classes may be missing in another version."""
    found = jar.jar_path()
    assert found is not None
    with zipfile.ZipFile(found) as archive:
        archive.extractall(tmp_path)
    shutil.rmtree(tmp_path / "io" / "mpbroker" / "spark" / "shaded")
    flags = [f"-J{flag}" for flag in jvm_reader.SHORT_LIVED]
    printed = ran(["javap", *flags, "-v", "-p", *tmp_path.rglob("*.class")], check=True).stdout
    used = set(re.findall(r"= Class .*// (org/apache/spark/[\w/$]+)", printed))
    internal = {name.replace("/", ".") for name in used if not PUBLIC.fullmatch(name)}
    source = (jvm_reader.SOURCES / "io/mpbroker/spark/Compatibility.java").read_text()
    uses = re.findall(r'new Use\((SQL \+ )?"([\w.$]+)"', source)
    asked = {f"org.apache.spark.sql.{name}" if sql else name for sql, name in uses}
    assert len(internal) > 10
    assert internal <= asked
