"""What a broker has for those that look at it: a topic with records, a group behind its end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from mpbroker.testing import Broker

RECORDS = 10
COMMITTED = 4


@pytest.fixture
def filled_broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A broker of one's own with what `fill` leaves in it."""
    monkeypatch.delenv("MPBROKER_RUNTIME_DIR", raising=False)
    with Broker() as broker:
        fill(broker)
        yield broker


def fill(broker: Broker) -> None:
    """Topic `orders` with two partitions; group `billing` has committed offset 4 of 10 in the second."""
    broker.create_topic("orders", partitions=2)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for _ in range(RECORDS):
        producer.produce("orders", b"x" * 100, partition=1)
    assert producer.flush(30) == 0
    commit(broker, "billing", TopicPartition("orders", 1, COMMITTED))


def commit(broker: Broker, group: str, *offsets: TopicPartition) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    try:
        consumer.commit(offsets=list(offsets), asynchronous=False)
    finally:
        consumer.close()
