"""OffsetCommit (key 8), versions 2-10: where a group is in its partitions; topics by id from v10 on.

Answered when the offsets are durable. (Kafka: KafkaApis.handleOffsetCommitRequest,
OffsetMetadataManager.commitOffset.) All of a commit is one batch of records: what cannot be one is refused
here already, so that it holds up nobody's heartbeats.
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.exchange import Exchange
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import OffsetCommitResponse

# Of an offset, whatever the names of its group and topic.
SMALLEST_RECORD_BYTES = 40


def failed(exchange: Exchange, code: ErrorCode) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponse.OffsetCommitResponseTopic(
                topic.name,
                topic.topic_id,
                [
                    OffsetCommitResponse.OffsetCommitResponsePartition(partition.partition_index, code)
                    for partition in topic.partitions
                ],
            )
            for topic in exchange.body.topics
        ]
    )


@api(ApiKey.OFFSET_COMMIT, 2, 10, name="OffsetCommit", failed=failed)
def handle(exchange: Exchange) -> None:
    """Stores offsets of a group, durably before it answers."""
    topics, groups = exchange.body.topics, exchange.broker.groups
    if exchange.names_too_many(len(topics)):
        return
    named = sum(len(topic.partitions) for topic in topics)
    if named * SMALLEST_RECORD_BYTES > exchange.broker.config.message_max_bytes:
        exchange.fail(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
        return
    groups.forward(exchange, exchange.body, lambda response: response)
