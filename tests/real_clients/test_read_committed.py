"""Transactions that Apache Kafka has written: who asks this broker for committed records gets no others."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import Producer

from ops.bench.brokers import Broker, Kafka, Mpbroker
from tests.real_clients.conftest import create_topic, served, stop_cleanly
from tests.real_clients.tools import kafka_tool

CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
TOPIC = "transactions"
PARTITION = f"{TOPIC}-0"
# Kafka's least; records of a kilobyte make some segments of it.
SEGMENT_BYTES = 1 << 20
VALUE = "{} {} ".ljust(1000, ".")
ROUNDS, EACH = 40, 50
TAKEN_OVER = (".log", ".index", ".timeindex", ".txnindex", "leader-epoch-checkpoint")
READ_TIMEOUT_S = 30


def transaction(broker: Broker, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    return producer


def write(producer: Producer, kind: str, first: int) -> list[str]:
    values = [VALUE.format(kind, first + i) for i in range(EACH)]
    for value in values:
        producer.produce(TOPIC, value, partition=0)
    assert producer.flush(30) == 0
    return values


def fill(broker: Broker) -> list[str]:
    """Two writers with overlapping transactions, each third round aborted: what is committed, in order."""
    create_topic(broker.bootstrap, TOPIC, 1, {"segment.bytes": str(SEGMENT_BYTES)})
    writers = [transaction(broker, name) for name in ("one", "other")]
    committed: list[str] = []
    for number in range(ROUNDS):
        aborts = number % 3 == 0
        writer = writers[number % 2]
        values = write(writer, "aborted" if aborts else "committed", number * EACH)
        if aborts:
            writer.abort_transaction(30)
        else:
            writer.commit_transaction(30)
            committed += values
        writer.begin_transaction()
    for writer in writers:
        writer.abort_transaction(30)
    return committed


def take_over(source: Path, target: Path) -> None:
    """Kafka's files in the place of ours; as after a crash, so that nobody believes what checkpoints say."""
    for path in target.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    for path in source.iterdir():
        if path.name.endswith(TAKEN_OVER):
            shutil.copy(path, target / path.name)
    for path in target.parent.glob("*checkpoint*"):
        path.unlink()
    (target.parent / ".kafka_cleanshutdown").unlink()


@pytest.fixture(name="written", scope="module")
def _written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mpbroker, list[str]]]:
    """A broker that serves what Kafka has written, and what of that is committed."""
    directory = tmp_path_factory.mktemp("transactions")
    kafka, ours = Kafka(directory / "kafka"), Mpbroker(directory / "ours")
    kafka.directory.mkdir()
    ours.directory.mkdir()
    try:
        kafka.start()
        committed = fill(kafka)
        stop_cleanly(kafka)
    finally:
        kafka.kill()
    with served(ours):
        create_topic(ours.bootstrap, TOPIC, 1, {"segment.bytes": str(SEGMENT_BYTES)})
    source = kafka.log_dir / PARTITION
    assert len(list(source.glob("*.txnindex"))) > 1
    take_over(source, ours.log_dir / PARTITION)
    with served(ours):
        yield ours, committed


def consume(broker: Broker, isolation: str) -> list[str]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "unused",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, confluent_kafka.OFFSET_BEGINNING)])
    values: list[str] = []
    try:
        while True:
            message = consumer.poll(READ_TIMEOUT_S)
            assert message is not None, f"{len(values)} records and no end"
            error = message.error()
            if error is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
                return values
            value = message.value()
            assert value is not None
            values.append(value.decode())
    finally:
        consumer.close()


def test_librdkafka(written: tuple[Mpbroker, list[str]]) -> None:
    broker, committed = written
    assert consume(broker, "read_committed") == committed
    everything = consume(broker, "read_uncommitted")
    assert everything == sorted(everything, key=_number)
    assert len(everything) == ROUNDS * EACH


def _number(value: str) -> int:
    return int(value.split(" ", 2)[1])


def test_java(written: tuple[Mpbroker, list[str]]) -> None:
    broker, committed = written
    asked = ("--bootstrap-server", broker.bootstrap, "--topic", TOPIC, "--from-beginning")
    printed = kafka_tool(
        CONSUMER, *asked, "--isolation-level", "read_committed", "--max-messages", str(len(committed))
    )
    assert printed.splitlines() == committed
