"""kafka-python and aiokafka beyond the round trip: offsets, positions, administration, discovery."""

import asyncio

import aiokafka
import kafka
import pytest
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import TopicAlreadyExistsError

from ops.bench.brokers import Broker
from tests.support.client_adapters import READ_TIMEOUT_S, confluent_write
from tests.support.client_samples import CREATE_TIME_MS, Record
from tests.support.client_tools import eventually
from tests.support.real_brokers import TopicMaker

RECORDS = [Record(0, None, b"%d" % number, (), CREATE_TIME_MS + number) for number in range(30)]


@pytest.fixture
def numbers(broker: Broker, new_topic: TopicMaker) -> str:
    """A topic that holds RECORDS."""
    topic = new_topic(2)
    confluent_write(broker.bootstrap, topic, RECORDS, "none")
    return topic


def test_kafka_python_knows_topics_and_offsets(broker: Broker, numbers: str) -> None:
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=None)
    try:
        first, second = kafka.TopicPartition(numbers, 0), kafka.TopicPartition(numbers, 1)
        assert numbers in consumer.topics()
        assert consumer.partitions_for_topic(numbers) == {0, 1}
        assert consumer.beginning_offsets([first, second]) == {first: 0, second: 0}
        assert consumer.end_offsets([first, second]) == {first: 30, second: 0}
        by_time = consumer.offsets_for_times({first: CREATE_TIME_MS + 12})
        assert (by_time[first].offset, by_time[first].timestamp) == (12, CREATE_TIME_MS + 12)
        consumer.assign([first])
        consumer.seek(first, 25)
        assert next(consumer).value == b"25"
        assert consumer.position(first) == 26
    finally:
        consumer.close()


def test_kafka_python_creates_and_deletes_topics(broker: Broker) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        wanted = NewTopic("by-kafka-python", num_partitions=2, replication_factor=1)
        admin.create_topics([wanted])
        eventually(lambda: "by-kafka-python" in admin.list_topics(), "a new topic is listed")
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics([wanted])
        admin.delete_topics(["by-kafka-python"])
        eventually(lambda: "by-kafka-python" not in admin.list_topics(), "a deleted topic is not listed")
    finally:
        admin.close()


async def _offsets_and_seek(bootstrap: str, topic: str) -> None:
    first = aiokafka.TopicPartition(topic, 0)
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
    await consumer.start()
    try:
        assert await consumer.beginning_offsets([first]) == {first: 0}
        assert await consumer.end_offsets([first]) == {first: 30}
        consumer.assign([first])
        consumer.seek(first, 28)
        got = [await asyncio.wait_for(consumer.getone(), READ_TIMEOUT_S) for _ in range(2)]
        assert [message.value for message in got] == [b"28", b"29"]
    finally:
        await consumer.stop()


def test_aiokafka_knows_offsets_and_seeks(broker: Broker, numbers: str) -> None:
    asyncio.run(_offsets_and_seek(broker.bootstrap, numbers))


async def _idempotent_values(bootstrap: str, topic: str) -> list[int]:
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
    await producer.start()
    try:
        sent = [await producer.send(topic, b"%d" % number, partition=0) for number in range(50)]
        return [(await asyncio.wait_for(future, READ_TIMEOUT_S)).offset for future in sent]
    finally:
        await producer.stop()


def test_aiokafka_writes_idempotently(broker: Broker, new_topic: TopicMaker) -> None:
    assert asyncio.run(_idempotent_values(broker.bootstrap, new_topic(1))) == list(range(50))
