"""Topics that change between plan and task, on a broker; MPBROKER_TEST_BROKER=kafka: on Apache Kafka."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from mpbroker.protocol.errors import ErrorCode
from mpbroker.reading.errors import DataLoss, OptionError
from mpbroker.reading.follow import RemoteFollower, follow
from mpbroker.reading.options import parse_options
from ops.bench.brokers import Broker
from tests.support.client_tools import eventually
from tests.support.kafka_server import HangUp, KafkaServer
from tests.support.polling import PATIENCE_S
from tests.support.reading_rows import planned, rows_of, rows_with
from tests.support.real_brokers import create_topic


def produce(broker: Broker, topic: str, value: bytes, count: int, partitions: int = 1) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(count):
        producer.produce(topic, value, partition=number % partitions)
    assert producer.flush(PATIENCE_S) == 0


def make_anew(broker: Broker, topic: str) -> None:
    """Deletes a topic and makes one of the same name, as soon as the broker takes it."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic])[topic].result(PATIENCE_S)

    def is_made() -> bool:
        try:
            create_topic(broker.bootstrap, topic, 1)
        except KafkaException:
            return False
        return True

    eventually(is_made, f"{topic} is made anew")


def test_a_topic_that_was_made_anew_is_data_loss(broker: Broker) -> None:
    create_topic(broker.bootstrap, "anew", 1)
    produce(broker, "anew", b"old", 50)
    where = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "anew"}
    tasks, options = planned(**where)
    careless = planned(**where, failOnDataLoss=False)
    assert tasks[0].topic_id is not None
    assert len(rows_of(tasks, options)) == 50
    make_anew(broker, "anew")
    # As long as the old one, so that no offset tells them apart.
    produce(broker, "anew", b"new", 80)
    with pytest.raises(DataLoss, match="topic anew was deleted since the query was planned"):
        rows_of(tasks, options)
    assert rows_of(*careless) == []
    assert {row["value"] for row in rows_with(**where)} == {b"new"}


def test_patterns_see_what_a_consumer_sees(broker: Broker) -> None:
    create_topic(broker.bootstrap, "__named-so", 1)
    create_topic(broker.bootstrap, "Named-so", 1)
    for topic in ("__named-so", "Named-so"):
        produce(broker, topic, topic.encode(), 1)
    where = {"kafka.bootstrap.servers": broker.bootstrap}
    found = rows_with(**where, subscribePattern=r"(?:__)?\p{Alpha}++-so|__consumer_offsets|__transaction_.*")
    assert {row["topic"] for row in found} == {"__named-so", "Named-so"}


def test_a_start_behind_the_end(broker: Broker) -> None:
    create_topic(broker.bootstrap, "edges", 1)
    produce(broker, "edges", b"", 20)
    where = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "edges"}
    with pytest.raises(OptionError, match="start offset 15 is greater than the resolved end offset 0 "):
        planned(**where, startingOffsets='{"edges":{"0":15}}', endingTimestamp=1)
    with pytest.raises(DataLoss, match="up to offset 25 of edges-0"):
        planned(**where, startingOffsets='{"edges":{"0":25}}')
    assert planned(**where, startingOffsets='{"edges":{"0":20}}')[0] == []
    careless = {"startingOffsets": '{"edges":{"0":5}}', "endingOffsets": '{"edges":{"0":99}}'}
    assert len(rows_with(**where, **careless, failOnDataLoss=False)) == 15


def test_each_record_of_many_partitions_comes_once(broker: Broker) -> None:
    create_topic(broker.bootstrap, "wide", 100)
    produce(broker, "wide", b"v", 300, partitions=100)
    where = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "wide"}
    tasks, options = planned(**where, minPartitions=150)
    assert len(tasks) in range(100, 301)
    found = rows_of(tasks, options)
    assert len({(row["partition"], row["offset"]) for row in found}) == len(found) == 300


def test_who_follows_waits_at_the_broker_after_a_while(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch waits for the next record, a timeout says that there was none, and old records wake nobody."""
    create_topic(broker.bootstrap, "followed", 2)
    produce(broker, "followed", b"v", 10, partitions=2)
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "followed"}
    follower = follow(parse_options(given, streaming=True))
    assert isinstance(follower, RemoteFollower)
    with closing(follower):
        ends = {one: bounds.end for one, bounds in follower.poll().items()}
        assert ends == {("followed", 0): 5, ("followed", 1): 5}
        assert follower.catalog.await_records(ends, 0.01) is False
        assert follower.catalog.await_records({**ends, ("followed", 1): 4}, PATIENCE_S) is True
        assert follower.catalog.await_records({**ends, ("nowhere", 0): 0}, PATIENCE_S) is None
        monkeypatch.setattr(follower, "_stirred_at", -60.0)
        follower.wait(0.01)
        waiting = threading.Thread(target=follower.wait, args=(10 * PATIENCE_S,))
        monkeypatch.setattr(follower, "_stirred_at", -60.0)
        waiting.start()
        produce(broker, "followed", b"v", 1)
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive()
        assert sum(bounds.end for bounds in follower.poll().values()) == 11


def test_a_fetch_that_waits_and_fails_leads_to_a_look() -> None:
    def hang_up(_nth: int, _offset: int) -> ErrorCode | None:
        raise HangUp

    with KafkaServer("t", [(0, 5, b"")]) as server:
        given = {"kafka.bootstrap.servers": server.address, "subscribe": "t"}
        follower = follow(parse_options(given, streaming=True))
        assert isinstance(follower, RemoteFollower)
        with closing(follower):
            ends = {one: bounds.end for one, bounds in follower.poll().items()}
            server.fault = lambda _nth, _offset: ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert follower.catalog.await_records(ends, 0.01) is True
            server.fault = hang_up
            assert follower.catalog.await_records(ends, 0.01) is True
