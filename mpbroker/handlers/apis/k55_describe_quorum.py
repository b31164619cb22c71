"""DescribeQuorum (key 55), versions 0-2: leader, voters and offsets of the metadata log.

The broker that leads is the only voter. A standby names it, and itself as an observer that has followed up to
the end that it reports. Endpoints are the addresses of the listener that the client connected to, since there
is no listener for controllers. A request for anything but `__cluster_metadata-0` gets
UNKNOWN_TOPIC_OR_PARTITION. (Kafka: KafkaRaftClient.handleDescribeQuorumRequest; KIP-595, KIP-836, KIP-853.)
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from mpbroker.handlers.api_parts.cluster_nodes import cluster_nodes
from mpbroker.handlers.api_parts.partition_leaders import UNKNOWN_EPOCH
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import SMALL_REQUEST_ELEMENTS_MAX
from mpbroker.ipc.metadata import METADATA_SLOT
from mpbroker.ipc.table import Partition, PartitionFlag, read_partition
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ZERO_UUID, DescribeQuorumRequest, DescribeQuorumResponse
from mpbroker.protocol.topic_names import METADATA_TOPIC
from mpbroker.protocol.uuids import uuid_bytes
from mpbroker.storage.directory_layout import properties_in
from mpbroker.storage.names import META_PROPERTIES
from shm.table import SlotBusy

FIRST_VERSION_WITH_NODES = 2

OfTopic: TypeAlias = DescribeQuorumResponse.TopicData
OfPartition: TypeAlias = DescribeQuorumResponse.PartitionData
Replica: TypeAlias = DescribeQuorumResponse.ReplicaState


def failed(_: RequestContext, code: ErrorCode) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(error_code=code, error_message=code.message)


def refused(request: DescribeQuorumRequest, code: ErrorCode) -> DescribeQuorumResponse:
    """Return the response with this error for each partition of the request."""
    response = DescribeQuorumResponse()
    for topic in request.topics:
        numbers = [p.partition_index for p in topic.partitions]
        of_topic = OfTopic(topic.topic_name, [OfPartition(n, code, code.message) for n in numbers])
        response.topics.append(of_topic)
    return response


def metadata_log(context: RequestContext) -> Partition | None:
    """Read the slot of the metadata log; return None if its log worker is starting or its disk has failed."""
    try:
        now = read_partition(context.broker.table, METADATA_SLOT)
    except SlotBusy:
        return None
    usable = now.flags & PartitionFlag.PARTITION_LIVE and not now.flags & PartitionFlag.PARTITION_OFFLINE
    return now if usable else None


def directory_id(context: RequestContext, now: Partition) -> bytes:
    """Return the id of the log directory that has the metadata log."""
    file = Path(context.broker.config.log_dirs[now.log_dir]) / META_PROPERTIES
    text = properties_in(file.read_text("utf-8")).get("directory.id")
    return uuid_bytes(text) if text else ZERO_UUID


def led(context: RequestContext) -> OfPartition | None:
    """Describe the log that this broker leads; return None if the log cannot be used."""
    now = metadata_log(context)
    if now is None:
        return None
    node, wall_ms = context.broker.metadata.node_id, context.broker.wall_clock_ms()
    has_directory = context.version >= FIRST_VERSION_WITH_NODES
    directory = directory_id(context, now) if has_directory else ZERO_UUID
    return OfPartition(
        leader_id=node,
        leader_epoch=now.leader_epoch,
        high_watermark=now.high_watermark,
        current_voters=[Replica(node, directory, now.log_end_offset, wall_ms, wall_ms)],
    )


def followed(context: RequestContext) -> OfPartition:
    """Describe the log of the broker that this one follows, as far as it has followed."""
    metadata, wall_ms = context.broker.metadata, context.broker.wall_clock_ms()
    return OfPartition(
        leader_id=metadata.leader_id,
        leader_epoch=UNKNOWN_EPOCH,
        high_watermark=metadata.version,
        current_voters=[Replica(metadata.leader_id, ZERO_UUID, metadata.version)],
        observers=[Replica(metadata.node_id, ZERO_UUID, metadata.version, wall_ms, wall_ms)],
    )


@api(
    ApiKey.DESCRIBE_QUORUM,
    0,
    2,
    name="DescribeQuorum",
    failed=failed,
    elements_max=SMALL_REQUEST_ELEMENTS_MAX,
)
def handle(context: RequestContext) -> DescribeQuorumResponse:
    """Reports the leader and only voter of the metadata log, with the log's offsets."""
    request: DescribeQuorumRequest = context.body
    asked = [(topic.topic_name, [p.partition_index for p in topic.partitions]) for topic in request.topics]
    if asked != [(METADATA_TOPIC, [0])]:
        return refused(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    of_log = led(context) if context.broker.metadata.leads else followed(context)
    if of_log is None:
        return refused(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    response = DescribeQuorumResponse(topics=[OfTopic(METADATA_TOPIC, [of_log])])
    if context.version >= FIRST_VERSION_WITH_NODES:
        listener = context.broker.advertised(context).name
        for node in cluster_nodes(context):
            endpoint = DescribeQuorumResponse.Listener(listener, node.host, node.port)
            response.nodes.append(DescribeQuorumResponse.Node(node.id, [endpoint]))
    return response
