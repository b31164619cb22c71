"""What a broker has for those that look at it: a topic with records, a group behind its end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from mpbroker.testing import Broker
from tests.support.group_members import commit

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
    commit(broker.bootstrap_servers, "billing", "orders", {1: COMMITTED})
