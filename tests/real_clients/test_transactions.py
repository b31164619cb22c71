"""Transactions with every client that has them: what readers see, and when, and who may still write.

The tests state what Apache Kafka does, so they run against it, too.
"""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from ops.bench.brokers import Broker
from tests.support.client_adapters import Franz
from tests.support.client_tools import eventually
from tests.support.committed_offsets import UNCOMMITTED, ends, is_pending, offset_of, read
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import TRANSACTIONS, TopicMaker
from tests.support.transactional_clients import (
    CLIENTS,
    GENERATIONS,
    IN_PYTHON,
    WITH_OFFSETS,
    Fenced,
    Open,
    Refused,
    commits,
    sends,
)

BROKER_SETTINGS = TRANSACTIONS
TIMEOUT_MS = 1000


@pytest.fixture(name="name")
def _name(request: pytest.FixtureRequest) -> str:
    """A transactional id or a group of this test alone."""
    return str(request.node.name)


@pytest.mark.parametrize("client", CLIENTS, indirect=True)
def test_a_transaction_is_seen_whole_and_not_before_its_end(
    broker: Broker, new_topic: TopicMaker, client: Open, name: str
) -> None:
    topics = [new_topic(2), new_topic(2)]
    producer = client(broker.bootstrap, name)
    seen: dict[int, list[str]] = {0: [], 1: []}
    for number, is_committed in enumerate((True, False, True)):
        values = [f"{number}.{each}" for each in range(3)]
        before = {partition: list(of_it) for partition, of_it in seen.items()}
        producer.begin()
        for topic in topics:
            for partition in (0, 1):
                sends(producer, topic, *values, partition=partition)
                if is_committed:
                    seen[partition] += values * (topic == topics[0])
        for topic in topics:
            everything = read(broker, topic, 2, UNCOMMITTED)
            assert [of_it[-3:] for of_it in everything.values()] == [values, values]
            assert read(broker, topic, 2) == {k: v for k, v in before.items() if v}
        producer.commit() if is_committed else producer.abort()
        for topic in topics:
            eventually(lambda topic=topic: len({*ends(broker, topic), *ends(broker, topic, 1)}) == 1, topic)  # type: ignore[misc]
            assert read(broker, topic, 2) == seen
    producer.close()


@pytest.mark.parametrize("client", WITH_OFFSETS, indirect=True)
def test_offsets_come_and_go_with_their_transaction(
    broker: Broker, new_topic: TopicMaker, client: Open, name: str
) -> None:
    source, target = new_topic(1), new_topic(1)
    producer = client(broker.bootstrap, name)
    committed: int | None = None
    for number, is_committed in ((5, True), (9, False), (3, True), (4, False)):
        producer.begin()
        sends(producer, target, str(number))
        producer.offsets(name, source, 0, number)
        assert offset_of(broker, name, source) == committed
        assert is_pending(broker, name, source)
        if is_committed:
            producer.commit()
            committed = number
        else:
            producer.abort()
        eventually(lambda: not is_pending(broker, name, source), "the transaction is at its end")
        assert offset_of(broker, name, source) == committed
    assert read(broker, target) == {0: ["5", "3"]}
    producer.close()


@pytest.mark.parametrize("client", GENERATIONS, indirect=True)
def test_a_transaction_may_be_of_offsets_alone(
    broker: Broker, new_topic: TopicMaker, client: Open, name: str
) -> None:
    topic = new_topic(1)
    producer = client(broker.bootstrap, name)
    producer.begin()
    for number in (1, 2):
        producer.offsets(name, topic, 0, number)
        producer.offsets(f"{name}-other", topic, 0, number)
    producer.commit()
    for group in (name, f"{name}-other"):
        eventually(lambda group=group: offset_of(broker, group, topic) == 2, "it is committed")  # type: ignore[misc]
    producer.close()


@pytest.mark.parametrize("client", CLIENTS, indirect=True)
def test_the_younger_producer_of_an_id_fences_the_older(
    broker: Broker, new_topic: TopicMaker, client: Open, name: str
) -> None:
    """Also where the older one has a transaction, which is aborted."""
    topic = new_topic(1)
    old = client(broker.bootstrap, name)
    commits(old, topic, "old")
    old.begin()
    sends(old, topic, "orphaned")
    young = client(broker.bootstrap, name)
    assert len({*ends(broker, topic)}) == 1
    commits(young, topic, "young")
    with pytest.raises(Fenced):
        old.commit()
    commits(young, topic, "later")
    eventually(lambda: read(broker, topic) == {0: ["old", "young", "later"]}, "those are seen")
    assert read(broker, topic, 1, UNCOMMITTED) == {0: ["old", "orphaned", "young", "later"]}
    old.close()
    young.close()


@pytest.mark.parametrize("client", GENERATIONS, indirect=True)
def test_a_transaction_that_nobody_ends_is_aborted_in_time(
    broker: Broker, new_topic: TopicMaker, client: Open, name: str
) -> None:
    topic, source = new_topic(1), new_topic(1)
    left = client(broker.bootstrap, name, TIMEOUT_MS)
    left.begin()
    sends(left, topic, "left")
    left.offsets(name, source, 0, 7)
    other = client(broker.bootstrap, f"{name}-other")
    commits(other, topic, "other")
    eventually(lambda: read(broker, topic) == {0: ["other"]}, "readers go on")
    eventually(lambda: not is_pending(broker, name, source), "its offsets are gone")
    assert offset_of(broker, name, source) is None
    with pytest.raises((Fenced, Refused)):
        left.commit()
    left.close()
    again = client(broker.bootstrap, name)
    commits(again, topic, "again")
    eventually(lambda: read(broker, topic) == {0: ["other", "again"]}, "its successor goes on")
    other.close()
    again.close()


@pytest.mark.parametrize("client", GENERATIONS, indirect=True)
def test_a_topic_is_deleted_beneath_a_transaction(
    broker: Broker, new_topic: TopicMaker, client: Open, name: str
) -> None:
    """What is left of the transaction is committed, and its producer goes on."""
    kept, deleted = new_topic(1), new_topic(1)
    producer = client(broker.bootstrap, name)
    producer.begin()
    for topic in (kept, deleted):
        sends(producer, topic, "before")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([deleted])[deleted].result(PATIENCE_S)
    producer.commit()
    commits(producer, kept, "after")
    eventually(lambda: read(broker, kept) == {0: ["before", "after"]}, "both are seen")
    producer.close()


def test_a_franz_go_session_copies_exactly_once(
    broker: Broker, new_topic: TopicMaker, franz: Franz, name: str
) -> None:
    """Consume, transform, produce, as a member of a group; every third transaction is aborted."""
    source, target, count = new_topic(2), new_topic(2), 80
    writer = IN_PYTHON["confluent"](broker.bootstrap, f"{name}-writer")
    writer.begin()
    for number in range(count):
        writer.send(source, number % 2, str(number))
    writer.commit()
    asked = (broker.bootstrap, name, name, source, target, str(count))
    assert int(franz.run("pipe", *asked)) > 0
    eventually(lambda: read(broker, target, 2) == read(broker, source, 2), "all is copied")
    # And the marker of the writer's commit.
    eventually(lambda: offset_of(broker, name, source) in (count // 2, count // 2 + 1), "with its offsets")
    writer.close()
