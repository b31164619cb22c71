"""Builds requests about a group's committed offsets and reads the responses (OffsetCommit, OffsetFetch)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mpbroker.client.errors import ApiFailed
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.topic_names import TopicPartition


def fetch_request(
    group: str, places: Iterable[TopicPartition] | None, *, require_stable: bool = False
) -> m.OffsetFetchRequest:
    """Return a request for committed offsets (`places` None: all). `require_stable` is KIP-447's flag."""
    kind = m.OffsetFetchRequest
    if places is None:
        return kind(group, None, [kind.OffsetFetchRequestGroup(group, topics=None)], require_stable)
    by_topic = {name: list(parts) for name, parts in _by_topic(dict.fromkeys(places, 0)).items()}
    old = [kind.OffsetFetchRequestTopic(name, parts) for name, parts in by_topic.items()]
    new = [kind.OffsetFetchRequestTopics(name, partition_indexes=parts) for name, parts in by_topic.items()]
    return kind(group, old, [kind.OffsetFetchRequestGroup(group, topics=new)], require_stable)


def of_group(response: m.OffsetFetchResponse) -> Any:
    """Return the object that has the topics: the response, or since version 8 the only group in it."""
    return response.groups[0] if response.groups else response


def fetched_offsets(group: Any) -> dict[TopicPartition, int]:
    """Return the committed offsets in what `of_group` returned, without partitions that have none."""
    return {
        (topic.name, one.partition_index): one.committed_offset
        for topic in group.topics
        for one in topic.partitions
        if one.committed_offset >= 0
    }


def commit_request(
    group: str,
    offsets: Mapping[TopicPartition, int],
    generation: int = -1,
    member_id: str = "",
    metadata: str = "",
) -> m.OffsetCommitRequest:
    """Return a request that commits offsets for a member, or for a group without members.

    Each offset gets `metadata`.
    """
    part = m.OffsetCommitRequest.OffsetCommitRequestPartition
    topics = [
        m.OffsetCommitRequest.OffsetCommitRequestTopic(
            name=name, partitions=[part(number, offset, -1, metadata) for number, offset in parts.items()]
        )
        for name, parts in _by_topic(offsets).items()
    ]
    return m.OffsetCommitRequest(group, generation, member_id, topics=topics)


def commit_errors(response: m.OffsetCommitResponse, what: str = "") -> list[ApiFailed]:
    """Return an error for each partition whose commit failed; `what` begins the errors' texts."""
    return [
        ApiFailed(f"{what}{topic.name}-{one.partition_index}", one.error_code)
        for topic in response.topics
        for one in topic.partitions
        if one.error_code
    ]


def has_members(error: ApiFailed) -> bool:
    """Return whether a commit without a member id failed because the group has members."""
    return error.code in (
        *(ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION),
        ErrorCode.STALE_MEMBER_EPOCH,
    )


def _by_topic(values: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    split: dict[str, dict[int, int]] = {}
    for (topic, number), value in values.items():
        split.setdefault(topic, {})[number] = value
    return split
