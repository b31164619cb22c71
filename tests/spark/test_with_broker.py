"""The source beside a running broker: what librdkafka was told is stored is what Spark reads, either way.

With MPBROKER_TEST_BROKER=kafka the same queries go to Apache Kafka; it publishes no high watermark outside
of its own process, so its files are read after it was stopped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrameReader, SparkSession

from ops.bench.brokers import Broker
from tests.support.real_brokers import make_broker, served
from tests.support.spark_produced import AT, PARTITIONS, make_topic, produce

RECORDS = 5_000
IS_KAFKA = os.environ.get("MPBROKER_TEST_BROKER") == "kafka"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with served(make_broker(tmp_path_factory.mktemp("broker"))) as running:
        yield running


@pytest.fixture(scope="module")
def topic(broker: Broker) -> str:
    """A topic with records of every codec, all acknowledged."""
    make_topic(broker, "events")
    for turn, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        produce(broker, "events", range(turn * RECORDS // 5, (turn + 1) * RECORDS // 5), codec)
    return "events"


def reader(spark: SparkSession, broker: Broker, mode: str) -> DataFrameReader:
    options = spark.read.format("mpbroker").option("readMode", mode)
    if mode == "remote":
        return options.option("kafka.bootstrap.servers", broker.bootstrap)
    return options.option("log.dir", str(broker.log_dir))


def check(spark: SparkSession, broker: Broker, topic: str, mode: str) -> None:
    """Everything, then ranges of offsets and of time."""
    whole = (
        reader(spark, broker, mode).options(subscribe=topic, includeHeaders="true", minPartitions="6").load()
    )
    columns = (
        "int(string(key)) n",
        "string(value)",
        "partition",
        "offset",
        "unix_millis(timestamp)",
        "headers",
    )
    rows = sorted(whole.selectExpr(*columns).collect(), key=lambda row: row.n)
    assert [row.n for row in rows] == list(range(RECORDS))
    for number, row in enumerate(rows):
        assert row[1:5] == (f"value {number}", number % PARTITIONS, number // PARTITIONS, AT + number)
        assert row.headers == ([("n", b"%d" % number)] if number % 2 else None)

    assigned = reader(spark, broker, mode).options(assign=f'{{"{topic}":[1]}}', columns="offset")
    edges = {"startingOffsets": f'{{"{topic}":{{"1":100}}}}', "endingOffsets": f'{{"{topic}":{{"1":110}}}}'}
    assert sorted(row.offset for row in assigned.options(**edges).load().collect()) == list(range(100, 110))
    times = {"startingTimestamp": str(AT + 300), "endingTimestamp": str(AT + 600)}
    matching = reader(spark, broker, mode).options(subscribePattern=f"{topic[:-1]}.", **times)
    assert matching.load().count() == 300


@pytest.mark.parametrize("mode", ["remote"] if IS_KAFKA else ["local", "remote"])
def test_beside_the_running_broker(spark: SparkSession, broker: Broker, topic: str, mode: str) -> None:
    check(spark, broker, topic, mode)


@pytest.mark.skipif(IS_KAFKA, reason="Apache Kafka publishes its high watermark every five seconds only")
def test_what_was_acknowledged_is_there_at_once(spark: SparkSession, broker: Broker) -> None:
    make_topic(broker, "now")
    frame = reader(spark, broker, "local").options(subscribe="now", columns="offset")
    assert frame.load().count() == 0
    for turn in range(3):
        produce(broker, "now", range(100))
        assert frame.load().count() == 100 * (turn + 1)


def test_after_the_broker_was_stopped(spark: SparkSession, broker: Broker, topic: str) -> None:
    broker.stop()
    assert (Path(broker.log_dir) / "replication-offset-checkpoint").exists()
    check(spark, broker, topic, "local")
