"""ConsumerGroupDescribe: the epochs, members and assignments of consumer groups (KIP-848).

(Kafka: GroupMetadataManager.consumerGroupDescribe.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.groups.consumer.changes import Changes, Writer
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.groups.consumer.group_description import DescribedGroup, description
from mpbroker.coordinator.groups.consumer.topic_metadata import TopicMetadata
from mpbroker.coordinator.groups.group_manager import GroupMetadataManager
from mpbroker.coordinator.runtime.requests import Answers, RequestContext
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse

# The most that one response has of members; the handler asks again for the groups that are left out.
DESCRIBED_BYTES: Final = 1 << 20
# Estimates of what a response takes.
MEMBER_BYTES: Final = 200
NAME_BYTES: Final = 40


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
            try:
                described = self._describe(name)
            except ApiError as error:
                described = DescribedGroup(error.code, error.message, name)
            named = sum(len(member.subscribed_topic_names) for member in described.members)
            size += MEMBER_BYTES * len(described.members) + NAME_BYTES * named
            response.groups.append(described)
        return response

    def _describe(self, name: str) -> DescribedGroup:
        """Describe a group. Raises ApiError."""
        if not name:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        self._manager.partitions.check_loaded(name)
        group = self._manager.find(name)
        if not isinstance(group, ConsumerGroup):
            what = "not found" if group is None else "is not a consumer group"
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {name:.255s} {what}.")
        return description(group, self._config.consumer_assignors[0], self._topics.name_of)
