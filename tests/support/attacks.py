"""Requests that once exhausted, stalled or misled a broker: what tests and the table of attacks send."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Sequence

import crc32c

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.messages import (
    AlterReplicaLogDirsRequest,
    DeleteRecordsRequest,
    DescribeProducersRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    ListGroupsRequest,
    Message,
    MetadataRequest,
    OffsetCommitRequest,
    ProduceRequest,
)
from mpbroker.records.compression import Codec, compress
from ops.bench import frames
from tests.support.record_reading import sealed
from tests.support.socket_client import SocketClient

MEGABYTE = 1 << 20
# Of the topic that commits are about.
TOPIC, PARTITIONS = "t", 100

Protocol = JoinGroupRequest.JoinGroupRequestProtocol


# ---- groups


def join(
    *protocols: Protocol, group: str = "g", member_id: str = "", session_ms: int = 10_000
) -> JoinGroupRequest:
    request = JoinGroupRequest(group, session_ms, 60_000, member_id, protocol_type="consumer")
    request.protocols = list(protocols)
    return request


# Answered at once: it does not fit into a record.
LARGE_JOIN = join(Protocol("range", bytes(40 * MEGABYTE)), session_ms=1)

# What follows a line break looks like a line of the log; then a terminal is cleared, and text turned around.
FORGED = "\n2026-01-01 00:00:00,000 INFO [supervisor] all is well\x1b[2J\u202e"


def forged_join(member_id: str = "", group: str = "group") -> JoinGroupRequest:
    return join(Protocol("range", b""), group=f"{group}{FORGED}", member_id=member_id)


def commit_of_all(client: SocketClient, group: str, metadata: str = "") -> None:
    """Commit an offset of every partition."""
    of_partition = OffsetCommitRequest.OffsetCommitRequestPartition
    partitions = [of_partition(n, 5, committed_metadata=metadata) for n in range(PARTITIONS)]
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(TOPIC, partitions=partitions)
    answer = client.ask(ApiKey.OFFSET_COMMIT, 8, OffsetCommitRequest(group, topics=[topic]))
    assert {p.error_code for p in answer.topics[0].partitions} == {0}


# ---- names


def _naming_partitions(count: int) -> Message:
    return DescribeProducersRequest([DescribeProducersRequest.TopicRequest(TOPIC, [*range(count)])])


def _naming_offsets(count: int) -> Message:
    partitions = [DeleteRecordsRequest.DeleteRecordsPartition(number, 1) for number in range(count)]
    return DeleteRecordsRequest([DeleteRecordsRequest.DeleteRecordsTopic(TOPIC, partitions)])


def _naming_directories(count: int) -> Message:
    topic = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(TOPIC, [*range(count)])
    return AlterReplicaLogDirsRequest([AlterReplicaLogDirsRequest.AlterReplicaLogDir("/nowhere", [topic])])


# API, version, and a request that names so much of what it is about.
NAMING: Sequence[tuple[ApiKey, int, Callable[[int], Message]]] = (
    (ApiKey.DESCRIBE_PRODUCERS, 0, _naming_partitions),
    (ApiKey.DELETE_RECORDS, 2, _naming_offsets),
    (ApiKey.ALTER_REPLICA_LOG_DIRS, 2, _naming_directories),
    (ApiKey.LIST_GROUPS, 5, lambda n: ListGroupsRequest([""] * n)),
    (ApiKey.FIND_COORDINATOR, 6, lambda n: FindCoordinatorRequest(coordinator_keys=[""] * n)),
    (ApiKey.METADATA, 13, lambda n: MetadataRequest([MetadataRequest.MetadataRequestTopic()] * n)),
    (ApiKey.JOIN_GROUP, 9, lambda n: join(*[Protocol("p", b"")] * n)),
)


def creating(names: Sequence[str]) -> MetadataRequest:
    """Ask for topics, which creates those that are not there."""
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=True)


# An id, and a pattern that a backtracking or counting machine follows for long.
LONG_ID = "ab" * 16_000
SLOW_PATTERN = "[ab]*a" + "[ab]" * 3980


# ---- records


def produce(topic: str, batch: bytes) -> ProduceRequest:
    partition = ProduceRequest.PartitionProduceData(index=0, records=batch)
    data = ProduceRequest.TopicProduceData(name=topic, partition_data=[partition])
    return ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data])


def batch_of(producer_id: int) -> bytes:
    """Return a batch of one record, the first of an idempotent producer."""
    batch = bytearray(frames.record_batch(1, 10))
    # Kafka: DefaultRecordBatch; the checksum is of what follows it.
    struct.pack_into(">qhi", batch, 43, producer_id, 0, 0)
    struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
    return bytes(batch)


def zstd_bomb(unpacked_bytes: int) -> bytes:
    """Return a batch of a few KB that unpacks to zeros: as many records of no bytes, each of them wrong."""
    return bytes(sealed(compress(Codec.ZSTD, bytes(unpacked_bytes)), unpacked_bytes, Codec.ZSTD))


def empty_members(count: int) -> bytes:
    """Return a gzip batch of so many members with nothing in them."""
    return bytes(sealed(gzip.compress(b"") * count, 1, Codec.GZIP))
