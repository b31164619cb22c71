"""TxnOffsetCommit (key 28), versions 0-5: stores a group's offsets as part of a transaction.

The response comes when the offsets are durable; the end of the transaction commits or drops them. v5 also
adds the group's partition to the transaction. (Kafka: KafkaApis.handleTxnOffsetCommitRequest,
OffsetMetadataManager.commitTransactionalOffset; KIP-98, KIP-447, KIP-890.)
"""

from __future__ import annotations

from typing import TypeAlias

from mpbroker.handlers.api_parts.offset_commits import pass_on_commit
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.request import Outcome
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse

Topic: TypeAlias = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic


def refused(topic: TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic, code: ErrorCode) -> Topic:
    return Topic(
        topic.name,
        [
            TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(partition.partition_index, code)
            for partition in topic.partitions
        ],
    )


def response_of(topics: list[Topic]) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(topics=topics)


def failed(context: RequestContext, code: ErrorCode) -> TxnOffsetCommitResponse:
    return response_of([refused(topic, code) for topic in context.body.topics])


@api(ApiKey.TXN_OFFSET_COMMIT, 0, 5, name="TxnOffsetCommit", failed=failed, is_forwarded=True)
def handle(context: RequestContext) -> Outcome:
    """Stores offsets of a group that are committed or dropped with a transaction."""
    return pass_on_commit(context, refused, response_of)
