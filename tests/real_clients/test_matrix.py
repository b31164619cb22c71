"""What consumers, producers and administrators do: each scenario once, with every client that differs in it.

Clients stand behind the same calls in `tests/support/client_adapters.py`. Transactions have their scenarios
in `test_transactions.py`, logins in `tests/security/test_foreign_logins.py`.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import closing

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from ops.bench.brokers import Broker
from tests.support import client_adapters as clients
from tests.support.client_samples import (
    CREATE_TIME_MS,
    Record,
    Stored,
    by_partition,
    expected_offsets,
    sample_records,
    stored_in,
)
from tests.support.client_tools import dump, eventually, kafka_tool
from tests.support.committed_offsets import offset_of
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import TopicMaker, create_topic, stop_cleanly

PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
PARTITIONS, COUNT = 3, 60


@pytest.mark.parametrize("writer", [*clients.WRITERS, "franz"], indirect=True)
def test_what_is_written_is_acked_with_its_offset_and_stored(
    broker: Broker, new_topic: TopicMaker, writer: clients.Writer
) -> None:
    """Byte for byte, with all that belongs to a record, in each codec."""
    topic, written = new_topic(PARTITIONS), list[Record]()
    for seed, codec in enumerate(clients.CODECS):
        records = sample_records(PARTITIONS, COUNT, seed)
        acked = writer(broker.bootstrap, topic, records, codec)
        written += records
        assert acked == expected_offsets(written)[-COUNT:], codec
    assert by_partition(
        clients.confluent_read(broker.bootstrap, topic, PARTITIONS, len(written))
    ) == stored_in(written)


@pytest.fixture(name="stored", scope="module")
def _stored(broker: Broker) -> dict[int, list[Stored]]:
    """What topic `stored` holds: batches of each codec, and a record of nothing, which Kafka stores, too."""
    create_topic(broker.bootstrap, "stored", PARTITIONS)
    records = list[Record]()
    for seed, codec in enumerate(clients.CODECS):
        more = sample_records(PARTITIONS, COUNT, seed + 10)
        clients.confluent_write(broker.bootstrap, "stored", more, codec, {"linger.ms": 20})
        records += more
    nothing = [Record(0, None, None, (), CREATE_TIME_MS)]
    clients.confluent_write(broker.bootstrap, "stored", nothing, "none")
    return stored_in(records + nothing)


@pytest.mark.parametrize("reader", [*clients.READERS, "franz"], indirect=True)
def test_every_client_reads_the_same(
    broker: Broker, stored: dict[int, list[Stored]], reader: clients.Reader
) -> None:
    count = sum(map(len, stored.values()))
    assert by_partition(reader(broker.bootstrap, "stored", PARTITIONS, count)) == stored


def test_the_java_producer_with_its_default_settings(broker: Broker, new_topic: TopicMaker) -> None:
    """It is idempotent unless told otherwise, and has several requests under way."""
    topic, count = new_topic(2), 10_000
    load = ("--topic", topic, "--num-records", str(count), "--record-size", "100", "--throughput", "-1")
    printed = kafka_tool(PERFORMANCE, "--bootstrap-server", broker.bootstrap, *load)
    assert f"{count} records sent" in printed
    for each in by_partition(clients.confluent_read(broker.bootstrap, topic, 2, count)).values():
        assert [one.offset for one in each] == list(range(len(each)))
        assert all(len(one.record.value or b"") == 100 for one in each)


@pytest.fixture(name="numbers", scope="module")
def _numbers(broker: Broker) -> str:
    """A topic with 30 records in its first partition, which say their offsets, and none in its second."""
    create_topic(broker.bootstrap, "numbers", 2)
    records = [Record(0, None, b"%d" % number, (), CREATE_TIME_MS + 10 * number) for number in range(30)]
    for start in range(0, 30, 10):
        clients.confluent_write(broker.bootstrap, "numbers", records[start : start + 10], "none")
    return "numbers"


@pytest.mark.parametrize("client", clients.LOOKERS)
def test_offsets_at_both_ends_by_time_and_a_seek(broker: Broker, numbers: str, client: str) -> None:
    looked = clients.LOOKERS[client](broker.bootstrap, numbers, CREATE_TIME_MS + 120, 28)
    assert looked == clients.Looked([(0, 30), (0, 0)], 12, [b"28", b"29"])


def test_offsets_of_times_that_no_record_has(broker: Broker, numbers: str) -> None:
    admin, place = AdminClient({"bootstrap.servers": broker.bootstrap}), TopicPartition(numbers, 0)

    def offset(spec: OffsetSpec) -> int:
        return admin.list_offsets({place: spec})[place].result(PATIENCE_S).offset

    assert offset(OffsetSpec.for_timestamp(CREATE_TIME_MS + 231)) == 24
    assert offset(OffsetSpec.for_timestamp(CREATE_TIME_MS - 5)) == 0
    assert offset(OffsetSpec.for_timestamp(CREATE_TIME_MS + 10_000)) == -1
    assert offset(OffsetSpec.max_timestamp()) == 29


@pytest.mark.parametrize("client", clients.MEMBERS)
def test_a_member_goes_on_where_another_has_committed(
    broker: Broker, new_topic: TopicMaker, client: str
) -> None:
    topic = group = new_topic(1)
    for first, count in ((0, 5), (5, 3)):
        records = sample_records(1, count, seed=count)
        clients.confluent_write(broker.bootstrap, topic, records, "none", {"linger.ms": 20})
        assert clients.MEMBERS[client](broker.bootstrap, topic, group, count) == count
        assert offset_of(broker, group, topic) == first + count


@pytest.mark.parametrize("client", clients.ADMINS)
def test_a_topic_is_created_listed_and_deleted(broker: Broker, client: str) -> None:
    admin, name = clients.ADMINS[client], f"by-{client}"
    admin.create(broker.bootstrap, name, 3)
    eventually(lambda: admin.topics(broker.bootstrap).get(name) == 3, "a new topic is listed")
    with pytest.raises(Exception, match=r"(?i)already.?exists"):
        admin.create(broker.bootstrap, name, 3)
    admin.delete(broker.bootstrap, name)
    eventually(lambda: name not in admin.topics(broker.bootstrap), "a deleted topic is not listed")


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
def test_a_topic_that_cannot_be_is_refused(broker: Broker, topic: NewTopic, error: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    with pytest.raises(KafkaException) as raised:
        admin.create_topics([topic])[topic.topic].result(PATIENCE_S)
    assert raised.value.args[0].code() == error


def test_a_name_used_again_begins_anew(broker: Broker, new_topic: TopicMaker) -> None:
    topic, admin = new_topic(1), clients.ADMINS["confluent"]
    clients.confluent_write(broker.bootstrap, topic, sample_records(1, 20, seed=1), "none")
    admin.delete(broker.bootstrap, topic)
    admin.create(broker.bootstrap, topic, 1)
    records = sample_records(1, 5, seed=2)
    assert clients.confluent_write(broker.bootstrap, topic, records, "none") == [0, 1, 2, 3, 4]
    assert by_partition(clients.confluent_read(broker.bootstrap, topic, 1, 5)) == stored_in(records)


# ---- files


def test_the_written_files_are_kafkas_own(own_broker: Broker) -> None:
    """Every file of a partition with several segments, read by Kafka's tool after a clean stop."""
    create_topic(own_broker.bootstrap, "dumped", 1, {"segment.bytes": str(1 << 20)})
    records: list[Record] = []
    for seed, codec in enumerate(clients.CODECS * 2):
        batch = sample_records(1, 500, seed)
        clients.aiokafka_write(own_broker.bootstrap, "dumped", batch, codec)
        records += batch
    stored = stored_in(records)[0]
    stop_cleanly(own_broker)

    partition = own_broker.log_dir / "dumped-0"
    segments = sorted(partition.glob("*.log"))
    assert len(segments) > 1, "the topic was meant to have several segments"
    assert all(path.stat().st_size <= 1 << 20 for path in segments)

    printed = "".join(dump("--files", str(path), "--deep-iteration") for path in segments)
    assert "corrupt" not in printed.lower()
    offsets = [int(found) for found in re.findall(r"^\| offset: (\d+) ", printed, re.MULTILINE)]
    assert offsets == [each.offset for each in stored]
    times = [int(found) for found in re.findall(r"^\| offset: .*CreateTime: (\d+) ", printed, re.MULTILINE)]
    assert times == [each.record.timestamp_ms for each in stored]
    assert set(re.findall(r"compresscodec: (\w+)", printed)) == set(clients.CODECS)
    assert "isvalid: false" not in printed

    bases = {path.stem for path in segments}
    for suffix in ("index", "timeindex"):
        paths = sorted(partition.glob(f"*.{suffix}"))
        assert {path.stem for path in paths} == bases
        for path in paths:
            checked = dump("--files", str(path), "--index-sanity-check")
            assert "passed sanity check" in checked, checked
            verified = dump("--files", str(path), "--verify-index-only")
            assert "mismatch" not in verified.lower(), verified
            assert "Found timestamp" not in verified, verified


# ---- limits, acknowledgements, waiting: librdkafka alone


def delivery_error(broker: Broker, topic: str, value: bytes, acks: str = "all") -> KafkaError | None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": acks})
    seen: list[KafkaError | None] = []
    producer.produce(topic, value, partition=0, on_delivery=lambda error, _: seen.append(error))
    assert producer.flush(PATIENCE_S) == 0
    return seen[0]


def test_a_too_large_record_is_refused_and_those_behind_it_are_taken_with_every_kind_of_ack(
    broker: Broker, new_topic: TopicMaker
) -> None:
    topic, values = new_topic(1, config={"max.message.bytes": "10000"}), [b"x" * 9_000, b"y", b"z"]
    error = delivery_error(broker, topic, b"x" * 20_000)
    assert error is not None
    assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    for value, acks in zip(values, ("all", "1", "0"), strict=True):
        assert delivery_error(broker, topic, value, acks) is None
    assert [one.record.value for one in clients.confluent_read(broker.bootstrap, topic, 1, 3)] == values


def test_a_waiting_fetch_is_answered_when_a_record_comes(broker: Broker, new_topic: TopicMaker) -> None:
    """Not when its time is over, which is longer than the test waits."""
    topic, wait_ms = new_topic(1), 2_000 * PATIENCE_S
    waits = {"fetch.wait.max.ms": wait_ms, "socket.timeout.ms": wait_ms + 10_000}
    with closing(clients.confluent_consumer(broker.bootstrap, topic, 0, waits)) as consumer:
        # It is told where the end is: one that asks could be answered after the record has come.
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert consumer.poll(1.0) is None
        clients.confluent_write(
            broker.bootstrap, topic, [Record(0, None, b"now", (), CREATE_TIME_MS)], "none"
        )
        message = consumer.poll(PATIENCE_S)
    assert message is not None, f"no record within {PATIENCE_S} s"
    assert message.value() == b"now"


def test_a_client_id_that_is_no_utf_8(broker: Broker, new_topic: TopicMaker) -> None:
    topic = new_topic(1)
    client_id = ("-X", os.fsdecode(b"client.id=caf\xe9"))
    metadata = json.loads(clients.kcat(broker.bootstrap, *client_id, "-L", "-J"))
    assert topic in [each["topic"] for each in metadata["topics"]]
    clients.kcat(broker.bootstrap, *client_id, "-P", "-t", topic, "-p", "0", stdin=b"a\n")
    assert clients.kcat(broker.bootstrap, *client_id, "-C", "-t", topic, "-e") == b"a\n"
