"""Groups and their members, as DescribeGroups and ConsumerGroupDescribe describe them. Without I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from mpbroker.client.range_assignor import assigned_partitions
from mpbroker.protocol import messages as m
from mpbroker.protocol.consumer_protocol import (
    CLASSIC,
    CONSUMER,
    CONSUMER_MEMBER,
    CONSUMER_PROTOCOL,
    STATIC_LEAVE_EPOCH,
)
from mpbroker.protocol.topic_names import TopicPartition


class Member(msgspec.Struct, frozen=True):
    """A member of a group, with the partitions that are assigned to it.

    `epoch` and the fields after it are set only in groups of the consumer protocol. `state`: how far the
    member is on the way to its target (see `state_of`). `target`: the partitions that it shall have.
    `topics`, `pattern`: what it subscribes to. `is_upgraded`: it uses the consumer protocol, not the classic
    one; None if unknown.
    """

    id: str
    instance: str | None
    client: str
    host: str
    partitions: list[TopicPartition]
    epoch: int | None = None
    state: str | None = None
    target: list[TopicPartition] | None = None
    topics: list[str] = []
    pattern: str | None = None
    is_upgraded: bool | None = None


class Group(msgspec.Struct, frozen=True):
    """A group as its coordinator describes it. `type` is classic or consumer, `assignor` e.g. range.

    Groups of the consumer protocol have epochs: the group's own, and the one of the target assignment.
    """

    name: str
    type: str
    state: str
    protocol_type: str
    assignor: str
    members: list[Member]
    epoch: int | None = None
    target_epoch: int | None = None


def state_of(
    epoch: int, target_epoch: int, assigned: Collection[TopicPartition], target: Collection[TopicPartition]
) -> str:
    """Return how far a member is on the way to its target.

    away       a static member that has left, and may return
    revoking   it has partitions to give up
    behind     it has not learnt of the target of this epoch
    waiting    others still have partitions of its target
    stable     it has its target
    """
    if epoch == STATIC_LEAVE_EPOCH:
        return "away"
    if not set(assigned) <= set(target):
        return "revoking"
    if epoch < target_epoch:
        return "behind"
    return "stable" if len(set(assigned)) == len(set(target)) else "waiting"


def places_text(places: Iterable[TopicPartition]) -> str | None:
    """Return partitions as topic(0,1), topic(2); None if there are none."""
    numbers: dict[str, list[str]] = {}
    for topic, number in places:
        numbers.setdefault(topic, []).append(str(number))
    return ", ".join(f"{topic}({','.join(found)})" for topic, found in numbers.items()) or None


def subscription_text(topics: Iterable[str], pattern: str | None) -> str | None:
    """Return a subscription as text, such as "orders, bills, pattern x.*"; None if it is empty."""
    return ", ".join([*topics, *([f"pattern {pattern}"] if pattern else [])]) or None


def classic_group(group: m.DescribeGroupsResponse.DescribedGroup) -> Group:
    # Members that are no consumers (Connect's workers) have assignments in formats of their own.
    is_readable = group.protocol_type == CONSUMER_PROTOCOL
    members = [
        Member(
            one.member_id,
            one.group_instance_id,
            one.client_id,
            one.client_host.removeprefix("/"),
            assigned_partitions(one.member_assignment) if is_readable else [],
        )
        for one in group.members
    ]
    return Group(
        group.group_id, CLASSIC, group.group_state, group.protocol_type, group.protocol_data, members
    )


def consumer_group(group: m.ConsumerGroupDescribeResponse.DescribedGroup) -> Group:
    return Group(
        group.group_id,
        CONSUMER,
        group.group_state,
        CONSUMER_PROTOCOL,
        group.assignor_name,
        [_member(one, group.assignment_epoch) for one in group.members],
        group.group_epoch,
        group.assignment_epoch,
    )


def _member(one: m.ConsumerGroupDescribeResponse.Member, target_epoch: int) -> Member:
    assigned, target = _places(one.assignment), _places(one.target_assignment)
    return Member(
        one.member_id,
        one.instance_id,
        one.client_id,
        one.client_host.removeprefix("/"),
        assigned,
        one.member_epoch,
        state_of(one.member_epoch, target_epoch, assigned, target),
        target,
        sorted(one.subscribed_topic_names),
        one.subscribed_topic_regex or None,
        None if one.member_type < 0 else one.member_type == CONSUMER_MEMBER,
    )


def _places(assignment: m.ConsumerGroupDescribeResponse.Assignment) -> list[TopicPartition]:
    parts = assignment.topic_partitions
    return sorted((part.topic_name, number) for part in parts for number in part.partitions)
