"""Streams of ours and of Spark's Kafka connector in one session: one checkpoint, and the same triggers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from ops.bench.brokers import Mpbroker
from ops.bench.connector import connector_jars
from tests.support.polling import PATIENCE_S, until
from tests.support.real_brokers import served
from tests.support.spark_produced import PARTITIONS, make_topic, produce, records
from tests.support.spark_streams import rows_of

RECORDS = 30
ASSIGNED = {"assign": '{"events":[0,1]}'}
CONNECTOR = "connector"
FILES, WIRE, PYTHON, PYTHONS_WIRE = "files", "wire", "Python", "Python's wire"


@pytest.fixture(scope="module")
def spark(beside_the_connector: SparkSession) -> SparkSession:
    connector_jars()
    beside_the_connector.conf.set("spark.sql.streaming.realTimeMode.minBatchDuration", "1s")
    return beside_the_connector


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mpbroker]:
    with served(Mpbroker(tmp_path / "broker")) as running:
        make_topic(running, "events")
        yield running


def stream(spark: SparkSession, source: str, broker: Mpbroker, **options: str) -> DataFrame:
    reader = spark.readStream.format("kafka" if source == CONNECTOR else "mpbroker")
    reader = reader.options(**({"startingOffsets": "earliest"} | (options or {"subscribe": "events"})))
    reader = reader.option("kafka.bootstrap.servers", broker.bootstrap)
    if source != CONNECTOR:
        reader = reader.option("accelerated", source in (FILES, WIRE))
    if source in (FILES, PYTHON):
        reader = reader.option("log.dir", str(broker.log_dir)).option("readMode", "local")
    return reader.load()


def test_a_query_changes_its_source(spark: SparkSession, broker: Mpbroker, tmp_path: Path) -> None:
    """Check that no record is missed, and none comes twice, also with nothing new between two sources."""
    turns = (CONNECTOR, PYTHON, FILES, CONNECTOR, WIRE, PYTHONS_WIRE, CONNECTOR, FILES, FILES, CONNECTOR)
    done = 0
    for turn, source in enumerate(turns):
        more = RECORDS if turn != turns.index(FILES, 3) else 0
        produce(broker, "events", range(done * PARTITIONS, (done + more) * PARTITIONS))
        found = rows_of(stream(spark, source, broker), tmp_path / "checkpoint")
        assert found == [(p, o) for p in range(PARTITIONS) for o in range(done, done + more)], source
        done += more


def real_time(
    spark: SparkSession, broker: Mpbroker, checkpoint: Path, source: str = WIRE, **options: str
) -> StreamingQuery:
    frame = stream(spark, source, broker, **options).selectExpr("CAST(value AS STRING) AS value")
    writer = frame.writeStream.format("kafka")
    writer = writer.options(**{"kafka.bootstrap.servers": broker.bootstrap}, topic="copy").outputMode(
        "update"
    )
    return writer.option("checkpointLocation", str(checkpoint)).trigger(realTime="1 second").start()


def test_the_real_time_trigger(spark: SparkSession, broker: Mpbroker, tmp_path: Path) -> None:
    """Check that records come out of running batches, and that a run continues where another one ended."""
    make_topic(broker, "copy")

    def copied(count: int) -> None:
        until(lambda: len(list(records(broker, "copy"))) >= count, f"{count} records are copied")

    for run in range(2):
        # All tasks run at the same time, and the session has two cores.
        query = real_time(spark, broker, tmp_path / "checkpoint", **ASSIGNED)
        for done in (60 * run, 60 * run + 30):
            produce(broker, "events", range(done, done + 30))
            copied((done + 30) // PARTITIONS * 2)
        until(partial(ends_at, query, 20 * run + 20), f"a batch has ended at {20 * run + 20}")
        query.stop()
    values = sorted(message.value() or b"" for message in records(broker, "copy"))
    assert values == sorted(b"value %d" % number for number in range(120) if number % PARTITIONS < 2)


def test_a_real_time_query_keeps_its_start(spark: SparkSession, broker: Mpbroker, tmp_path: Path) -> None:
    """Check that a run which is stopped within its first long batch loses no record to the next run."""
    make_topic(broker, "copy")
    produce(broker, "events", range(30))
    latest = {"startingOffsets": "latest", **ASSIGNED}
    query = real_time(spark, broker, tmp_path / "checkpoint", **latest)
    until(lambda: (tmp_path / "checkpoint/commits/0").exists(), "the start is in the checkpoint")
    query.stop()
    produce(broker, "events", range(30, 60))
    query = real_time(spark, broker, tmp_path / "checkpoint", **latest)
    until(lambda: len(list(records(broker, "copy"))) >= 20, "records of both partitions are copied")
    query.stop()
    values = sorted(message.value() or b"" for message in records(broker, "copy"))
    assert values == sorted(b"value %d" % number for number in range(30, 60) if number % PARTITIONS < 2)


def ends_at(query: StreamingQuery, offset: int) -> bool:
    progress: Any = query.lastProgress
    return bool(progress) and json.loads(progress.sources[0].endOffset)["events"] == dict.fromkeys(
        "01", offset
    )


@pytest.mark.parametrize(
    ("source", "options", "text"),
    [
        (WIRE, {"maxOffsetsPerTrigger": "3"}, "maxOffsetsPerTrigger is not compatible with real time mode"),
        (FILES, {}, "The real-time trigger fetches in the JVM: give kafka.bootstrap.servers"),
        (WIRE, {"valueFormat": "msgpack", "valueSchema": "id long"}, "and no valueFormat"),
    ],
)
def test_the_real_time_trigger_refuses(
    spark: SparkSession, broker: Mpbroker, tmp_path: Path, source: str, options: dict[str, str], text: str
) -> None:
    query = real_time(spark, broker, tmp_path / "checkpoint", source, **ASSIGNED, **options)
    with pytest.raises(PySparkException, match=text):
        query.awaitTermination(PATIENCE_S)
