"""What clients are told of a cluster with a standby, by the broker that leads and by the standby."""

from __future__ import annotations

from typing import Any

import pytest

from mpbroker.ipc.leading import NEVER
from mpbroker.ipc.nodes import Node, Nodes
from mpbroker.ipc.slots import ReplyFlag, SlotKind
from mpbroker.ipc.table import PartitionFlag
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.headers import decode_response_frame
from mpbroker.protocol.messages import (
    DescribeClusterRequest,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeTopicPartitionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
)
from tests.support.handler_rig import Rig, base, partition_payload, topic_image

METADATA, FIND_COORDINATOR, DESCRIBE_QUORUM, DESCRIBE_CLUSTER, DESCRIBE_TOPICS = 3, 10, 55, 60, 75
ORDERS = topic_image("orders", 1, partitions=2)
# As a standby publishes it: no partition has a slot.
FOLLOWED = topic_image("orders", 1, partitions=2, first_slot=0)
FOLLOWED.slots = bytes(16)
HERE, THERE = (1, "127.0.0.1", 9092, None), (2, "other.example", 19092, "r2")
NODES = [
    # What this broker advertises to the client counts, not the file.
    Node(1, "", {"PLAINTEXT": ("elsewhere", 1)}),
    Node(2, "r2", {"PLAINTEXT": ("other.example", 19092), "TLS": ("other.example", 19093)}),
    Node(3, "", {"TLS": ("third.example", 19093)}),
]


def publish(rig: Rig, leader: int, *topics: Any) -> None:
    rig.bulletin.publish_base(base(*topics, version=7, nodes=Nodes(leader, 4, NODES)))
    rig.turn()


def brokers(response: Any) -> list[Any]:
    return [tuple(getattr(one, name) for name in ("host", "port", "rack")) for one in response.brokers]


def metadata(rig: Rig, *names: str) -> Any:
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return rig.ask(METADATA, 13, MetadataRequest(topics))


@pytest.mark.parametrize("leader", [1, 2])
def test_both_brokers_are_named_and_one_of_them_leads(rig: Rig, leader: int) -> None:
    rig.publish(ORDERS)
    rig.table.write(1, partition_payload(ORDERS, 1, leader_epoch=6))
    publish(rig, leader, ORDERS if leader == 1 else FOLLOWED)
    response = metadata(rig, "orders")
    assert [one.node_id for one in response.brokers] == [1, 2]
    assert brokers(response) == [HERE[1:], THERE[1:]]
    assert response.controller_id == leader
    ((topic),) = response.topics
    epochs = [0, 6] if leader == 1 else [-1, -1]
    assert [(p.error_code, p.leader_id, p.leader_epoch) for p in topic.partitions] == [
        (0, leader, epoch) for epoch in epochs
    ]
    assert all(p.replica_nodes == p.isr_nodes == [leader] for p in topic.partitions)
    assert not any(p.offline_replicas for p in topic.partitions)

    cluster = rig.ask(DESCRIBE_CLUSTER, 2, DescribeClusterRequest())
    assert [one.broker_id for one in cluster.brokers] == [1, 2]
    assert brokers(cluster) == brokers(response)
    assert cluster.controller_id == leader

    ((described),) = rig.ask(
        DESCRIBE_TOPICS,
        0,
        DescribeTopicPartitionsRequest([DescribeTopicPartitionsRequest.TopicRequest("orders")], 10),
    ).topics
    assert [(p.leader_id, p.leader_epoch, p.replica_nodes) for p in described.partitions] == [
        (leader, epoch, [leader]) for epoch in epochs
    ]


@pytest.mark.parametrize("leader", [1, 2])
def test_the_coordinator_is_the_broker_that_leads(rig: Rig, leader: int) -> None:
    publish(rig, leader)
    node = (HERE, THERE)[leader - 1][:3]
    for version in (0, 6):
        request = FindCoordinatorRequest(key="group", coordinator_keys=["group"])
        response = rig.ask(FIND_COORDINATOR, version, request)
        found = response.coordinators[0] if version else response
        assert (found.error_code, found.node_id, found.host, found.port) == (0, *node)


def test_a_leader_without_the_listener_of_the_client_is_named_without_an_address(rig: Rig) -> None:
    publish(rig, 3, FOLLOWED)
    response = metadata(rig, "orders")
    assert [one.node_id for one in response.brokers] == [1, 2]
    assert {p.leader_id for p in response.topics[0].partitions} == {3}
    found = rig.ask(FIND_COORDINATOR, 6, FindCoordinatorRequest(coordinator_keys=["group"]))
    assert found.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_standby_describes_the_metadata_log_as_far_as_it_has_followed(rig: Rig) -> None:
    publish(rig, 2)
    rig.handler.broker.wall_clock_ms = lambda: 5
    asked = DescribeQuorumRequest.TopicData("__cluster_metadata", [DescribeQuorumRequest.PartitionData(0)])
    response = rig.ask(DESCRIBE_QUORUM, 2, DescribeQuorumRequest([asked]))
    ((log,),) = (topic.partitions for topic in response.topics)
    assert (log.error_code, log.leader_id, log.leader_epoch, log.high_watermark) == (0, 2, -1, 7)
    voter = DescribeQuorumResponse.ReplicaState(2, log_end_offset=7)
    observer = DescribeQuorumResponse.ReplicaState(1, bytes(16), 7, 5, 5)
    assert (log.current_voters, log.observers) == ([voter], [observer])
    assert [(n.node_id, n.listeners[0].host) for n in response.nodes] == [(1, HERE[1]), (2, THERE[1])]


@pytest.mark.parametrize("by_id", [False, True])
def test_a_standby_leaves_topics_that_it_does_not_know_to_the_leader(rig: Rig, by_id: bool) -> None:
    """It creates none, and closes the connection, after Metadata has told the client who leads."""
    rig.memory.leading().until_ns = NEVER
    publish(rig, 2, FOLLOWED)
    name = {"topic_id": bytes(15) + b"9", "name": None} if by_id else {"name": "new"}
    asked = MetadataRequest([MetadataRequest.MetadataRequestTopic(**name)])  # type: ignore[arg-type]
    rig.send(METADATA, 13, asked)
    (reply,) = rig.processor.replies()
    assert (reply.kind, reply.flags) == (SlotKind.SEND, ReplyFlag.LAST)
    _, response = decode_response_frame(METADATA, 13, rig.processor.frame_of(reply)[4:])
    assert [one.node_id for one in response.brokers] == [1, 2]
    described = DescribeTopicPartitionsRequest([DescribeTopicPartitionsRequest.TopicRequest("new")], 10)
    rig.send(DESCRIBE_TOPICS, 0, described)
    assert [reply.kind for reply in rig.processor.replies()] == [SlotKind.CLOSE]
    assert not rig.coordinator.take()
    assert [topic.name for topic in metadata(rig, "orders").topics] == ["orders"]


def test_a_broker_that_leads_is_alone_with_its_offline_partitions(rig: Rig) -> None:
    rig.publish(ORDERS)
    rig.table.write(0, partition_payload(ORDERS, 0, flags=PartitionFlag.PARTITION_OFFLINE))
    publish(rig, 1, ORDERS)
    partition = metadata(rig, "orders").topics[0].partitions[0]
    assert (partition.leader_id, partition.offline_replicas) == (-1, [1])
    assert partition.error_code == ErrorCode.LEADER_NOT_AVAILABLE
