"""Response frames of the handler as a decoder reads them that shares no code with ours: kio's."""

from __future__ import annotations

import struct

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader

from mpbroker.protocol.headers import response_header_version
from mpbroker.protocol.messages import (
    ApiVersionsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeQuorumRequest,
    DescribeTopicPartitionsRequest,
    FetchRequest,
    FindCoordinatorRequest,
    ListOffsetsRequest,
    Message,
    MetadataRequest,
    ProduceRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from tests.support.forwarded_requests import each_version
from tests.support.handler_rig import Rig, topic_image

TOPIC = topic_image("orders", 1, partitions=2)


def requests() -> dict[int, Message]:
    """One request per API that is answered without a coordinator."""
    data = [ProduceRequest.PartitionProduceData(0, bytes(build_batch([NewRecord(b"k", b"v", -1)])))]
    refused = [ProduceRequest.PartitionProduceData(7, bytes(build_batch([NewRecord(b"k", b"v", -1)])))]
    fetch = [
        FetchRequest.FetchTopic(
            "orders", TOPIC.topic_id, [FetchRequest.FetchPartition(0), FetchRequest.FetchPartition(7)]
        )
    ]
    offsets = [
        ListOffsetsRequest.ListOffsetsTopic(
            "orders", [ListOffsetsRequest.ListOffsetsPartition(0, timestamp=-1)]
        )
    ]
    return {
        0: ProduceRequest(
            None, -1, 1, [ProduceRequest.TopicProduceData("orders", TOPIC.topic_id, data + refused)]
        ),
        1: FetchRequest(max_wait_ms=0, topics=fetch),
        2: ListOffsetsRequest(-1, 0, offsets),
        3: MetadataRequest(topics=None),
        10: FindCoordinatorRequest("g", 0, ["g"]),
        18: ApiVersionsRequest("test", "1"),
        32: DescribeConfigsRequest(
            [DescribeConfigsRequest.DescribeConfigsResource(2, "orders", None)], True, True
        ),
        55: DescribeQuorumRequest(
            [DescribeQuorumRequest.TopicData("orders", [DescribeQuorumRequest.PartitionData(0)])]
        ),
        57: UpdateFeaturesRequest(
            feature_updates=[UpdateFeaturesRequest.FeatureUpdateKey("transaction.version", 2)]
        ),
        60: DescribeClusterRequest(),
        64: UnregisterBrokerRequest(2),
        75: DescribeTopicPartitionsRequest(response_partition_limit=1),
    }


@pytest.mark.parametrize(("key", "version"), each_version(requests()))
def test_kio_reads_every_answer_to_its_last_byte(rig: Rig, key: int, version: int) -> None:
    rig.publish(TOPIC)
    request = requests()[key]
    if key == 3 and version == 0:
        request = MetadataRequest(topics=[])
    rig.send(key, version, request)
    for job in rig.log.take():
        rig.log.append(job)
    rig.turn()
    (reply,) = rig.processor.replies()
    frame = rig.processor.frame_of(reply)
    size, correlation = struct.unpack_from(">ii", frame)
    assert (size, correlation) == (len(frame) - 4, 77)
    at = 8 + response_header_version(key, version)
    reader = entity_reader(load_response_schema(key, version))
    body, read = reader(frame, at)
    assert read == len(frame) - at
    assert body is not None
