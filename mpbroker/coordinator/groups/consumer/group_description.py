"""A consumer group as ConsumerGroupDescribe describes it, also from records that were read from the log.

(Kafka: ConsumerGroup.asDescribedGroup, ConsumerGroupMember.asConsumerGroupDescribeMember.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeAlias

from mpbroker.coordinator.groups.consumer.group import ConsumerGroup, Member
from mpbroker.coordinator.groups.consumer.records import NO_PARTITIONS
from mpbroker.protocol.messages import ConsumerGroupDescribeResponse

DescribedGroup: TypeAlias = ConsumerGroupDescribeResponse.DescribedGroup
NameOf: TypeAlias = Callable[[bytes], str | None]
"""Returns the name of a topic by its id, None if there is no such topic."""
CLASSIC_TYPE: Final = 0
CONSUMER_TYPE: Final = 1


def description(group: ConsumerGroup, default_assignor: str, name_of: NameOf) -> DescribedGroup:
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target.epoch,
        assignor_name=group.preferred_assignor(default_assignor),
        members=[_member(group, member, name_of) for member in group.members.values()],
    )


def _member(group: ConsumerGroup, member: Member, name_of: NameOf) -> ConsumerGroupDescribeResponse.Member:
    told = member.metadata
    target = group.targets.get(member.member_id, NO_PARTITIONS)
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
        member_type=CLASSIC_TYPE if member.is_classic else CONSUMER_TYPE,
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
