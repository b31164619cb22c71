"""ConsumerGroupDescribe: the epochs, members and assignments of consumer groups (KIP-848).

(Kafka: GroupMetadataManager.consumerGroupDescribe, ConsumerGroup.asDescribedGroup.)
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.groups.classic.group import shown
from mpbroker.coordinator.groups.consumer.changes import Changes, Writer
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup, Member
from mpbroker.coordinator.groups.consumer.records import NO_PARTITIONS, Assignment
from mpbroker.coordinator.groups.consumer.topic_metadata import TopicMetadata
from mpbroker.coordinator.groups.group_manager import GroupMetadataManager
from mpbroker.coordinator.runtime.background import Background, Job
from mpbroker.coordinator.runtime.requests import Answers, RequestContext, Waiter
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse

DescribedGroup: TypeAlias = ConsumerGroupDescribeResponse.DescribedGroup
# The most that one response has of members; the handler asks again for the groups that are left out.
DESCRIBED_BYTES: Final = 1 << 20
# Estimates of what a response takes.
MEMBER_BYTES: Final = 200
NAME_BYTES: Final = 40
# Bytes of members that are described in one slice.
SLICE_BYTES: Final = 1 << 16
DESCRIBE_JOB: Final = "describe"
CLASSIC_TYPE: Final = 0
CONSUMER_TYPE: Final = 1

log = logging.getLogger("mpbroker.coordinator.groups")


@dataclass(eq=False)
class ConsumerGroupDescribe:
    _config: BrokerConfig
    _manager: GroupMetadataManager
    _topics: TopicMetadata
    _writer: Writer
    _background: Background
    _answers: Answers

    def describe(self, context: RequestContext, request: ConsumerGroupDescribeRequest) -> None:
        """Describe the first groups, as many as fit, when all that is told of them is durable."""
        found = (self._manager.find(name) for name in request.group_ids)
        unwritten = [group for group in found if isinstance(group, ConsumerGroup) and group.unwritten]
        missing = len(unwritten)

        def written(_error: ErrorCode) -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                self._start(context, request)

        for group in unwritten:
            self._writer.write(Changes(group), written, context.waiter)
        if not unwritten:
            self._start(context, request)

    def _start(self, context: RequestContext, request: ConsumerGroupDescribeRequest) -> None:
        job = self._serve(context.waiter, request)
        self._background.start(DESCRIBE_JOB, repr(context.waiter), job, lambda _: None)

    def _serve(self, waiter: Waiter, request: ConsumerGroupDescribeRequest) -> Job[None]:
        try:
            response = yield from self._describe_all(request)
            yield from self._answers.answer_in_pieces(waiter, response)
        except Exception:
            log.exception("groups %s: they cannot be described", shown(request.group_ids))
            self._answers.fail(waiter, ErrorCode.UNKNOWN_SERVER_ERROR)

    def _describe_all(self, request: ConsumerGroupDescribeRequest) -> Job[ConsumerGroupDescribeResponse]:
        response, size = ConsumerGroupDescribeResponse(), 0
        for name in request.group_ids:
            if size >= DESCRIBED_BYTES:
                break
            described = DescribedGroup(group_id=name)
            try:
                size += yield from self._describe(described)
            except ApiError as error:
                described.error_code, described.error_message = error.code, error.message
            response.groups.append(described)
        return response

    def _describe(self, described: DescribedGroup) -> Job[int]:
        """Fill in a group as it is now. Return an estimate of its bytes. Raises ApiError."""
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
        members, targets = list(group.members.values()), group.targets.copy()
        size = described_bytes = 0
        for member in members:
            target = targets.get(member.member_id, NO_PARTITIONS)
            described.members.append(self._member(member, target))
            size += MEMBER_BYTES + NAME_BYTES * len(member.metadata.topics)
            if size > described_bytes + SLICE_BYTES:
                described_bytes = size
                yield
        return size

    def _member(self, member: Member, target: Assignment) -> ConsumerGroupDescribeResponse.Member:
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
