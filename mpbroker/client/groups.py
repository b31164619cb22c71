"""Requests about consumer groups, sent to each group's coordinator.

DescribeGroups describes classic groups, ConsumerGroupDescribe those of the consumer protocol (KIP-848). The
requests about offsets are the same for both kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from mpbroker.client.errors import ApiFailed, BadText, UnsupportedByBroker, not_done
from mpbroker.client.group_descriptions import Group, classic_group, consumer_group
from mpbroker.config import known
from mpbroker.protocol import messages as m
from mpbroker.protocol.consumer_protocol import CLASSIC, CONSUMER
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.topic_names import TopicPartition

DEAD = "Dead"
# (Kafka: GroupState, GroupType)
STATES = (
    *("Stable", "Empty", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"),
    *("NotReady", DEAD),
)
TYPES = (CLASSIC, CONSUMER, "share", "streams")
# A group in one of these states has no members, so that anybody may commit its offsets.
INACTIVE = ("Empty", DEAD)
# A classic group may have an empty id.
_NOT_A_CONSUMER_GROUP = (
    *(ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.INVALID_GROUP_ID),
    ErrorCode.UNSUPPORTED_VERSION,
)


class GroupOffsets(msgspec.Struct, frozen=True):
    """A group with its committed offsets. `group` is None if its coordinator does not describe the group."""

    name: str
    type: str
    state: str
    group: Group | None
    committed: dict[TopicPartition, int]


def parse_state(text: str) -> str:
    """Return the name of a group's state, whatever its case. Raises BadText."""
    return _one_of("a state", STATES, text)


def parse_type(text: str) -> str:
    """Return the name of a type of groups, whatever its case. Raises BadText."""
    return _one_of("a type", TYPES, text)


def parse_protocol(text: str) -> str:
    """Return the name of a protocol by which this client joins a group. Raises BadText."""
    return _one_of("a protocol", (CLASSIC, CONSUMER), text)


def _one_of(what: str, names: Sequence[str], text: str) -> str:
    for name in names:
        if name.lower() == text.lower():
            return name
    raise BadText(f"{what} is one of {', '.join(names)}")


def list_groups(admin: Admin) -> list[m.ListGroupsResponse.ListedGroup]:
    """Return the groups of all brokers, sorted by name. Raises ApiFailed."""
    listed = [
        group for broker in admin.broker_ids() for group in admin.patiently(partial(_list, admin, broker))
    ]
    return sorted(listed, key=lambda group: group.group_id)


def describe(admin: Admin, name: str, patience_ms: int = PATIENCE_MS, kind: str = "") -> Group:
    """Describe a group. `kind`: its type, if it is known, so that the API of that type is asked first.

    Raises ApiFailed (GROUP_ID_NOT_FOUND if the group does not exist).
    """
    with _guessing(admin, name):
        return admin.patiently(partial(_describe, admin, name, kind), patience_ms)


def describe_all(admin: Admin) -> list[GroupOffsets]:
    """Return all groups of a cluster of one broker, with at most four requests. Raises ApiFailed."""
    listed: m.ListGroupsResponse = admin.cluster.ask_any(m.ListGroupsRequest())
    if listed.error_code:
        raise ApiFailed("groups", listed.error_code)
    names = [one.group_id for one in listed.groups]
    if not names:
        return []
    wanted = [m.OffsetFetchRequest.OffsetFetchRequestGroup(name, topics=None) for name in names]
    response: m.OffsetFetchResponse = admin.cluster.ask_any(m.OffsetFetchRequest(groups=wanted))
    offsets = {group.group_id: fetched_offsets(group) for group in response.groups}
    described = _described(admin, listed.groups)
    return [
        GroupOffsets(
            one.group_id,
            type_of(one),
            one.group_state,
            described.get(one.group_id),
            offsets.get(one.group_id, {}),
        )
        for one in listed.groups
    ]


def type_of(listed: m.ListGroupsResponse.ListedGroup) -> str:
    """Return a group's type: classic, consumer …; "" if the broker is too old to tell."""
    return listed.group_type.lower()


def _described(admin: Admin, listed: Iterable[m.ListGroupsResponse.ListedGroup]) -> dict[str, Group]:
    """Return the groups that are described without an error, by name."""
    names: dict[bool, list[str]] = {False: [], True: []}
    for one in listed:
        names[type_of(one) == CONSUMER].append(one.group_id)
    found: list[Group] = []
    if names[False]:
        classic: m.DescribeGroupsResponse = admin.cluster.ask_any(m.DescribeGroupsRequest(names[False]))
        found += [classic_group(one) for one in classic.groups if not one.error_code]
    if names[True]:
        request = m.ConsumerGroupDescribeRequest(names[True])
        consumer: m.ConsumerGroupDescribeResponse = admin.cluster.ask_any(request)
        found += [consumer_group(one) for one in consumer.groups if not one.error_code]
    return {one.name: one for one in found}


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
            not_empty = result.error_code == ErrorCode.NON_EMPTY_GROUP
            check(name, result.error_code, "has members: stop its consumers first" if not_empty else None)


@contextmanager
def _guessing(admin: Admin, name: str) -> Iterator[None]:
    """Within this context, add the name of a similar group to the error that a group does not exist."""
    try:
        yield
    except ApiFailed as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        types = {one.group_id: one.group_type for one in list_groups(admin)}
        if types.get(name) == CONSUMER:
            text = "the broker does not serve consumer groups (group.coordinator.rebalance.protocols)"
            raise ApiFailed(f"group {name}", ErrorCode.UNSUPPORTED_VERSION, text) from error
        guess = known.hint([name], list(types))
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


def _describe(admin: Admin, name: str, kind: str) -> Group:
    """Describe a group. Try ConsumerGroupDescribe first, unless `kind` is classic. Raises ApiFailed."""
    order = (_describe_consumer_group, _describe_classic_group)
    for ask_for in order if kind != CLASSIC else reversed(order):
        if (found := ask_for(admin, name)) is not None:
            return found
    raise not_done(f"group {name}", ErrorCode.GROUP_ID_NOT_FOUND, None)


def _describe_classic_group(admin: Admin, name: str) -> Group | None:
    """Describe a classic group; return None if it does not exist. Raises ApiFailed."""
    response: m.DescribeGroupsResponse = ask(admin, name, m.DescribeGroupsRequest([name]))
    group = only(response.groups, f"group {name}")
    if group.group_state == DEAD or group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    check(name, group.error_code)
    return classic_group(group)


def _describe_consumer_group(admin: Admin, name: str) -> Group | None:
    """Describe a group of the consumer protocol; return None if it, or the broker's API, does not exist.

    Raises ApiFailed.
    """
    try:
        response: m.ConsumerGroupDescribeResponse = ask(admin, name, m.ConsumerGroupDescribeRequest([name]))
    except UnsupportedByBroker:
        return None
    group = only(response.groups, f"group {name}")
    if group.error_code in _NOT_A_CONSUMER_GROUP:
        return None
    check(name, group.error_code, group.error_message)
    return consumer_group(group)


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
