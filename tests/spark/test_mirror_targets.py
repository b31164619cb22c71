"""Topics that a mirror writes to, made as their sources are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource
from pyspark.sql.types import StringType, StructType

from mpbroker.testing import Broker
from mpbroker.testing.faults import Fault
from mpbroker.writing.options import parse_write_options
from spark_integration.jobs.frame import JobError, sentence_of
from spark_integration.jobs.mirror_targets import Targets
from spark_integration.sink import stream_writer
from tests.support.polling import PATIENCE_S
from tests.support.spark_logs import PartitionWriter, checkpoint, fill

PARTITIONS = 3
COPIED = {
    "cleanup.policy": "compact",
    "retention.ms": "86400000",
    "message.timestamp.after.max.ms": "3600000",
}
NOT_COPIED = {"message.timestamp.type": "LogAppendTime", "min.insync.replicas": "1"}
Topics = Callable[..., str]
SCHEMA = StructType().add("topic", StringType()).add("value", StringType())


def network(broker: Broker) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap_servers}


def in_place(broker: Broker) -> dict[str, str]:
    return {"log.dir": str(broker.log_dir)}


def made(
    broker: Broker,
    topic: str,
    *,
    source: Callable[[Broker], dict[str, str]] = network,
    keep: bool = True,
    has_begun: bool = False,
) -> list[str]:
    wanted = Targets({**source(broker), "subscribe": topic}, "copy.", keep)
    return wanted.make(parse_write_options(network(broker)), has_begun=has_begun)


def partitions(broker: Broker, topic: str) -> int | None:
    found = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=PATIENCE_S)
    return len(found.topics[topic].partitions) if topic in found.topics else None


def own_settings(broker: Broker, topic: str) -> dict[str, str]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    found: dict[str, Any] = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    return {name: one.value for name, one in found.items() if one.source == 1}


@pytest.mark.parametrize("source", [network, in_place])
def test_a_missing_topic_gets_partitions_and_settings_of_its_source(
    mpbroker_broker: Broker, mpbroker_topics: Topics, source: Callable[[Broker], dict[str, str]]
) -> None:
    topic = mpbroker_topics(partitions=PARTITIONS, config={**COPIED, **NOT_COPIED})
    assert made(mpbroker_broker, topic, source=source) == [f"copy.{topic}"]
    assert partitions(mpbroker_broker, f"copy.{topic}") == PARTITIONS
    assert own_settings(mpbroker_broker, f"copy.{topic}") == COPIED
    assert made(mpbroker_broker, topic, source=source) == []


def test_too_few_partitions_are_refused_unless_keys_decide(
    mpbroker_broker: Broker, mpbroker_topics: Topics
) -> None:
    topic = mpbroker_topics(partitions=PARTITIONS)
    other = mpbroker_topics(partitions=1)
    mpbroker_broker.create_topic(f"copy.{topic}", partitions=2)
    where = mpbroker_broker.bootstrap_servers
    with pytest.raises(JobError) as refused:
        made(mpbroker_broker, f"{topic},{other}")
    assert str(refused.value) == (
        f"topic copy.{topic} of {where} has 2 of the 3 partitions of topic {topic}, so records cannot keep "
        f"theirs: run mpbroker topic alter copy.{topic} --partitions 3 -b {where}, or mirror with --by-key"
    )
    assert partitions(mpbroker_broker, f"copy.{other}") is None, "nothing was done before"
    assert made(mpbroker_broker, topic, keep=False) == []


@pytest.mark.parametrize("source", [network, in_place])
def test_a_topic_is_not_mirrored_onto_itself(
    mpbroker_broker: Broker, mpbroker_topics: Topics, source: Callable[[Broker], dict[str, str]]
) -> None:
    topic = mpbroker_topics()
    with pytest.raises(JobError, match=f"topic {topic} would be copied onto itself"):
        Targets({**source(mpbroker_broker), "subscribe": topic}, "", True).make(
            parse_write_options(network(mpbroker_broker)), has_begun=False
        )


def test_a_copy_grows_with_its_source_once_the_mirror_has_begun(
    mpbroker_broker: Broker, mpbroker_topics: Topics, mpbroker_fault: Callable[..., Fault]
) -> None:
    topic = mpbroker_topics(partitions=PARTITIONS)
    mpbroker_broker.create_topic(f"copy.{topic}", partitions=2)
    assert made(mpbroker_broker, topic, keep=False, has_begun=True) == []
    assert partitions(mpbroker_broker, f"copy.{topic}") == 2
    fault = mpbroker_fault("CreatePartitions", error="TOPIC_AUTHORIZATION_FAILED")
    with pytest.raises(
        JobError, match=r"(?s)has 2 of the 3 .*\(TOPIC_AUTHORIZATION_FAILED\)\): run mpbroker "
    ):
        made(mpbroker_broker, topic, has_begun=True)
    mpbroker_broker.clear_faults(fault)
    assert made(mpbroker_broker, topic, has_begun=True) == []
    assert partitions(mpbroker_broker, f"copy.{topic}") == PARTITIONS


def test_a_topic_that_may_not_be_created_is_named(
    mpbroker_broker: Broker, mpbroker_topics: Topics, mpbroker_fault: Callable[..., Fault]
) -> None:
    topic = mpbroker_topics(partitions=PARTITIONS)
    mpbroker_fault("CreateTopics", error="TOPIC_AUTHORIZATION_FAILED")
    with pytest.raises(JobError) as refused:
        made(mpbroker_broker, topic)
    said = str(refused.value)
    assert said.startswith(f"topic copy.{topic} does not exist at {mpbroker_broker.bootstrap_servers} and ")
    assert said.endswith(
        "(TOPIC_AUTHORIZATION_FAILED). Allow this user to create it, or create it with 3 partitions"
    )


def test_files_without_settings_are_refused(mpbroker_broker: Broker, log_dir: Path) -> None:
    """As those of a broker that keeps its metadata elsewhere."""
    writer = PartitionWriter(log_dir, "at-rest")
    fill(writer, 3)
    checkpoint(log_dir, {("at-rest", 0): writer.next_offset})
    with pytest.raises(
        JobError, match=r"with --bootstrap-server, or create copy\.at-rest with 1 partitions$"
    ):
        made(mpbroker_broker, "at-rest", source=lambda _: {"log.dir": str(log_dir)})


def test_a_topic_that_comes_later_is_made_before_its_first_batch(
    mpbroker_broker: Broker, mpbroker_topics: Topics
) -> None:
    first = mpbroker_topics(partitions=1)
    targets = Targets({**network(mpbroker_broker), "subscribePattern": f"{first}.*"}, "copy.", True)
    sink = {**network(mpbroker_broker), **targets.options()}
    stream_writer(SCHEMA, {name.lower(): value for name, value in sink.items()})
    assert partitions(mpbroker_broker, f"copy.{first}") == 1
    later = mpbroker_topics(f"{first}-later", partitions=PARTITIONS)
    stream_writer(SCHEMA, sink)
    assert partitions(mpbroker_broker, f"copy.{later}") == PARTITIONS


def test_what_ends_a_batch_is_one_sentence() -> None:
    assert (
        sentence_of(RuntimeError("Traceback\nspark_integration.jobs.frame.JobError: topic a: b"))
        == "topic a: b"
    )
