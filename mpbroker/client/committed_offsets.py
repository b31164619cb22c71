"""Requests about committed offsets of a group, and the content of responses (OffsetCommit, OffsetFetch)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mpbroker.client.errors import ApiFailed
from mpbroker.protocol import messages as m
from mpbroker.protocol.topic_names import TopicPartition


def fetch_request(
    group: str, places: Iterable[TopicPartition] | None, *, require_stable: bool = False
) -> m.OffsetFetchRequest:
    """Return a request for offsets (None: all). `require_stable` waits for open transactions (KIP-447)."""
    kind = m.OffsetFetchRequest
    if places is None:
        return kind(group, None, [kind.OffsetFetchRequestGroup(group, topics=None)], require_stable)
    by_topic = {name: list(parts) for name, parts in _by_topic(dict.fromkeys(places, 0)).items()}
    old = [kind.OffsetFetchRequestTopic(name, parts) for name, parts in by_topic.items()]
    new = [kind.OffsetFetchRequestTopics(name, partition_indexes=parts) for name, parts in by_topic.items()]
    return kind(group, old, [kind.OffsetFetchRequestGroup(group, topics=new)], require_stable)


def of_group(response: m.OffsetFetchResponse) -> Any:
    """Return the part of a response about its one group; since version 8 each group has its own part."""
    return response.groups[0] if response.groups else response


def fetched_offsets(group: Any) -> dict[TopicPartition, int]:
    """Return the committed offsets in a response's part about a group."""
    return {
        (topic.name, one.partition_index): one.committed_offset
        for topic in group.topics
        for one in topic.partitions
        if one.committed_offset >= 0
    }


def commit_request(
    group: str, offsets: Mapping[TopicPartition, int], generation: int = -1, member_id: str = ""
) -> m.OffsetCommitRequest:
    """Return a request that commits offsets for a member, or for a group without members."""
    part = m.OffsetCommitRequest.OffsetCommitRequestPartition
    topics = [
        m.OffsetCommitRequest.OffsetCommitRequestTopic(
            name=name, partitions=[part(number, offset) for number, offset in parts.items()]
        )
        for name, parts in _by_topic(offsets).items()
    ]
    return m.OffsetCommitRequest(group, generation, member_id, topics=topics)


def commit_errors(response: m.OffsetCommitResponse, what: str = "") -> list[ApiFailed]:
    """Return the errors of single partitions; `what` begins their texts."""
    return [
        ApiFailed(f"{what}{topic.name}-{one.partition_index}", one.error_code)
        for topic in response.topics
        for one in topic.partitions
        if one.error_code
    ]


def _by_topic(values: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    split: dict[str, dict[int, int]] = {}
    for (topic, number), value in values.items():
        split.setdefault(topic, {})[number] = value
    return split
