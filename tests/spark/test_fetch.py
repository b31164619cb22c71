"""Fetches of the JVM reader from brokers with faults. (Python's: tests/reading/test_read_remote.py.)"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.records.builder import build_batch, build_transaction_marker
from mpbroker.records.compression import Codec
from mpbroker.records.markers import ABORT, COMMIT
from mpbroker.records.record import NewRecord
from mpbroker.testing import Broker
from ops.bench.brokers import Broker as RealBroker
from ops.bench.brokers import Kafka
from tests.support.kafka_server import HangUp, KafkaServer, Unanswered
from tests.support.polling import PATIENCE_S, until
from tests.support.produced import produce
from tests.support.reading_queries import UNCOMMITTED
from tests.support.real_brokers import TRANSACTIONS, create_topic, served, with_settings
from tests.support.spark_logs import FakeBroker, PartitionWriter, fill, numbered

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

BY_JVM = "mpbroker by its JVM reader"

Read = Callable[..., DataFrame]
Batch = tuple[int, int, bytes]


def batches_of(count: int, per_batch: int = 10) -> list[Batch]:
    """Batches of every codec in turn."""
    codecs = list(Codec)
    return [
        (base, base + per_batch, packed(base, per_batch, codecs[base // per_batch % len(codecs)]))
        for base in range(0, count * per_batch, per_batch)
    ]


def packed(base: int, count: int, codec: Codec = Codec.NONE, **more: Any) -> bytes:
    return bytes(build_batch(numbered(count, first=base), base_offset=base, codec=codec, **more))


def marker(kind: int, producer_id: int, base: int) -> Batch:
    found = build_transaction_marker(
        kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=0, base_offset=base
    )
    return base, base + 1, bytes(found)


def transactional(base: int, count: int, producer_id: int) -> Batch:
    of = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": -1, "transactional": True}
    return base, base + count, packed(base, count, **of)


@pytest.fixture
def read(spark: SparkSession) -> Read:
    """A query of which each fetch has few batches."""

    def frame(server: KafkaServer, **options: object) -> DataFrame:
        given = {
            "kafka.bootstrap.servers": server.address,
            "subscribe": "t",
            "kafka.max.partition.fetch.bytes": 2000,
            "fetchOffset.retryIntervalMs": 0,
            "accelerated": True,
            **options,
        }
        reader = spark.read.format("mpbroker")
        for name, value in given.items():
            reader = reader.option(name, str(value))
        return reader.load()

    return frame


def physical_plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def planned(frame: DataFrame) -> Callable[[], list[int]]:
    """Plan the tasks of a query; return a function that reads them."""
    rdd = frame.select("offset").rdd
    assert rdd.getNumPartitions() > 0
    return lambda: sorted(row.offset for row in rdd.collect())


def test_many_fetches_cut_anywhere(read: Read) -> None:
    with KafkaServer("t", batches_of(60)) as server:
        frame = read(server)
        assert f"{BY_JVM}, fetching: topics [t]" in physical_plan(frame)
        rows = sorted(frame.collect(), key=lambda row: row.offset)
        assert [row.offset for row in rows] == list(range(600))
        assert all(row.value.rstrip(b".") == b"v%d" % row.offset for row in rows)
        assert len(server.fetches) > 5
        assert (frame.count(), frame.groupBy("partition").count().collect()[0][1]) == (600, 600)
        assert offsets(read(server, minPartitions=4)) == list(range(600))
        edges = {"startingOffsets": '{"t":{"0":113}}', "endingOffsets": '{"t":{"0":427}}'}
        assert offsets(read(server, **edges)) == list(range(113, 427))
        assert read(server, **edges).count() == 314


def test_a_batch_larger_than_a_fetch_and_one_of_control(read: Read) -> None:
    batches = [(0, 200, packed(0, 200)), marker(COMMIT, 1, 200), (201, 206, packed(201, 5))]
    with KafkaServer("t", batches) as server:
        assert offsets(read(server)) == [*range(200), *range(201, 206)]


def test_headers_nulls_and_times(read: Read) -> None:
    records = [
        NewRecord(key=b"k", value=b"v", timestamp=1, headers=(("a", b"1"), ("b", None))),
        NewRecord(key=None, value=b"", timestamp=2),
        NewRecord(key=b"", value=None, timestamp=3),
        NewRecord(key=b"z", value=b"z" * 70_000, timestamp=4, headers=(("µ", b"\xff"),)),
    ]
    batches = [
        (n * 4, n * 4 + 4, bytes(build_batch(records, base_offset=n * 4, codec=c)))
        for n, c in enumerate(Codec)
    ]
    with KafkaServer("t", batches) as server:
        rows = read(server, includeHeaders=True).orderBy("offset").collect()
        assert [row.offset for row in rows] == list(range(len(records) * len(Codec)))
        for row in rows:
            record = records[row.offset % 4]
            assert (row.key, row.value, row.topic, row.partition) == (record.key, record.value, "t", 0)
            assert [tuple(one) for one in row.headers or ()] == list(record.headers)
            assert row.timestamp.microsecond == record.timestamp * 1000


def test_aborted_transactions_of_each_fetch(read: Read) -> None:
    """Producer 1 aborts, commits and aborts again; producer 2 began before the range and aborts behind it."""
    batches = [
        transactional(0, 5, 2),
        transactional(5, 5, 1),
        marker(ABORT, 1, 10),
        transactional(11, 5, 1),
        marker(COMMIT, 1, 16),
        transactional(17, 5, 1),
        (22, 30, packed(22, 8)),
        transactional(30, 5, 2),
        marker(ABORT, 1, 35),
        (36, 40, packed(36, 4)),
        marker(ABORT, 2, 40),
    ]
    committed = [*range(11, 16), *range(22, 30), *range(36, 40)]
    every = [n for n in range(40) if n not in (10, 16, 35)]
    aborted = {40: (2, 0), 10: (1, 5), 35: (1, 17)}

    def listed(_nth: int, offset: int) -> None:
        server.aborted = [one for end, one in aborted.items() if end >= offset]

    for size in (600, 100_000):
        with KafkaServer("t", batches, fault=listed) as server:
            small = {"kafka.max.partition.fetch.bytes": size, "startingOffsets": '{"t":{"0":3}}'}
            assert offsets(read(server, **small)) == committed
            assert read(server, **small).count() == len(committed)
            assert offsets(read(server, **small, **UNCOMMITTED)) == every[3:]


@pytest.mark.parametrize("faulty", [1, 3])
@pytest.mark.parametrize("error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, None], ids=["moved", "lost"])
def test_a_fault_is_retried_from_where_it_was(read: Read, faulty: int, error: ErrorCode | None) -> None:
    def fault(nth: int, _offset: int) -> ErrorCode | None:
        if nth == faulty and error is None:
            raise HangUp
        return error if nth == faulty else None

    with KafkaServer("t", batches_of(60), fault=fault) as server:
        assert offsets(read(server)) == list(range(600))
        assert len(server.fetches) > len(set(server.fetches))


def test_an_answer_without_records_is_asked_for_again(read: Read) -> None:
    with KafkaServer("t", batches_of(60), is_empty=lambda nth: nth in (1, 3, 4)) as server:
        assert offsets(read(server)) == list(range(600))
    with KafkaServer("t", batches_of(60), is_empty=lambda nth: nth > 2) as server:
        with pytest.raises(PySparkException, match=r"sent no record from offset \d+ on, reading t-0 offsets"):
            offsets(read(server, **{"fetchOffset.numRetries": 2}))
        assert len(server.fetches) == 2 + 1 + 3, "the one that was asked for ahead, and three tries"


def test_a_leader_whose_high_watermark_is_late(read: Read) -> None:
    """Check that records which it does not show yet are not taken for lost. (KIP-207.)"""
    options = {"failOnDataLoss": False, "fetchOffset.numRetries": 3, "fetchOffset.retryIntervalMs": 1}
    with KafkaServer("t", batches_of(60), is_late=lambda nth: nth in (1, 3, 4)) as server:
        assert offsets(read(server, **options)) == list(range(600))
    with (
        KafkaServer("t", batches_of(60), is_late=lambda nth: nth > 2) as server,
        pytest.raises(PySparkException, match="the leader has it, and does not send it"),
    ):
        offsets(read(server, **options))


def test_retries_end(read: Read) -> None:
    with KafkaServer("t", batches_of(1), fault=lambda *_: ErrorCode.NOT_LEADER_OR_FOLLOWER) as server:
        with pytest.raises(PySparkException, match=r"fetching t-0 offsets .*NOT_LEADER_OR_FOLLOWER"):
            offsets(read(server, **{"fetchOffset.numRetries": 2}))
        assert len(server.fetches) == 3


def test_a_broker_that_is_gone(read: Read) -> None:
    with KafkaServer("t", batches_of(6)) as server:
        collect = planned(read(server, **{"fetchOffset.numRetries": 1}))
    with pytest.raises(
        PySparkException, match=r"cannot connect to 127.0.0.1.*check kafka\.bootstrap\.servers"
    ):
        collect()


def test_an_answer_that_never_comes(read: Read) -> None:
    def silent(_nth: int, _offset: int) -> None:
        raise Unanswered

    with KafkaServer("t", batches_of(6), fault=silent) as server:
        options = {"kafka.request.timeout.ms": 200, "fetchOffset.numRetries": 1}
        collect = planned(read(server, **options))
        with pytest.raises(PySparkException, match=r"did not answer within 0\.2 s"):
            collect()


def test_records_that_went_between_plan_and_fetch(read: Read) -> None:
    def retention(_nth: int, _offset: int) -> None:
        server.log_start = 75

    lost = r"Cannot fetch offset 0 of t-0 .*start offset is 75.*up to 100.*failOnDataLoss"
    with (
        KafkaServer("t", batches_of(10), fault=retention) as server,
        pytest.raises(PySparkException, match=lost),
    ):
        offsets(read(server))
    with KafkaServer("t", batches_of(10), fault=retention) as server:
        assert offsets(read(server, failOnDataLoss=False)) == list(range(75, 100))
    with KafkaServer("t", batches_of(10), fault=retention) as server:
        assert len(read(server, failOnDataLoss=False).select("partition").collect()) == 25


@pytest.mark.parametrize("fetch_max", [18, 12], ids=["by-id", "by-name"])
def test_a_topic_that_is_made_anew_is_not_the_planned_one(read: Read, fetch_max: int) -> None:
    def anew(nth: int, _offset: int) -> None:
        if nth == 3:
            server.topic_id = b"id of another..."

    gone = r"topic t was deleted since the query was planned.*failOnDataLoss"
    with KafkaServer("t", batches_of(60), fetch_max=fetch_max) as server:
        strict, lenient = planned(read(server)), planned(read(server, failOnDataLoss=False))
        server.fault = anew
        with pytest.raises(PySparkException, match=gone):
            strict()
        assert lenient() == []
        server.topic_id, server.fetches = b"an id of a topic", []
        assert 0 < len(lenient()) < 600


def test_a_topic_that_is_deleted_meanwhile(read: Read) -> None:
    with KafkaServer("t", batches_of(6)) as server:
        strict, lenient = planned(read(server)), planned(read(server, failOnDataLoss=False))
        server.topic, server.topic_id = "other", b"id of another..."
        with pytest.raises(PySparkException, match="topic t was deleted"):
            strict()
        assert lenient() == []


def test_damage_on_the_way(read: Read) -> None:
    base, end, data = batches_of(1)[0]
    for damaged in (data[:-1] + b"\xff", data[:8] + b"\x00\x00\x00\x02" + data[12:]):
        with (
            KafkaServer("t", [(base, end, damaged)]) as server,
            pytest.raises(PySparkException, match="the broker sent a damaged batch, reading t-0 offsets"),
        ):
            offsets(read(server))


def test_tasks_share_a_connection(spark: SparkSession) -> None:
    with KafkaServer("t", batches_of(60)) as server:
        frame = spark.read.format("mpbroker").options(
            **{"kafka.bootstrap.servers": server.address, "subscribe": "t", "minPartitions": "20"},
            accelerated="true",
        )
        collect = planned(frame.load())
        before = (server.connections, server.asked.count(ApiKey.METADATA))
        assert collect() == list(range(600))
        made = server.connections - before[0]
        # Two tasks run at a time, with a connection to the bootstrap server and to the leader each.
        assert made <= 4
        server.hang_up()
        assert collect() == list(range(600)), "a connection that ended is made again"
        assert server.asked.count(ApiKey.METADATA) - before[1] <= 4


def test_the_task_decides(spark: SparkSession, log_dir: Path, fake_broker: FakeBroker) -> None:
    """The plan has both; what counts is where the task runs."""
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 6, 10)
    fake_broker.publish(writer)
    with KafkaServer("t", batches_of(6), topic_id=writer.topic_id) as server:
        options = {"kafka.bootstrap.servers": server.address, "subscribe": "t", "log.dir": str(log_dir)}
        reader = spark.read.format("mpbroker").options(**options, accelerated="true")
        frame = reader.load()
        assert f"{BY_JVM}, from files where a task finds them, else fetching: " in physical_plan(frame)
        local = reader.option("readMode", "local").load()
        assert f"{BY_JVM}, from files: " in physical_plan(local)
        collect, collect_local, count = planned(frame), planned(local), frame.groupBy().count()
        assert "count(*)" in physical_plan(count)
        assert (collect(), frame.count(), server.fetches) == (list(range(60)), 60, [])
        (log_dir / "meta.properties").rename(log_dir / "elsewhere")
        assert (collect(), count.collect()[0][0], server.fetches) == (list(range(60)), 60, [0, 0])
        with pytest.raises(
            PySparkException, match=r"is not on this host. Give kafka\.bootstrap\.servers too"
        ):
            collect_local()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_that_this_user_may_not_read(
    spark: SparkSession, log_dir: Path, fake_broker: FakeBroker
) -> None:
    writer = PartitionWriter(log_dir, "t")
    fill(writer, 6, 10)
    fake_broker.publish(writer)
    with KafkaServer("t", batches_of(6), topic_id=writer.topic_id) as server:
        options = {"kafka.bootstrap.servers": server.address, "subscribe": "t", "log.dir": str(log_dir)}
        collect = planned(spark.read.format("mpbroker").options(**options, accelerated="true").load())
        writer.directory.chmod(0)
        try:
            assert collect() == list(range(60))
        finally:
            writer.directory.chmod(0o700)
        assert server.fetches == [0]


def test_a_broker_that_is_killed_and_started_meanwhile(spark: SparkSession, tmp_path: Path) -> None:
    """A function keeps the task from fetching all until the broker is back."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    started, back = tmp_path / "started", tmp_path / "back"
    records = 8_000

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            started.touch()
            until(back.exists, "the broker is back")
            yield batch

    with Broker(log_dir=tmp_path / "log") as broker:
        create_topic(broker.bootstrap_servers, "t", 1)
        produce(broker.bootstrap_servers, "t", [b"%d" % number * 500 for number in range(records)], 1)
        options = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "subscribe": "t",
            "kafka.max.partition.fetch.bytes": "100000",
            "accelerated": "true",
        }
        frame = spark.read.format("mpbroker").options(**options).load().select("offset", "value")
        assert BY_JVM in physical_plan(frame)
        with ThreadPoolExecutor(1) as pool:
            slow = frame.mapInArrow(wait, "offset long, value binary").selectExpr("offset", "length(value)")
            rows = pool.submit(slow.collect)
            until(started.exists, "the task has got records")
            broker.kill()
            broker.start()
            back.touch()
            assert sorted(row.offset for row in rows.result(PATIENCE_S)) == list(range(records))


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealBroker]:
    """Apache Kafka with a topic that has batches of every codec, and transactions of all ends."""
    settings = {**TRANSACTIONS, "transaction.state.log.replication.factor": "1"}
    with served(with_settings(Kafka(tmp_path_factory.mktemp("kafka")), settings)) as found:
        create_topic(found.bootstrap, "t", 1)
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            produce(found.bootstrap, "t", [b"%d" % number for number in range(50)], 1, compression_type=codec)
            given = {"bootstrap.servers": found.bootstrap, "transactional.id": codec, "linger.ms": "5"}
            producer = Producer({**given, "compression.type": codec})
            producer.init_transactions(PATIENCE_S)
            for end in (producer.commit_transaction, producer.abort_transaction):
                producer.begin_transaction()
                producer.produce("t", b"within", b"key", partition=0, headers=[("h", b"1")])
                assert producer.flush(PATIENCE_S) == 0
                end(PATIENCE_S)
        yield found


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_apache_kafka(spark: SparkSession, kafka: RealBroker, isolation: str) -> None:
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap,
        "subscribe": "t",
        "includeHeaders": "true",
        "kafka.isolation.level": isolation,
        "kafka.max.partition.fetch.bytes": "1000",
    }
    found = {}
    for accelerated in ("true", "false"):
        frame = spark.read.format("mpbroker").options(**options, accelerated=accelerated).load()
        assert (BY_JVM in physical_plan(frame)) == (accelerated == "true")
        found[accelerated] = sorted(map(repr, frame.collect()))
        assert frame.count() == len(found[accelerated])
    assert found["true"] == found["false"]
    assert len(found["true"]) == 5 * (51 if isolation == "read_committed" else 52)


def test_a_stream_fetches(spark: SparkSession, tmp_path: Path) -> None:
    def fault(nth: int, _offset: int) -> None:
        if nth == 2:
            raise HangUp

    with KafkaServer("t", batches_of(60), fault=fault) as server:
        options = {"kafka.bootstrap.servers": server.address, "subscribe": "t", "accelerated": "true"}
        more = {"maxOffsetsPerTrigger": "250", "startingOffsets": "earliest"}
        stream = spark.readStream.format("mpbroker").options(**options, **more).load().select("offset")
        sink = stream.writeStream.format("memory").queryName("fetched_by_a_stream")
        query = sink.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE_S)
        assert offsets(spark.table("fetched_by_a_stream")) == list(range(600))
        assert [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]] == [250, 250, 100]
        assert "by its JVM reader" in str(query._jsq.explainInternal(False))
