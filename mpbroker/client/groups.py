"""Requests about consumer groups, sent to each group's coordinator.

DescribeGroups describes classic groups, ConsumerGroupDescribe those of the consumer protocol (KIP-848). The
requests about offsets are the same for both kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from mpbroker.client.admin import Admin, only
from mpbroker.client.cluster import CoordinatorType
from mpbroker.client.committed_offsets import (
    commit_errors,
    commit_request,
    fetch_request,
    fetched_offsets,
    of_group,
)
from mpbroker.client.consumer import PATIENCE_MS
from mpbroker.client.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from mpbroker.client.errors import ApiFailed, UnsupportedByBroker, not_done
from mpbroker.config import known
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.topic_names import TopicPartition

# The types of groups.
CONSUMER = "consumer"
CLASSIC = "classic"
DEAD = "Dead"
# A group in one of these states has no members, so that anybody may commit its offsets.
INACTIVE = ("Empty", DEAD)


class Member(msgspec.Struct, frozen=True):
    """A member of a group, with the partitions that are assigned to it."""

    id: str
    instance: str | None
    client: str
    host: str
    partitions: list[TopicPartition]


class Group(msgspec.Struct, frozen=True):
    """A group as its coordinator describes it. `type` is classic or consumer, `assignor` e.g. range."""

    name: str
    type: str
    state: str
    protocol_type: str
    assignor: str
    members: list[Member]


class GroupOffsets(msgspec.Struct, frozen=True):
    """A group with its committed offsets. `members` is None if DescribeGroups does not describe the group."""

    name: str
    state: str
    members: list[Member] | None
    committed: dict[TopicPartition, int]


def list_groups(admin: Admin) -> list[m.ListGroupsResponse.ListedGroup]:
    """Return the groups of all brokers, sorted by name. Raises ApiFailed."""
    listed = [
        group for broker in admin.broker_ids() for group in admin.patiently(partial(_list, admin, broker))
    ]
    return sorted(listed, key=lambda group: group.group_id)


def describe(admin: Admin, name: str, patience_ms: int = PATIENCE_MS) -> Group:
    """Describe a group of either protocol. Raises ApiFailed (GROUP_ID_NOT_FOUND if it does not exist)."""
    with _guessing(admin, name):
        return admin.patiently(partial(_describe, admin, name), patience_ms)


def describe_all(admin: Admin) -> list[GroupOffsets]:
    """Return all groups of a cluster of one broker, with three requests. Raises ApiFailed."""
    listed: m.ListGroupsResponse = admin.cluster.ask_any(m.ListGroupsRequest())
    if listed.error_code:
        raise ApiFailed("groups", listed.error_code)
    names = [one.group_id for one in listed.groups]
    if not names:
        return []
    described: m.DescribeGroupsResponse = admin.cluster.ask_any(m.DescribeGroupsRequest(names))
    members = {one.group_id: _members(one) for one in described.groups if not one.error_code}
    wanted = [m.OffsetFetchRequest.OffsetFetchRequestGroup(name, topics=None) for name in names]
    response: m.OffsetFetchResponse = admin.cluster.ask_any(m.OffsetFetchRequest(groups=wanted))
    offsets = {group.group_id: fetched_offsets(group) for group in response.groups}
    return [
        GroupOffsets(name, one.group_state, members.get(name), offsets.get(name, {}))
        for name, one in zip(names, listed.groups, strict=True)
    ]


def committed(admin: Admin, name: str) -> dict[TopicPartition, int]:
    """Return a group's committed offsets, an empty dict if the group does not exist. Raises ApiFailed."""
    return admin.patiently(partial(_committed, admin, name))


def commit(admin: Admin, name: str, offsets: Mapping[TopicPartition, int]) -> list[ApiFailed]:
    """Commit offsets of a group without members; return an error for each partition that failed."""
    return admin.patiently(partial(_commit, admin, name, offsets))


def delete_offsets(admin: Admin, name: str, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Delete committed offsets; return the error code (0: deleted) of each partition. Raises ApiFailed."""
    return admin.patiently(partial(_delete_offsets, admin, name, list(places)))


def delete(admin: Admin, name: str) -> None:
    """Delete a group without members, and its offsets. Raises ApiFailed."""
    request = m.DeleteGroupsRequest([name])
    response: m.DeleteGroupsResponse = admin.patiently(partial(ask, admin, name, request))
    with _guessing(admin, name):
        for result in response.results:
            check(name, result.error_code)


@contextmanager
def _guessing(admin: Admin, name: str) -> Iterator[None]:
    """Within this context, add the name of a similar group to the error that a group does not exist."""
    try:
        yield
    except ApiFailed as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        guess = known.hint([name], [one.group_id for one in list_groups(admin)])
        raise ApiFailed(f"group {name}", error.code, f"does not exist{guess}") from error


def check(name: str, code: int, message: str | None = None) -> None:
    """Raise ApiFailed about a group if the code is not 0."""
    if code:
        raise not_done(f"group {name}", code, message)


def ask(admin: Admin, name: str, request: m.Message) -> Any:
    """Send a request to the group's coordinator; return the response."""
    return admin.cluster.ask(admin.cluster.coordinator(CoordinatorType.GROUP, name), request)


def _list(admin: Admin, node: int) -> list[m.ListGroupsResponse.ListedGroup]:
    response: m.ListGroupsResponse = admin.cluster.ask(node, m.ListGroupsRequest())
    if response.error_code:
        raise ApiFailed(f"groups of broker {node}", response.error_code)
    return response.groups


def _describe(admin: Admin, name: str) -> Group:
    response: m.DescribeGroupsResponse = ask(admin, name, m.DescribeGroupsRequest([name]))
    group = only(response.groups, f"group {name}")
    is_unknown = group.group_state == DEAD or group.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    if is_unknown and (found := _described_by_consumer_protocol(admin, name)) is not None:
        return found
    check(name, ErrorCode.GROUP_ID_NOT_FOUND if is_unknown else group.error_code)
    return Group(name, CLASSIC, group.group_state, group.protocol_type, group.protocol_data, _members(group))


def _members(group: m.DescribeGroupsResponse.DescribedGroup) -> list[Member]:
    # Members that are no consumers (Connect's workers) have assignments in formats of their own.
    is_readable = group.protocol_type == PROTOCOL_TYPE
    return [
        Member(
            one.member_id,
            one.group_instance_id,
            one.client_id,
            one.client_host.removeprefix("/"),
            sorted(decode_assignment(one.member_assignment)) if is_readable else [],
        )
        for one in group.members
    ]


def _described_by_consumer_protocol(admin: Admin, name: str) -> Group | None:
    """Describe a group of the consumer protocol; None if it does not exist, or the broker lacks the API."""
    try:
        response: m.ConsumerGroupDescribeResponse = ask(admin, name, m.ConsumerGroupDescribeRequest([name]))
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


def _committed(admin: Admin, name: str) -> dict[TopicPartition, int]:
    group = of_group(ask(admin, name, fetch_request(name, None)))
    check(name, group.error_code)
    return fetched_offsets(group)


def _commit(admin: Admin, name: str, offsets: Mapping[TopicPartition, int]) -> list[ApiFailed]:
    failed = commit_errors(ask(admin, name, commit_request(name, offsets)), f"group {name}, ")
    if failed and failed[0].retriable:
        raise failed[0]
    return failed


def _delete_offsets(admin: Admin, name: str, places: list[TopicPartition]) -> dict[TopicPartition, int]:
    part = m.OffsetDeleteRequest.OffsetDeleteRequestPartition
    topics = [
        m.OffsetDeleteRequest.OffsetDeleteRequestTopic(
            topic, [part(number) for one, number in places if one == topic]
        )
        for topic in sorted({topic for topic, _ in places})
    ]
    response: m.OffsetDeleteResponse = ask(admin, name, m.OffsetDeleteRequest(name, topics))
    check(name, response.error_code)
    return {
        (topic.name, one.partition_index): one.error_code
        for topic in response.topics
        for one in topic.partitions
    }
