"""ConsumerGroupDescribe: the epochs, members and assignments of consumer groups (KIP-848).

(Kafka: GroupMetadataManager.consumerGroupDescribe.)
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.groups.consumer.changes import Writer
from mpbroker.coordinator.groups.consumer.described_group import DescribedGroup, description_in_pieces
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.groups.consumer.topic_metadata import TopicMetadata
from mpbroker.coordinator.groups.group_manager import GroupMetadataManager
from mpbroker.coordinator.groups.log_text import shown
from mpbroker.coordinator.runtime.background import Background, Job
from mpbroker.coordinator.runtime.requests import Answers, RequestContext, Waiter, response_error
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse

# The most that one response has of members; the handler asks again for the groups that are left out.
DESCRIBED_BYTES: Final = 1 << 20
# Estimates of what a response takes.
DESCRIBED_MEMBER_BYTES: Final = 200
DESCRIBED_NAME_BYTES: Final = 40
DESCRIBE_JOB: Final = "describe"

Described: TypeAlias = tuple[str, Job[DescribedGroup] | ApiError]
"""The id of a group, and its description, or why there is none."""

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
        """Describe the first groups, as many as fit into a response.

        The groups are described as they are now. The answer is sent when their latest changes are durable.
        The request fails if one of these changes is refused.
        """
        described = [(name, self._describe(name)) for name in request.group_ids]
        found = {name: self._manager.find(name) for name in request.group_ids}.values()

        def written(error: ErrorCode) -> None:
            if error:
                self._answers.fail(context.waiter, response_error(error))
            else:
                self._start(context.waiter, described)

        told_of = (group for group in found if isinstance(group, ConsumerGroup))
        self._writer.wait(told_of, written, context.waiter)

    def _start(self, waiter: Waiter, described: Sequence[Described]) -> None:
        self._background.start(DESCRIBE_JOB, repr(waiter), self._serve(waiter, described), lambda _: None)

    def _serve(self, waiter: Waiter, described: Sequence[Described]) -> Job[None]:
        try:
            response = yield from _response(described)
            yield from self._answers.answer_in_pieces(waiter, response)
        except Exception:
            log.exception("the groups %s cannot be described", shown([name for name, _ in described]))
            self._answers.fail(waiter, ErrorCode.UNKNOWN_SERVER_ERROR)

    def _describe(self, name: str) -> Job[DescribedGroup] | ApiError:
        """Return a job that describes a group as it is now, or the error that the client gets instead."""
        if not name:
            return ApiError(ErrorCode.INVALID_GROUP_ID)
        try:
            group = self._manager.consumer_group(name)
        except ApiError as error:
            return error
        return description_in_pieces(group, self._config.consumer_assignors[0], self._topics.name_of)


def _response(groups: Sequence[Described]) -> Job[ConsumerGroupDescribeResponse]:
    response, size = ConsumerGroupDescribeResponse(), 0
    for name, found in groups:
        if size >= DESCRIBED_BYTES:
            break
        if isinstance(found, ApiError):
            described = DescribedGroup(found.code, found.message, name)
        else:
            described = yield from found
        named = sum(len(member.subscribed_topic_names) for member in described.members)
        size += DESCRIBED_MEMBER_BYTES * len(described.members) + DESCRIBED_NAME_BYTES * named
        response.groups.append(described)
    return response
