"""Requests about consumer groups, to the broker that coordinates each.

Classic groups are described by DescribeGroups, those of the consumer protocol (KIP-848) by
ConsumerGroupDescribe; their offsets are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec

from mpbroker.cli.cluster.client import PATIENCE_MS, Client, only
from mpbroker.cli.cluster.log_dirs import name_full_disks
from mpbroker.client.cluster import CoordinatorType
from mpbroker.client.consumer_protocol import PROTOCOL_TYPE, TopicPartition, decode_assignment
from mpbroker.client.errors import ApiFailed, UnsupportedByBroker, not_done
from mpbroker.config import known
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode

# The types of groups.
CONSUMER = "consumer"
CLASSIC = "classic"
DEAD = "Dead"

_Value = TypeVar("_Value")


class Member(msgspec.Struct, frozen=True):
    """A member of a group, with the partitions that it has."""

    id: str
    instance: str | None
    client: str
    host: str
    partitions: list[TopicPartition]


class Group(msgspec.Struct, frozen=True):
    """A group as its coordinator describes it. `type` is classic or consumer, `assignor` its protocol."""

    name: str
    type: str
    state: str
    protocol_type: str
    assignor: str
    members: list[Member]


def patiently(client: Client, ask: Callable[[], _Value], patience_ms: int = PATIENCE_MS) -> _Value:
    """Ask again after a retriable error: coordinators move, and load their groups before they answer.

    Raises ApiFailed, whose text names a full disk that may be the cause.
    """
    try:
        return client.cluster.patiently(ask, timeout_ms=patience_ms)
    except ApiFailed as error:
        name_full_disks(client, error)
        raise


def list_groups(client: Client) -> list[m.ListGroupsResponse.ListedGroup]:
    """Return the groups of all brokers by name. Raises ApiFailed."""
    brokers = client.cluster.refresh(m.MetadataRequest(topics=[])).brokers
    listed = [
        group for broker in brokers for group in patiently(client, partial(_list, client, broker.node_id))
    ]
    return sorted(listed, key=lambda group: group.group_id)


def describe(client: Client, name: str, patience_ms: int = PATIENCE_MS) -> Group:
    """Describe a group of either protocol. Raises ApiFailed with GROUP_ID_NOT_FOUND if there is none."""
    with _guessing(client, name):
        return patiently(client, partial(_describe, client, name), patience_ms)


def committed(client: Client, name: str) -> dict[TopicPartition, int]:
    """Return the committed offsets of a group; none of a group that does not exist. Raises ApiFailed."""
    return patiently(client, partial(_committed, client, name))


def commit(client: Client, name: str, offsets: Mapping[TopicPartition, int]) -> list[ApiFailed]:
    """Commit offsets of a group without members; return the errors of single partitions."""
    return patiently(client, partial(_commit, client, name, offsets))


def delete_offsets(client: Client, name: str, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Delete committed offsets; return the error code of each place. Raises ApiFailed."""
    return patiently(client, partial(_delete_offsets, client, name, list(places)))


def delete(client: Client, name: str) -> None:
    """Delete a group without members, and its offsets. Raises ApiFailed."""
    response: m.DeleteGroupsResponse = patiently(
        client, partial(ask, client, name, m.DeleteGroupsRequest([name]))
    )
    with _guessing(client, name):
        for result in response.results:
            check(name, result.error_code)


@contextmanager
def _guessing(client: Client, name: str) -> Iterator[None]:
    """Add the name of a similar group to the error that a group does not exist."""
    try:
        yield
    except ApiFailed as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        guess = known.hint([name], [one.group_id for one in list_groups(client)])
        raise ApiFailed(f"group {name}", error.code, f"does not exist{guess}") from error


def check(name: str, code: int, message: str | None = None) -> None:
    """Raise ApiFailed if the code is an error."""
    if code:
        raise not_done(f"group {name}", code, message)


def ask(client: Client, name: str, request: m.Message) -> Any:
    """Ask the broker that coordinates the group."""
    return client.cluster.ask(client.cluster.coordinator(CoordinatorType.GROUP, name), request)


def _list(client: Client, node: int) -> list[m.ListGroupsResponse.ListedGroup]:
    response: m.ListGroupsResponse = client.cluster.ask(node, m.ListGroupsRequest())
    if response.error_code:
        raise ApiFailed(f"groups of broker {node}", response.error_code)
    return response.groups


def _describe(client: Client, name: str) -> Group:
    response: m.DescribeGroupsResponse = ask(client, name, m.DescribeGroupsRequest([name]))
    group = only(response.groups, f"group {name}")
    is_unknown = group.group_state == DEAD or group.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    if is_unknown and (found := _described_by_consumer_protocol(client, name)) is not None:
        return found
    check(name, ErrorCode.GROUP_ID_NOT_FOUND if is_unknown else group.error_code)
    members = []
    for one in group.members:
        # Assignments of other members (Connect's workers) have formats of their own.
        readable = group.protocol_type == PROTOCOL_TYPE and one.member_assignment
        members.append(
            Member(
                one.member_id,
                one.group_instance_id,
                one.client_id,
                one.client_host.removeprefix("/"),
                sorted(decode_assignment(one.member_assignment)) if readable else [],
            )
        )
    return Group(name, CLASSIC, group.group_state, group.protocol_type, group.protocol_data, members)


def _described_by_consumer_protocol(client: Client, name: str) -> Group | None:
    """Describe a group of the consumer protocol; None if there is none, or the broker has none at all."""
    try:
        response: m.ConsumerGroupDescribeResponse = ask(client, name, m.ConsumerGroupDescribeRequest([name]))
    except UnsupportedByBroker:
        return None
    group = only(response.groups, f"group {name}")
    if group.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return None
    check(name, group.error_code, group.error_message)
    members = [
        Member(
            one.member_id,
            one.instance_id,
            one.client_id,
            one.client_host.removeprefix("/"),
            sorted(
                (topic.topic_name, number)
                for topic in one.assignment.topic_partitions
                for number in topic.partitions
            ),
        )
        for one in group.members
    ]
    return Group(name, CONSUMER, group.group_state, PROTOCOL_TYPE, group.assignor_name, members)


def _committed(client: Client, name: str) -> dict[TopicPartition, int]:
    every = m.OffsetFetchRequest.OffsetFetchRequestGroup(name, topics=None)
    response: m.OffsetFetchResponse = ask(client, name, m.OffsetFetchRequest(name, None, [every]))
    # Since version 8 there is one answer for each group.
    group = response.groups[0] if response.groups else response
    check(name, group.error_code)
    return {
        (topic.name, one.partition_index): one.committed_offset
        for topic in group.topics
        for one in topic.partitions
        if one.committed_offset >= 0
    }


def _commit(client: Client, name: str, offsets: Mapping[TopicPartition, int]) -> list[ApiFailed]:
    part = m.OffsetCommitRequest.OffsetCommitRequestPartition
    by_topic: dict[str, list[m.OffsetCommitRequest.OffsetCommitRequestPartition]] = {}
    for (topic, number), offset in offsets.items():
        by_topic.setdefault(topic, []).append(part(partition_index=number, committed_offset=offset))
    topics = [
        m.OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=parts)
        for topic, parts in by_topic.items()
    ]
    response: m.OffsetCommitResponse = ask(
        client, name, m.OffsetCommitRequest(name, generation_id_or_member_epoch=-1, topics=topics)
    )
    failed = [
        ApiFailed(f"group {name}, {answer.name}-{done.partition_index}", done.error_code)
        for answer in response.topics
        for done in answer.partitions
        if done.error_code
    ]
    if failed and failed[0].retriable:
        raise failed[0]
    return failed


def _delete_offsets(client: Client, name: str, places: list[TopicPartition]) -> dict[TopicPartition, int]:
    part = m.OffsetDeleteRequest.OffsetDeleteRequestPartition
    topics = [
        m.OffsetDeleteRequest.OffsetDeleteRequestTopic(
            topic, [part(number) for one, number in places if one == topic]
        )
        for topic in sorted({topic for topic, _ in places})
    ]
    response: m.OffsetDeleteResponse = ask(client, name, m.OffsetDeleteRequest(name, topics))
    check(name, response.error_code)
    return {
        (topic.name, one.partition_index): one.error_code
        for topic in response.topics
        for one in topic.partitions
    }
