"""librdkafka through confluent-kafka, beyond what all clients do: refusals, settings, limits, waiting."""

from collections.abc import Iterator

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from ops.bench.brokers import Broker
from tests.support import client_adapters
from tests.support.client_adapters import confluent_write
from tests.support.client_samples import CREATE_TIME_MS, Record, by_partition, sample_records, stored_in
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import TopicMaker

TIMEOUT_S = PATIENCE_S
WAIT_MS = 2_000 * PATIENCE_S


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def error_of(raised: pytest.ExceptionInfo[KafkaException]) -> int:
    error: KafkaError = raised.value.args[0]
    return error.code()


def delivery_error(broker: Broker, topic: str, value: bytes, **settings: object) -> KafkaError | None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", **settings})
    seen: list[KafkaError | None] = []

    def note(error: KafkaError | None, _: Message) -> None:
        seen.append(error)

    producer.produce(topic, value, partition=0, on_delivery=note)
    assert producer.flush(TIMEOUT_S) == 0
    return seen[0]


def test_a_name_used_again_begins_anew(broker: Broker, admin: AdminClient, new_topic: TopicMaker) -> None:
    topic = new_topic(1)
    confluent_write(broker.bootstrap, topic, sample_records(1, 20, seed=1), "none")
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(TIMEOUT_S)
    records = sample_records(1, 5, seed=2)
    assert confluent_write(broker.bootstrap, topic, records, "none") == [0, 1, 2, 3, 4]
    assert by_partition(client_adapters.confluent_read(broker.bootstrap, topic, 1, 5)) == stored_in(records)


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (NewTopic("bad/name", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("no-partitions", 0, 1), KafkaError.INVALID_PARTITIONS),
        (NewTopic("three-replicas", 1, 3), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic("bad-value", 1, 1, config={"retention.ms": "soon"}), KafkaError.INVALID_CONFIG),
        (NewTopic("unknown-key", 1, 1, config={"no.such.key": "1"}), KafkaError.INVALID_CONFIG),
    ],
    ids=lambda value: value.topic if isinstance(value, NewTopic) else None,
)
def test_a_topic_that_cannot_be_is_refused(admin: AdminClient, topic: NewTopic, error: int) -> None:
    with pytest.raises(KafkaException) as raised:
        admin.create_topics([topic])[topic.topic].result(TIMEOUT_S)
    assert error_of(raised) == error


def test_topic_configs_are_described(admin: AdminClient, new_topic: TopicMaker) -> None:
    topic = new_topic(1, config={"segment.bytes": "1048576", "cleanup.policy": "compact"})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    configs = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    assert configs["segment.bytes"].value == "1048576"
    assert not configs["segment.bytes"].is_default
    assert configs["cleanup.policy"].value == "compact"
    assert configs["retention.ms"].value == "604800000"
    assert configs["retention.ms"].is_default


def test_the_cluster_is_described(admin: AdminClient, broker: Broker) -> None:
    cluster = admin.describe_cluster().result(TIMEOUT_S)
    assert cluster.cluster_id
    assert [(node.host, node.port) for node in cluster.nodes] == [broker.address]
    assert cluster.controller is not None
    assert cluster.controller.id == cluster.nodes[0].id


def test_offsets_by_times_that_no_record_has(
    broker: Broker, admin: AdminClient, new_topic: TopicMaker
) -> None:
    topic = new_topic(1)
    records = [Record(0, None, b"%d" % n, (), CREATE_TIME_MS + 10 * n) for n in range(50)]
    for start in range(0, 50, 10):
        confluent_write(broker.bootstrap, topic, records[start : start + 10], "none")
    partition = TopicPartition(topic, 0)

    def offset(spec: OffsetSpec) -> int:
        return admin.list_offsets({partition: spec})[partition].result(TIMEOUT_S).offset

    assert offset(OffsetSpec.for_timestamp(CREATE_TIME_MS + 10 * 23)) == 23
    assert offset(OffsetSpec.for_timestamp(CREATE_TIME_MS + 10 * 23 + 1)) == 24
    assert offset(OffsetSpec.for_timestamp(CREATE_TIME_MS - 5)) == 0
    assert offset(OffsetSpec.for_timestamp(CREATE_TIME_MS + 10_000)) == -1
    assert offset(OffsetSpec.max_timestamp()) == 49


def test_a_too_large_record_is_refused_and_the_next_one_is_taken(
    broker: Broker, new_topic: TopicMaker
) -> None:
    topic = new_topic(1, config={"max.message.bytes": "10000"})
    error = delivery_error(broker, topic, b"x" * 20_000)
    assert error is not None
    assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert delivery_error(broker, topic, b"x" * 9_000) is None


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_ack(broker: Broker, new_topic: TopicMaker, acks: str) -> None:
    topic = new_topic(1)
    assert delivery_error(broker, topic, b"value", acks=acks) is None
    (stored,) = client_adapters.confluent_read(broker.bootstrap, topic, 1, 1)
    assert stored.record.value == b"value"


@pytest.fixture
def waiting_consumer(broker: Broker, new_topic: TopicMaker) -> Iterator[tuple[Consumer, str]]:
    """A consumer whose fetch waits at the end of an empty topic. It is told where that is: one that asks
    could be answered after the record has come, and wait behind it.
    """
    topic = new_topic(1)
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "unused", "enable.auto.commit": False}
    waits = {"fetch.wait.max.ms": WAIT_MS, "socket.timeout.ms": WAIT_MS + 10_000}
    consumer = Consumer({**settings, **waits})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(1.0) is None
    yield consumer, topic
    consumer.close()


def test_a_waiting_fetch_is_answered_when_a_record_comes(
    broker: Broker, waiting_consumer: tuple[Consumer, str]
) -> None:
    """Not when its time is over, which is longer than the test waits."""
    consumer, topic = waiting_consumer
    confluent_write(broker.bootstrap, topic, [Record(0, None, b"now", (), CREATE_TIME_MS)], "none")
    message = consumer.poll(PATIENCE_S)
    assert message is not None, f"no record within {PATIENCE_S} s"
    assert message.value() == b"now"
