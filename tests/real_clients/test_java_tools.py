"""Apache Kafka's own Java tools: the reference client, and DumpLogSegments, the reference for the files."""

import re

import pytest

from ops.bench.brokers import Broker
from tests.support import client_adapters
from tests.support.client_samples import Record, by_partition, sample_records, stored_in
from tests.support.client_tools import ToolError, kafka_tool
from tests.support.real_brokers import TopicMaker, create_topic, stop_cleanly

TOPICS = "org.apache.kafka.tools.TopicCommand"
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
DUMP = "org.apache.kafka.tools.DumpLogSegments"

SEGMENT_BYTES = 1 << 20


def end_offsets(broker: Broker, topic: str) -> dict[int, int]:
    printed = kafka_tool(OFFSETS, "--bootstrap-server", broker.bootstrap, "--topic", topic)
    rows = (line.rsplit(":", 2) for line in printed.splitlines())
    return {int(partition): int(offset) for name, partition, offset in rows if name == topic}


def test_topic_command(broker: Broker) -> None:
    server = ("--bootstrap-server", broker.bootstrap)
    kafka_tool(
        TOPICS, *server, "--create", "--topic", "by-java", "--partitions", "3", "--config", "segment.ms=9999"
    )
    assert "by-java" in kafka_tool(TOPICS, *server, "--list").splitlines()
    described = kafka_tool(TOPICS, *server, "--describe", "--topic", "by-java")
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: .*segment\.ms=9999", described)
    assert len(re.findall(r"Partition: \d+\s+Leader: \d+\s+Replicas: \d+\s+Isr: \d+", described)) == 3
    with pytest.raises(ToolError, match="already exists"):
        kafka_tool(TOPICS, *server, "--create", "--topic", "by-java")
    kafka_tool(TOPICS, *server, "--delete", "--topic", "by-java")
    assert "by-java" not in kafka_tool(TOPICS, *server, "--list").splitlines()


def test_producer_performance_with_its_default_settings(broker: Broker, new_topic: TopicMaker) -> None:
    """The Java producer is idempotent unless told otherwise."""
    topic, count = new_topic(2), 30_000
    load = ("--topic", topic, "--num-records", str(count), "--record-size", "100", "--throughput", "-1")
    printed = kafka_tool(PERFORMANCE, "--bootstrap-server", broker.bootstrap, *load)
    assert f"{count} records sent" in printed
    ends = end_offsets(broker, topic)
    assert sum(ends.values()) == count
    stored = by_partition(client_adapters.confluent_read(broker.bootstrap, topic, 2, count))
    for partition, end in ends.items():
        records = stored.get(partition, [])
        assert [each.offset for each in records] == list(range(end))
        assert all(len(each.record.value or b"") == 100 for each in records)


def test_console_producer_and_console_consumer(broker: Broker, new_topic: TopicMaker) -> None:
    topic = new_topic(1)
    lines = "".join(f"key-{number}\tvalue {number}\n" for number in range(20))
    server = ("--bootstrap-server", broker.bootstrap, "--topic", topic)
    kafka_tool(PRODUCER, *server, "--reader-property", "parse.key=true", stdin=lines.encode())
    position = ("--partition", "0", "--offset", "5", "--max-messages", "15")
    shown = ("--formatter-property", "print.key=true", "--formatter-property", "print.offset=true")
    printed = kafka_tool(CONSUMER, *server, *position, *shown)
    expected = [f"Offset:{number}\tkey-{number}\tvalue {number}" for number in range(5, 20)]
    assert printed.splitlines() == expected


def dump(*arguments: str) -> str:
    return kafka_tool(DUMP, *arguments)


def test_the_written_files_are_kafkas_own(own_broker: Broker) -> None:
    """Every file of a partition with several segments, read by Kafka's tool after a clean stop."""
    create_topic(own_broker.bootstrap, "dumped", 1, {"segment.bytes": str(SEGMENT_BYTES)})
    records: list[Record] = []
    for seed, codec in enumerate(client_adapters.CODECS * 2):
        batch = sample_records(1, 500, seed)
        client_adapters.confluent_write_idempotent(own_broker.bootstrap, "dumped", batch, codec)
        records += batch
    stored = stored_in(records)[0]
    stop_cleanly(own_broker)

    partition = own_broker.log_dir / "dumped-0"
    segments = sorted(partition.glob("*.log"))
    assert len(segments) > 1, "the topic was meant to have several segments"
    assert all(path.stat().st_size <= SEGMENT_BYTES for path in segments)

    printed = "".join(dump("--files", str(path), "--deep-iteration") for path in segments)
    assert "corrupt" not in printed.lower()
    offsets = [int(found) for found in re.findall(r"^\| offset: (\d+) ", printed, re.MULTILINE)]
    assert offsets == [each.offset for each in stored]
    times = [int(found) for found in re.findall(r"^\| offset: .*CreateTime: (\d+) ", printed, re.MULTILINE)]
    assert times == [each.record.timestamp_ms for each in stored]
    assert set(re.findall(r"compresscodec: (\w+)", printed)) == set(client_adapters.CODECS)
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
