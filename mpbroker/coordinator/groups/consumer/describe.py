"""ConsumerGroupDescribe: the epochs, members and assignments of consumer groups (KIP-848).

(Kafka: GroupMetadataManager.consumerGroupDescribe.)
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.groups.consumer.changes import Changes, Writer
from mpbroker.coordinator.groups.consumer.described_group import DescribedGroup, description_in_pieces
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.groups.consumer.topic_metadata import TopicMetadata
from mpbroker.coordinator.groups.group_manager import GroupMetadataManager
from mpbroker.coordinator.groups.log_text import shown
from mpbroker.coordinator.runtime.background import Background, Job
from mpbroker.coordinator.runtime.requests import Answers, RequestContext, Waiter
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse

# The most that one response has of members; the handler asks again for the groups that are left out.
DESCRIBED_BYTES: Final = 1 << 20
# Estimates of what a response takes.
DESCRIBED_MEMBER_BYTES: Final = 200
DESCRIBED_NAME_BYTES: Final = 40
DESCRIBE_JOB: Final = "describe"

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
        """Describe the first groups, as many as fit into a response, when all their changes are durable."""
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
            try:
                described = yield from self._describe(name)
            except ApiError as error:
                described = DescribedGroup(error.code, error.message, name)
            named = sum(len(member.subscribed_topic_names) for member in described.members)
            size += DESCRIBED_MEMBER_BYTES * len(described.members) + DESCRIBED_NAME_BYTES * named
            response.groups.append(described)
        return response

    def _describe(self, name: str) -> Job[DescribedGroup]:
        """Describe a group. Raises ApiError."""
        if not name:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        self._manager.partitions.check_loaded(name)
        group = self._manager.find(name)
        if not isinstance(group, ConsumerGroup):
            what = "not found" if group is None else "is not a consumer group"
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {name:.255s} {what}.")
        assignor = self._config.consumer_assignors[0]
        return (yield from description_in_pieces(group, assignor, self._topics.name_of))
