"""TxnOffsetCommit (key 28), versions 0-5: a group's offsets that count once a transaction is committed.

The answer comes when the offsets are durable; the end of the transaction makes them count or drops them. v5
adds the group's partition to the transaction by itself. (Kafka: KafkaApis.handleTxnOffsetCommitRequest,
OffsetMetadataManager.commitTransactionalOffset; KIP-98, KIP-447, KIP-890.)
"""

from __future__ import annotations

from typing import TypeAlias

from mpbroker.handlers.api_parts.offset_commits import pass_on_commit
from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.handlers.requests.exchange import Outcome
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


def failed(exchange: ApiExchange, code: ErrorCode) -> TxnOffsetCommitResponse:
    return response_of([refused(topic, code) for topic in exchange.body.topics])


@api(ApiKey.TXN_OFFSET_COMMIT, 0, 5, name="TxnOffsetCommit", failed=failed, is_forwarded=True)
def handle(exchange: ApiExchange) -> Outcome:
    """Stores offsets of a group that count when a transaction is committed."""
    return pass_on_commit(exchange, refused, response_of)
