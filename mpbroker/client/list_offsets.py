"""Asks leaders for a partition's start offset, end offset, or first offset at or after a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mpbroker.client.cluster import Cluster
from mpbroker.client.errors import ApiFailed, ClientError
from mpbroker.protocol import messages as m
from mpbroker.protocol.topic_names import TopicPartition

REQUEST_TIMEOUT_MS = 30_000
_CONSUMER = -1


class OffsetAndTimestamp(NamedTuple):
    """An offset, and the timestamp (ms) of the record at this offset. A missing value is -1."""

    offset: int
    timestamp: int


def list_offsets(
    cluster: Cluster,
    timestamps: Mapping[int, Mapping[TopicPartition, int]],
    isolation: int,
    failed: list[ClientError] | None = None,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """Return the offset of each partition for its timestamp.

    `timestamps` maps the node id of each leader to its partitions, and each partition to a timestamp.
    A partition's ApiFailed is appended to `failed`, or raised if `failed` is None.
    """
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    for leader, mine in timestamps.items():
        response: m.ListOffsetsResponse = cluster.ask(leader, _request(mine, isolation))
        for topic, part in ((one.name, part) for one in response.topics for part in one.partitions):
            if not part.error_code:
                found[topic, part.partition_index] = OffsetAndTimestamp(part.offset, part.timestamp)
                continue
            error = ApiFailed(f"offsets of {topic}-{part.partition_index}", part.error_code)
            if failed is None:
                raise error
            failed.append(error)
    return found


def _request(timestamps: Mapping[TopicPartition, int], isolation: int) -> m.ListOffsetsRequest:
    topics: dict[str, list[m.ListOffsetsRequest.ListOffsetsPartition]] = {}
    for (topic, number), timestamp in timestamps.items():
        one = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=number, timestamp=timestamp)
        topics.setdefault(topic, []).append(one)
    return m.ListOffsetsRequest(
        replica_id=_CONSUMER,
        isolation_level=isolation,
        topics=[m.ListOffsetsRequest.ListOffsetsTopic(name, parts) for name, parts in topics.items()],
        timeout_ms=REQUEST_TIMEOUT_MS,
    )
