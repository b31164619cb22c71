"""Describes a consumer group for ConsumerGroupDescribe, and for programs that read it from the log.

(Kafka: ConsumerGroup.asDescribedGroup, ConsumerGroupMember.asConsumerGroupDescribeMember.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from typing import Final, TypeAlias

from mpbroker.coordinator.groups.consumer.group import ConsumerGroup, Member
from mpbroker.coordinator.groups.consumer.records import NO_PARTITIONS, Assignment
from mpbroker.protocol.consumer_protocol import CLASSIC_MEMBER, CONSUMER_MEMBER
from mpbroker.protocol.messages import ConsumerGroupDescribeResponse
from mpbroker.records.validation import at_once

DescribedGroup: TypeAlias = ConsumerGroupDescribeResponse.DescribedGroup
NameOf: TypeAlias = Callable[[bytes], str | None]
"""Returns the name of a topic by its id, None if there is no such topic."""
# Members and their topics in one piece of a description.
NAMES_AT_ONCE: Final = 2_000


def description(group: ConsumerGroup, default_assignor: str, name_of: NameOf) -> DescribedGroup:
    return at_once(description_in_pieces(group, default_assignor, name_of))


def description_in_pieces(
    group: ConsumerGroup, default_assignor: str, name_of: NameOf
) -> Generator[None, None, DescribedGroup]:
    """Describe the group as it is now, in pieces, since it may have many members."""
    members = list(group.members.values())
    targets = {one.member_id: group.targets.get(one.member_id, NO_PARTITIONS) for one in members}
    described = DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target.epoch,
        assignor_name=group.preferred_assignor(default_assignor),
    )
    return _with_members(described, members, targets, name_of)


def _with_members(
    described: DescribedGroup, members: list[Member], targets: Mapping[str, Assignment], name_of: NameOf
) -> Generator[None, None, DescribedGroup]:
    names = 0
    for member in members:
        described.members.append(_member(member, targets[member.member_id], name_of))
        names += 1 + len(member.metadata.topics)
        if names >= NAMES_AT_ONCE:
            names = 0
            yield
    return described


def _member(member: Member, target: Assignment, name_of: NameOf) -> ConsumerGroupDescribeResponse.Member:
    told = member.metadata
    return ConsumerGroupDescribeResponse.Member(
        member_id=member.member_id,
        instance_id=told.instance_id,
        rack_id=told.rack_id,
        member_epoch=member.epoch,
        client_id=told.client_id,
        client_host=told.client_host,
        subscribed_topic_names=sorted(told.topics),
        subscribed_topic_regex=told.pattern,
        assignment=_assignment(member.current.partitions, name_of),
        target_assignment=_assignment(target, name_of),
        member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    )


def _assignment(
    assignment: Mapping[bytes, Collection[int]], name_of: NameOf
) -> ConsumerGroupDescribeResponse.Assignment:
    """Return an assignment with names. Topics that do not exist any more are left out."""
    part = ConsumerGroupDescribeResponse.TopicPartitions
    return ConsumerGroupDescribeResponse.Assignment(
        [
            part(topic_id, name, sorted(partitions))
            for topic_id, partitions in assignment.items()
            if (name := name_of(topic_id)) is not None
        ]
    )
