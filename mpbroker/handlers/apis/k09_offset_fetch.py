"""OffsetFetch (key 9), versions 1-10: a group's offsets, from v8 on those of several; topics by id from v10.

Without topics all offsets are meant (v2). `require_stable` (v7, KIP-447) waits for commits under way. Topics
that are gone have no id: v10 leaves them out where all are asked for. (Kafka:
KafkaApis.handleOffsetFetchRequest, OffsetMetadataManager.fetchOffsets; KIP-709 for v8.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.exchange import Exchange
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode, error_code
from mpbroker.protocol.messages import ZERO_UUID, OffsetFetchRequest, OffsetFetchResponse

FIRST_VERSION_WITH_GROUP_ERROR = 2
FIRST_VERSION_WITH_GROUPS = 8
FIRST_VERSION_WITH_TOPIC_IDS = 10
NO_OFFSET = NO_EPOCH = -1

Group = OffsetFetchResponse.OffsetFetchResponseGroup
Topic = OffsetFetchResponse.OffsetFetchResponseTopic
Partition = OffsetFetchResponse.OffsetFetchResponsePartition


def failed(exchange: Exchange, code: ErrorCode) -> OffsetFetchResponse:
    request = exchange.body
    if exchange.version >= FIRST_VERSION_WITH_GROUPS:
        return OffsetFetchResponse(groups=[Group(g.group_id, error_code=code) for g in request.groups])
    if exchange.version >= FIRST_VERSION_WITH_GROUP_ERROR:
        return OffsetFetchResponse(error_code=code)
    return OffsetFetchResponse(
        topics=[
            Topic(t.name, [Partition(i, NO_OFFSET, NO_EPOCH, "", code) for i in t.partition_indexes])
            for t in request.topics or ()
        ]
    )


def shaped(exchange: Exchange, response: OffsetFetchResponse) -> OffsetFetchResponse:
    if exchange.version < FIRST_VERSION_WITH_GROUPS:
        group = response.groups[0]
        if group.error_code:
            return failed(exchange, error_code(group.error_code))
        return OffsetFetchResponse(
            topics=[
                Topic(
                    topic.name,
                    [
                        Partition(
                            p.partition_index,
                            p.committed_offset,
                            p.committed_leader_epoch,
                            p.metadata,
                            p.error_code,
                        )
                        for p in topic.partitions
                    ],
                )
                for topic in group.topics
            ]
        )
    if exchange.version >= FIRST_VERSION_WITH_TOPIC_IDS:
        asked = {group.group_id: group.topics for group in exchange.body.groups}
        for group in response.groups:
            if asked[group.group_id] is None:
                group.topics = [topic for topic in group.topics if topic.topic_id != ZERO_UUID]
    return response


@api(ApiKey.OFFSET_FETCH, 1, 10, name="OffsetFetch", failed=failed)
def handle(exchange: Exchange) -> None:
    """The committed offsets of groups."""
    request = exchange.body
    if exchange.version < FIRST_VERSION_WITH_GROUPS:
        topics = request.topics
        request.groups = [
            OffsetFetchRequest.OffsetFetchRequestGroup(
                request.group_id,
                topics=None
                if topics is None
                else [
                    OffsetFetchRequest.OffsetFetchRequestTopics(
                        topic.name, partition_indexes=topic.partition_indexes
                    )
                    for topic in topics
                ],
            )
        ]
    exchange.broker.groups.forward(exchange, request, lambda response: shaped(exchange, response))
