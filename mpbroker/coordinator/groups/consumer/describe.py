"""ConsumerGroupDescribe: the epochs, members and assignments of consumer groups (KIP-848).

(Kafka: GroupMetadataManager.consumerGroupDescribe, ConsumerGroup.asDescribedGroup.)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.groups.consumer.changes import Changes, Writer
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup, Member
from mpbroker.coordinator.groups.consumer.records import NO_PARTITIONS
from mpbroker.coordinator.groups.consumer.topic_metadata import TopicMetadata
from mpbroker.coordinator.groups.group_manager import GroupMetadataManager
from mpbroker.coordinator.runtime.requests import Answers, RequestContext
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse

DescribedGroup: TypeAlias = ConsumerGroupDescribeResponse.DescribedGroup
# The most that one response has of members; the handler asks again for the groups that are left out.
DESCRIBED_BYTES: Final = 1 << 20
# Estimates of what a response takes.
MEMBER_BYTES: Final = 200
NAME_BYTES: Final = 40
CLASSIC_TYPE: Final = 0
CONSUMER_TYPE: Final = 1


@dataclass(eq=False)
class ConsumerGroupDescribe:
    _config: BrokerConfig
    _manager: GroupMetadataManager
    _topics: TopicMetadata
    _writer: Writer
    _answers: Answers

    def describe(
        self, context: RequestContext, request: ConsumerGroupDescribeRequest
    ) -> ConsumerGroupDescribeResponse | None:
        """Describe the first groups, as many as fit, when all that is told of them is durable."""
        found = (self._manager.find(name) for name in request.group_ids)
        unwritten = [group for group in found if isinstance(group, ConsumerGroup) and group.unwritten]
        missing = len(unwritten)

        def written(_error: ErrorCode) -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                self._answers.answer(context.waiter, self._describe_all(request))

        for group in unwritten:
            self._writer.write(Changes(group), written, context.waiter)
        return None if unwritten else self._describe_all(request)

    def _describe_all(self, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
        response, size = ConsumerGroupDescribeResponse(), 0
        for name in request.group_ids:
            if size >= DESCRIBED_BYTES:
                break
            described = DescribedGroup(group_id=name)
            try:
                size += self._describe(described)
            except ApiError as error:
                described.error_code, described.error_message = error.code, error.message
            response.groups.append(described)
        return response

    def _describe(self, described: DescribedGroup) -> int:
        """Fill in a group. Return an estimate of its bytes. Raises ApiError."""
        name = described.group_id
        if not name:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        self._manager.partitions.check_loaded(name)
        group = self._manager.find(name)
        if not isinstance(group, ConsumerGroup):
            what = "not found" if group is None else "is not a consumer group"
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {name:.255s} {what}.")
        described.group_state = group.state.value
        described.group_epoch = group.epoch
        described.assignment_epoch = group.target.epoch
        described.assignor_name = group.preferred_assignor(self._config.consumer_assignors[0])
        described.members = [self._member(group, member) for member in group.members.values()]
        named = sum(len(member.subscribed_topic_names) for member in described.members)
        return MEMBER_BYTES * len(described.members) + NAME_BYTES * named

    def _member(self, group: ConsumerGroup, member: Member) -> ConsumerGroupDescribeResponse.Member:
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
            assignment=self._assignment(member.current.partitions),
            target_assignment=self._assignment(target),
            member_type=CLASSIC_TYPE if member.is_classic else CONSUMER_TYPE,
        )

    def _assignment(
        self, assignment: Mapping[bytes, Collection[int]]
    ) -> ConsumerGroupDescribeResponse.Assignment:
        """Return an assignment with names. Topics that do not exist any more are left out."""
        part = ConsumerGroupDescribeResponse.TopicPartitions
        return ConsumerGroupDescribeResponse.Assignment(
            [
                part(topic_id, name, sorted(partitions))
                for topic_id, partitions in assignment.items()
                if (name := self._topics.name_of(topic_id)) is not None
            ]
        )
