"""TxnOffsetCommit (key 28), versions 0-5: where a group is in its partitions once a transaction is committed.

Answered when the offsets are durable; the end of the transaction makes them count or drops them. v5 adds the
group's partition to the transaction by itself. (Kafka: KafkaApis.handleTxnOffsetCommitRequest,
OffsetMetadataManager.commitTransactionalOffset; KIP-98, KIP-447, KIP-890.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.committing import is_refused
from mpbroker.handlers.exchange import Exchange
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import TxnOffsetCommitResponse

# Older clients may crash when they hear that the coordinator is loading (KAFKA-7296).
FIRST_VERSION_WITH_LOADING = 2
FIRST_VERSION_WITH_ABORTABLE = 4


def told(version: int, code: int) -> int:
    if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < FIRST_VERSION_WITH_LOADING:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if code == ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_VERSION_WITH_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    # As for batches of records: no version of it knows that a producer is fenced.
    return ErrorCode.INVALID_PRODUCER_EPOCH if code == ErrorCode.PRODUCER_FENCED else code


def failed(exchange: Exchange, code: ErrorCode) -> TxnOffsetCommitResponse:
    response = TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                topic.name,
                [
                    TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(partition.partition_index, code)
                    for partition in topic.partitions
                ],
            )
            for topic in exchange.body.topics
        ]
    )
    return shaped(exchange, response)


def shaped(exchange: Exchange, response: TxnOffsetCommitResponse) -> TxnOffsetCommitResponse:
    for topic in response.topics:
        for partition in topic.partitions:
            partition.error_code = told(exchange.version, partition.error_code)
    return response


@api(ApiKey.TXN_OFFSET_COMMIT, 0, 5, name="TxnOffsetCommit", failed=failed)
def handle(exchange: Exchange) -> None:
    """Stores offsets of a group that count when a transaction is committed."""
    if not is_refused(exchange, exchange.body.topics):
        exchange.broker.forwarding.forward(
            exchange, exchange.body, lambda response: shaped(exchange, response)
        )
