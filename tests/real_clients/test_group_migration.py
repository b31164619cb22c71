"""Groups are rolled from the classic protocol to the consumer protocol and back, one client at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import kafka
import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from ops.bench.brokers import Broker
from tests.support.client_adapters import confluent_write
from tests.support.client_samples import sample_records
from tests.support.group_members import QUICK
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import TopicMaker

BROKER_SETTINGS = {"group.initial.rebalance.delay.ms": "0", **QUICK}
PARTITIONS = 6
# Long enough for a loaded machine. Clients say when they leave.
SESSION_MS = 45_000


class Member(Protocol):
    def poll(self) -> list[tuple[int, int]]:
        """Return the partition and offset of records that it got."""

    def assigned(self) -> set[int]:
        """Return the partitions that it has."""

    def close(self) -> None: ...


class Confluent:
    def __init__(self, broker: Broker, topic: str, **settings: Any) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": topic,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": True,
                **settings,
            }
        )
        self.consumer.subscribe([topic])

    def poll(self) -> list[tuple[int, int]]:
        message = self.consumer.poll(0.02)
        if message is None:
            return []
        assert message.error() is None, message.error()
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        return [(partition, offset)]

    def assigned(self) -> set[int]:
        return {one.partition for one in self.consumer.assignment()}

    def close(self) -> None:
        self.consumer.close()


def eager(broker: Broker, topic: str) -> Member:
    settings = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 100}
    return Confluent(broker, topic, **settings, **{"partition.assignment.strategy": "range"})


def cooperative(broker: Broker, topic: str) -> Member:
    settings = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 100}
    return Confluent(broker, topic, **settings, **{"partition.assignment.strategy": "cooperative-sticky"})


def consumer(broker: Broker, topic: str) -> Member:
    return Confluent(broker, topic, **{"group.protocol": "consumer"})


class KafkaPython:
    def __init__(self, broker: Broker, topic: str) -> None:
        self.consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            group_id=topic,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=100,
        )

    def poll(self) -> list[tuple[int, int]]:
        found = self.consumer.poll(20)
        return [(one.partition, one.offset) for records in found.values() for one in records]

    def assigned(self) -> set[int]:
        return {one.partition for one in self.consumer.assignment()}

    def close(self) -> None:
        self.consumer.close()


@pytest.mark.parametrize("classic", [eager, cooperative, KafkaPython])
def test_three_clients_are_rolled_there_and_back(
    broker: Broker,
    new_topic: TopicMaker,
    classic: Callable[[Broker, str], Member],
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, admin = new_topic(PARTITIONS), AdminClient({"bootstrap.servers": broker.bootstrap})
    kinds: list[str] = []
    written = 0
    got: dict[tuple[int, int], int] = {}
    members = [classic(broker, topic) for _ in range(3)]

    def listed() -> tuple[str, str]:
        """The type and state of the group."""
        found = admin.list_consumer_groups().result().valid
        return next((one.type.name, one.state.name) for one in found or () if one.group_id == topic)

    def settle() -> None:
        """Write to the partitions, and poll until all has been read and the group is at rest."""
        nonlocal written
        confluent_write(broker.bootstrap, topic, sample_records(PARTITIONS, 20, seed=written), "none")
        written += 20
        deadline = time.monotonic() + PATIENCE_S
        while not (len(got) >= written and is_divided(members) and listed()[1] == "STABLE"):
            assert time.monotonic() < deadline, (len(got), written, [one.assigned() for one in members])
            for member in members:
                for place in member.poll():
                    got[place] = got.get(place, 0) + 1
        kinds.append(listed()[0])

    try:
        settle()
        for make in (consumer, classic):
            for index in range(3):
                members[index].close()
                members[index] = make(broker, topic)
                settle()
        assert kinds == ["CLASSIC", *["CONSUMER"] * 5, "CLASSIC"]
        # kafka-python says so if its commit before a rebalance took longer than a poll.
        if "Pre-rebalance offset commit failed" not in caplog.text:
            assert set(got.values()) == {1}, "clients that leave commit, so nothing is read twice"
    finally:
        for member in members:
            member.close()


def is_divided(members: Sequence[Member]) -> bool:
    shares = [member.assigned() for member in members]
    return all(shares) and sorted(one for share in shares for one in share) == list(range(PARTITIONS))
