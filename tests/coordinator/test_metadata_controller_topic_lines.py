"""One line for each topic that comes, grows or goes; none for what does not concern topics."""

from __future__ import annotations

from pathlib import Path

from mpbroker.coordinator.metadata.state import Topic
from mpbroker.coordinator.metadata_controller import topic_lines
from mpbroker.protocol.messages import PartitionRecord, ProducerIdsRecord, RemoveTopicRecord, TopicRecord
from mpbroker.protocol.uuids import uuid_text
from ops.bench import frames
from ops.bench.brokers import Mpbroker
from tests.support.client_tools import eventually
from tests.support.real_brokers import served

OLD, NEW = b"o" * 16, b"n" * 16


def test_what_one_round_does() -> None:
    before = {OLD: Topic("old", OLD, 2)}
    records = [
        TopicRecord("new", NEW),
        PartitionRecord(0, NEW),
        ProducerIdsRecord(),
        PartitionRecord(2, OLD),
        PartitionRecord(1, NEW),
        PartitionRecord(3, OLD),
        RemoveTopicRecord(OLD),
        RemoveTopicRecord(NEW),
    ]
    assert list(topic_lines(records, before)) == [
        f"topic new is created: 2 partitions, id {uuid_text(NEW)}",
        "topic old has 4 partitions, 2 of them new",
        f"topic old is deleted: id {uuid_text(OLD)}",
        f"topic new is deleted: id {uuid_text(NEW)}",
    ]


def test_the_broker_says_so(tmp_path: Path) -> None:
    with served(Mpbroker(tmp_path)) as broker, frames.connected(broker.address) as connection:
        frames.exchange(connection, frames.create_topic("made", 3))
        said = "INFO [coordinator] topic made is created: 3 partitions, id "
        eventually(lambda: said in broker.output(), "the log says it")
