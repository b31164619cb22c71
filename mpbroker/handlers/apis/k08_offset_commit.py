"""OffsetCommit (key 8), versions 2-10: stores offsets of a group; topics have ids from v10 on.

The response comes when the offsets are durable. (Kafka: KafkaApis.handleOffsetCommitRequest,
OffsetMetadataManager.commitOffset.)
"""

from __future__ import annotations

from typing import TypeAlias

from mpbroker.handlers.api_parts.offset_commits import pass_on_commit
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.request import Outcome
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import OffsetCommitRequest, OffsetCommitResponse

Topic: TypeAlias = OffsetCommitResponse.OffsetCommitResponseTopic


def refused(topic: OffsetCommitRequest.OffsetCommitRequestTopic, code: ErrorCode) -> Topic:
    return Topic(
        topic.name,
        topic.topic_id,
        [
            OffsetCommitResponse.OffsetCommitResponsePartition(partition.partition_index, code)
            for partition in topic.partitions
        ],
    )


def response_of(topics: list[Topic]) -> OffsetCommitResponse:
    return OffsetCommitResponse(topics=topics)


def failed(context: RequestContext, code: ErrorCode) -> OffsetCommitResponse:
    return response_of([refused(topic, code) for topic in context.body.topics])


@api(ApiKey.OFFSET_COMMIT, 2, 10, name="OffsetCommit", failed=failed, is_forwarded=True)
def handle(context: RequestContext) -> Outcome:
    """Stores offsets of a group, and answers when the offsets are durable."""
    return pass_on_commit(context, refused, response_of)
