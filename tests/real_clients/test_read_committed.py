"""Transactions that Apache Kafka has written: who asks this broker for committed records gets no others."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import Producer

from ops.bench.brokers import Broker, Kafka, Mpbroker
from tests.support.client_tools import eventually, kafka_tool
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import create_topic, served, stop_cleanly

CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
TOPIC = "transactions"
# A transaction is left open in it.
OPEN = "open"
# Kafka's least; records of a kilobyte make some segments of it.
SEGMENT_BYTES = 1 << 20
VALUE = "{} {} ".ljust(1000, ".")
ROUNDS, EACH = 20, 100
TAKEN_OVER = (".log", ".index", ".timeindex", ".txnindex", "leader-epoch-checkpoint")
READ_TIMEOUT_S = PATIENCE_S


def transaction(broker: Broker, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    return producer


def write(producer: Producer, kind: str, first: int, topic: str = TOPIC) -> list[str]:
    values = [VALUE.format(kind, first + i) for i in range(EACH)]
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(PATIENCE_S) == 0
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
            writer.commit_transaction(PATIENCE_S)
            committed += values
        writer.begin_transaction()
    for writer in writers:
        writer.abort_transaction(30)
    return committed


def leave_open(broker: Broker) -> list[Producer]:
    """Committed records, those of a transaction without an end, and committed ones behind them."""
    create_topic(broker.bootstrap, OPEN, 1, {})
    committing, other = (transaction(broker, name) for name in ("committing", "other"))
    write(committing, "committed", 0, OPEN)
    committing.commit_transaction(PATIENCE_S)
    # A commit is answered when it is decided; its marker comes a moment later.
    eventually(lambda: end_of(broker, OPEN) == EACH + 1, "the marker is there")
    write(other, "open", EACH, OPEN)
    committing.begin_transaction()
    write(committing, "later", 2 * EACH, OPEN)
    committing.commit_transaction(PATIENCE_S)
    eventually(lambda: end_of(broker, OPEN) == 3 * EACH + 2, "the marker is there")
    return [committing, other]


def end_of(broker: Broker, topic: str, isolation: str = "read_uncommitted") -> int:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "unused", "isolation.level": isolation}
    )
    try:
        _, end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), READ_TIMEOUT_S)
        return int(end)
    finally:
        consumer.close()


def take_over(source: Path, target: Path) -> None:
    """Kafka's files in the place of ours."""
    for path in target.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    for path in source.iterdir():
        if path.name.endswith(TAKEN_OVER):
            shutil.copy(path, target / path.name)


@pytest.fixture(name="kafka_files", scope="module")
def _kafka_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The log directory of a Kafka that has stopped, and what of TOPIC is committed."""
    kafka = Kafka(tmp_path_factory.mktemp("transactions") / "kafka")
    kafka.directory.mkdir()
    try:
        kafka.start()
        committed = fill(kafka)
        # They live until it has stopped: one that goes ends its transaction.
        left = leave_open(kafka)
        stop_cleanly(kafka)
        del left
    finally:
        kafka.kill()
    return kafka.log_dir, committed


@pytest.fixture(name="written", scope="module")
def _written(kafka_files: tuple[Path, list[str]]) -> Iterator[tuple[Mpbroker, list[str]]]:
    """A broker that serves what Kafka has written, and what of that is committed."""
    kafka_log_dir, committed = kafka_files
    ours = Mpbroker(kafka_log_dir.parents[1] / "ours")
    ours.directory.mkdir()
    with served(ours):
        create_topic(ours.bootstrap, TOPIC, 1, {"segment.bytes": str(SEGMENT_BYTES)})
        create_topic(ours.bootstrap, OPEN, 1, {})
    for topic in (TOPIC, OPEN):
        take_over(kafka_log_dir / f"{topic}-0", ours.log_dir / f"{topic}-0")
    for path in ours.log_dir.glob("*checkpoint*"):
        path.unlink()
    (ours.log_dir / ".kafka_cleanshutdown").unlink()
    with served(ours):
        yield ours, committed


def test_several_segments_have_aborted_transactions(kafka_files: tuple[Path, list[str]]) -> None:
    """What the tests below read is worth reading."""
    kafka_log_dir, _ = kafka_files
    assert len(list((kafka_log_dir / f"{TOPIC}-0").glob("*.txnindex"))) > 1


def consume(broker: Broker, isolation: str, topic: str = TOPIC) -> list[str]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "unused",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
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


def test_nothing_behind_an_open_transaction(written: tuple[Mpbroker, list[str]]) -> None:
    broker, _ = written
    assert consume(broker, "read_committed", OPEN) == [VALUE.format("committed", i) for i in range(EACH)]
    assert len(consume(broker, "read_uncommitted", OPEN)) == 3 * EACH
    for isolation, records in (("read_committed", EACH), ("read_uncommitted", 3 * EACH)):
        # And the markers of what was committed.
        assert end_of(broker, OPEN, isolation) == records + (1 if isolation == "read_committed" else 2)
    transactions(broker, "abort", "--start-offset", str(EACH + 1))
    later = [VALUE.format("later", 2 * EACH + i) for i in range(EACH)]
    assert consume(broker, "read_committed", OPEN)[EACH:] == later
    (left,) = {line.split()[-1] for line in transactions(broker, "describe-producers").splitlines()[1:]}
    assert left == "None"


def transactions(broker: Broker, *command: str) -> str:
    return kafka_tool(
        "org.apache.kafka.tools.TransactionsCommand",
        *("--bootstrap-server", broker.bootstrap, *command, "--topic", OPEN, "--partition", "0"),
    )


def test_java(written: tuple[Mpbroker, list[str]]) -> None:
    broker, committed = written
    asked = ("--bootstrap-server", broker.bootstrap, "--topic", TOPIC, "--from-beginning")
    printed = kafka_tool(
        CONSUMER, *asked, "--isolation-level", "read_committed", "--max-messages", str(len(committed))
    )
    assert printed.splitlines() == committed
