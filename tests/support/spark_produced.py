"""Topics of a running broker, filled and read by librdkafka; records tell their number."""

from __future__ import annotations

from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ops.bench.brokers import Broker
from tests.support.committed_offsets import messages
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
    """Return all committed records, of each partition in their order."""
    topics = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=PATIENCE_S).topics
    return messages(broker.bootstrap, topic, topics[topic].partitions if topic in topics else ())
