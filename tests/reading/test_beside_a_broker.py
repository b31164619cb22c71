"""Transactions of a real client in a running broker's two log directories, read in place: also after
the broker was stopped or killed.

With MPBROKER_TEST_BROKER=kafka it is Apache Kafka, read after it was stopped or killed; its directories have
to be named all, since it keeps no list of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from ops.bench.brokers import MPBROKER_COMMAND, Broker, Kafka, Mpbroker
from tests.support.polling import PATIENCE_S, until
from tests.support.reading_queries import UNCOMMITTED, read
from tests.support.real_brokers import create_topic, served

IS_KAFKA = os.environ.get("MPBROKER_TEST_BROKER") == "kafka"
PARTITIONS = 4
BESIDE = pytest.mark.skipif(IS_KAFKA, reason="Apache Kafka publishes nothing outside of its own process")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("broker")


@pytest.fixture(scope="module")
def log_dirs(directory: Path) -> list[Path]:
    return [directory / "one", directory / "two"]


@pytest.fixture(scope="module")
def broker(directory: Path, log_dirs: list[Path]) -> Iterator[Broker]:
    named = ",".join(map(str, log_dirs))
    found: Broker
    if IS_KAFKA:
        found = Kafka(directory, properties=[f"log.dirs={named}"])
    else:
        found = Mpbroker(directory, template=MPBROKER_COMMAND.replace("{log_dir}", named))
    with served(found) as running:
        yield running


@pytest.fixture(scope="module")
def written(broker: Broker) -> int:
    """Writes to every partition: plain, committed, aborted, and one transaction that stays open behind what
    is committed. How many records are committed in each.
    """
    create_topic(broker.bootstrap, "t", PARTITIONS)
    plain = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
    _write(plain, 10)
    kept = _transactional(broker, "kept")
    for ends in ("commit", "abort", "commit", "abort"):
        kept.begin_transaction()
        _write(kept, 5)
        if ends == "commit":
            kept.commit_transaction(PATIENCE_S)
        else:
            kept.abort_transaction(PATIENCE_S)
    _write(plain, 10)
    return 30


@pytest.fixture(scope="module")
def still_open(broker: Broker, written: int) -> Producer:
    """A transaction that begins behind all of it, and records of others behind its own."""
    assert written
    producer = _transactional(broker, "open")
    producer.begin_transaction()
    _write(producer, 5)
    _write(Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"}), 3)
    return producer


def _transactional(broker: Broker, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    producer.init_transactions(PATIENCE_S)
    return producer


def _write(producer: Producer, count: int) -> None:
    """Write so many records to each partition."""
    for number in range(count * PARTITIONS):
        producer.produce("t", b"value", partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0


@BESIDE
@pytest.mark.usefixtures("still_open")
def test_committed_records_of_all_directories(log_dirs: list[Path], written: int) -> None:
    """A transaction's markers come a moment after its end was acknowledged."""
    wanted = PARTITIONS * written
    for log_dir in log_dirs:
        until(lambda log_dir=log_dir: len(read(log_dir)) == wanted, "all that is committed")
        assert len(read(log_dir, **UNCOMMITTED)) == PARTITIONS * (20 + 20 + 5 + 3)


def has_its_end(consumer: Consumer, partition: int) -> bool:
    try:
        consumer.get_watermark_offsets(TopicPartition("t", partition), timeout=PATIENCE_S)
    except KafkaException:
        return False
    return True


@pytest.mark.usefixtures("still_open")
def test_at_rest_after_a_kill_and_after_a_stop(broker: Broker, log_dirs: list[Path], written: int) -> None:
    """A kill leaves a checkpoint that is behind; nothing that was aborted or open may come all the same."""
    named = ",".join(map(str, log_dirs)) if IS_KAFKA else log_dirs[0]
    broker.kill()
    assert len(read(named)) <= PARTITIONS * written
    broker.start()
    # A broker that is stopped before it has opened its partitions has nothing to checkpoint.
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none"})
    for partition in range(PARTITIONS):
        until(partial(has_its_end, consumer, partition), "a partition is served")
    consumer.close()
    broker.stop()
    assert len(read(named)) == PARTITIONS * written
    assert len(read(named, **UNCOMMITTED)) == PARTITIONS * (20 + 20 + 5 + 3)
