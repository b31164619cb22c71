"""DescribeQuorum, through a handler whose peers are the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.metadata import METADATA_SLOT
from mpbroker.ipc.table import PartitionFlag
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ZERO_UUID, DescribeQuorumRequest, DescribeQuorumResponse
from mpbroker.protocol.topic_names import METADATA_TOPIC
from mpbroker.protocol.uuids import uuid_text
from tests.support.handler_rig import Rig, partition_payload, topic_image
from tests.support.handler_rig import rig as make_rig

QUORUM, NOW_MS = 55, 1_700_000_000_000
LOG = topic_image(METADATA_TOPIC, 1, first_slot=METADATA_SLOT, internal=True)
DIRECTORY_ID = bytes(range(16))
Asked, Part = DescribeQuorumRequest.TopicData, DescribeQuorumRequest.PartitionData
Replica = DescribeQuorumResponse.ReplicaState


@pytest.fixture(name="ready")
def _ready(tmp_path: Path) -> Iterator[Rig]:
    """The metadata log has 13 records, the last of which is not durable yet."""
    (tmp_path / "meta.properties").write_text(f"version=1\ndirectory.id={uuid_text(DIRECTORY_ID)}\n")
    with make_rig(BrokerConfig(log_dirs=(str(tmp_path),))) as made:
        made.publish(LOG)
        put(made, leader_epoch=4, high_watermark=12, log_end_offset=13)
        made.handler.broker.wall_clock_ms = lambda: NOW_MS
        yield made


def put(made: Rig, **fields: int) -> None:
    made.table.write(METADATA_SLOT, partition_payload(LOG, **fields))


def ask(ready: Rig, version: int = 2, *asked: Asked) -> Any:
    topics = asked or (Asked(METADATA_TOPIC, [Part(0)]),)
    return ready.ask(QUORUM, version, DescribeQuorumRequest([*topics]))


@pytest.mark.parametrize(
    ("version", "directory", "seen_ms"),
    [(0, ZERO_UUID, -1), (1, ZERO_UUID, NOW_MS), (2, DIRECTORY_ID, NOW_MS)],
)
def test_this_node_leads_and_is_the_only_voter(
    ready: Rig, version: int, directory: bytes, seen_ms: int
) -> None:
    response = ask(ready, version)
    ((found,),) = (topic.partitions for topic in response.topics)
    assert (response.error_code, found.error_code, found.partition_index) == (0, 0, 0)
    assert (found.leader_id, found.leader_epoch, found.high_watermark) == (1, 4, 12)
    assert found.current_voters == [Replica(1, directory, 13, seen_ms, seen_ms)]
    assert found.observers == []
    endpoints = {n.node_id: [(e.name, e.host, e.port) for e in n.listeners] for n in response.nodes}
    assert endpoints == ({1: [("PLAINTEXT", "127.0.0.1", 9092)]} if version == 2 else {})


@pytest.mark.parametrize(
    "asked",
    [
        [Asked(METADATA_TOPIC, [Part(1)])],
        [Asked(METADATA_TOPIC, [Part(0), Part(0)])],
        [Asked("orders", [Part(0)]), Asked(METADATA_TOPIC, [Part(0)])],
    ],
)
def test_it_is_about_the_metadata_log_alone(ready: Rig, asked: list[Asked]) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    found = [
        (topic.topic_name, one.partition_index, one.error_code, one.error_message)
        for topic in ask(ready, 2, *asked).topics
        for one in topic.partitions
    ]
    assert found == [
        (topic.topic_name, one.partition_index, unknown, unknown.message)
        for topic in asked
        for one in topic.partitions
    ]


@pytest.mark.parametrize(
    "flags",
    [0, PartitionFlag.PARTITION_OFFLINE, PartitionFlag.PARTITION_LIVE | PartitionFlag.PARTITION_OFFLINE],
)
def test_a_log_that_cannot_be_used_has_no_leader(ready: Rig, flags: int) -> None:
    put(ready, flags=flags)
    ((found,),) = (topic.partitions for topic in ask(ready).topics)
    assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
