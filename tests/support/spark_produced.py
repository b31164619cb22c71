"""Topics of a running broker, filled and read by librdkafka; records tell their number."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ops.bench.brokers import Broker
from tests.support.polling import PATIENCE_S

PARTITIONS = 3
AT = 1_700_000_000_000


def make_topic(broker: Broker, topic: str, partitions: int = PARTITIONS) -> None:
    # The futures die with the client.
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE_S)


def produce(broker: Broker, topic: str, numbers: range, codec: str = "none") -> None:
    """Returns when all are acknowledged. Partitions take turns."""
    failed: list[object] = []
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "acks": "all", "compression.type": codec, "linger.ms": 5}
    )
    for number in numbers:
        producer.produce(
            topic,
            b"value %d" % number,
            b"%d" % number,
            partition=number % PARTITIONS,
            timestamp=AT + number,
            headers=[("n", b"%d" % number)] if number % 2 else None,
            on_delivery=lambda error, _message: failed.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert failed == []


def records(broker: Broker, topic: str) -> list[Message]:
    """Return all committed records, partition after partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": "true",
        }
    )
    found = []
    try:
        partitions = consumer.list_topics(topic, PATIENCE_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        waiting = len(partitions)
        while waiting:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"{waiting} partitions of {topic} have not ended"
            error = message.error()
            if error is None:
                found.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                waiting -= 1
    finally:
        consumer.close()
    return found
