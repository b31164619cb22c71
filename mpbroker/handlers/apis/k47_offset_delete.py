"""OffsetDelete (key 47), version 0: deletes offsets of topics that no member is subscribed to (KIP-496).

(Kafka: KafkaApis.handleOffsetDeleteRequest, OffsetMetadataManager.deleteOffsets.)
"""

from __future__ import annotations

from typing import TypeAlias

from mpbroker.handlers.api_parts.allowed_topics import forward_allowed
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.request import Outcome
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import OffsetDeleteRequest, OffsetDeleteResponse

Topic: TypeAlias = OffsetDeleteResponse.OffsetDeleteResponseTopic


def refused(topic: OffsetDeleteRequest.OffsetDeleteRequestTopic, code: ErrorCode) -> Topic:
    return Topic(
        topic.name,
        [
            OffsetDeleteResponse.OffsetDeleteResponsePartition(partition.partition_index, code)
            for partition in topic.partitions
        ],
    )


@api(ApiKey.OFFSET_DELETE, 0, 0, name="OffsetDelete", is_forwarded=True)
def handle(context: RequestContext) -> Outcome:
    """Deletes committed offsets of topics that the group is not subscribed to."""
    return forward_allowed(context, refused, lambda topics: OffsetDeleteResponse(topics=topics))
