"""What readers of transactions get, and what a group has committed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from ops.bench.brokers import Broker
from tests.support.client_tools import eventually
from tests.support.polling import PATIENCE_S

Values = dict[int, list[str]]
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


def consumer_of(bootstrap: str, isolation: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": isolation,
            # Where records are deleted.
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 5,
            "check.crcs": True,
            "log_level": 0,
        }
    )


def messages(
    bootstrap: str, topic: str, partitions: Iterable[int], isolation: str = COMMITTED
) -> list[Message]:
    """To the end of each partition as it is for such a reader now."""
    found: list[Message] = []
    open_ends = set(partitions)
    with closing(consumer_of(bootstrap, isolation)) as consumer:
        # From 0 on: librdkafka takes half a second to ask where the beginning is.
        consumer.assign([TopicPartition(topic, each, 0) for each in open_ends])
        while open_ends:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"{topic}: {len(found)} records and no end of {open_ends}"
            error = message.error()
            if error is None:
                found.append(message)
                continue
            assert error.code() == KafkaError._PARTITION_EOF, error
            open_ends.discard(message.partition() or 0)
    return found


def read(broker: Broker, topic: str, partitions: int = 1, isolation: str = COMMITTED) -> Values:
    """Return the values of each partition; nothing of those that are empty."""
    values: Values = {}
    for message in messages(broker.bootstrap, topic, range(partitions), isolation):
        values.setdefault(message.partition() or 0, []).append((message.value() or b"").decode())
    return values


def ends(broker: Broker, topic: str, partition: int = 0) -> tuple[int, int]:
    """The last stable offset and the high watermark."""
    found = []
    for isolation in (COMMITTED, UNCOMMITTED):
        with closing(consumer_of(broker.bootstrap, isolation)) as consumer:
            found.append(consumer.get_watermark_offsets(TopicPartition(topic, partition), PATIENCE_S)[1])
    return found[0], found[1]


def commit_offset(broker: Broker, group: str, place: TopicPartition) -> None:
    """Commit for a group without members; a coordinator that is not there yet is waited for."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})

    def is_committed() -> bool:
        try:
            consumer.commit(offsets=[place], asynchronous=False)
        except KafkaException:
            return False
        return True

    eventually(is_committed, f"{group} has committed {place}")
    consumer.close()


def offset_of(broker: Broker, group: str, topic: str, partition: int = 0) -> int | None:
    """Return what the group has committed, whatever is pending."""
    return offsets_of(broker, group, topic, [partition])[0]


def offsets_of(broker: Broker, group: str, topic: str, partitions: Sequence[int]) -> list[int | None]:
    found = _committed(broker, group, topic, partitions, is_stable=False)
    return [None if each.offset < 0 else each.offset for each in found]


def is_pending(broker: Broker, group: str, topic: str, partition: int = 0) -> bool:
    """Tell whether somebody who asks for stable offsets is told to come back."""
    try:
        (found,) = _committed(broker, group, topic, [partition], is_stable=True)
    except KafkaException as raised:
        error: KafkaError = raised.args[0]
        assert error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT, error
        return True
    error_of = found.error
    assert error_of is None or error_of.code() == KafkaError.UNSTABLE_OFFSET_COMMIT, error_of
    return error_of is not None


def _committed(
    broker: Broker, group: str, topic: str, partitions: Sequence[int], *, is_stable: bool
) -> list[TopicPartition]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    asked = confluent_kafka.ConsumerGroupTopicPartitions(
        group, [TopicPartition(topic, each) for each in partitions]
    )
    answers = admin.list_consumer_group_offsets([asked], require_stable=is_stable, request_timeout=PATIENCE_S)
    found: list[TopicPartition] = answers[group].result(PATIENCE_S).topic_partitions
    return found
