"""AddPartitionsToTxn (key 24), versions 0-3: a producer will write to these partitions in its transaction.

Clients that produce with v12 or later do not ask: writing to a partition adds it. From v4 on this API is for
brokers that ask each other's coordinators; no client sends that, and handlers here use `CheckTransaction`
instead. (Kafka: KafkaApis.handleAddPartitionsToTxnRequest; KIP-98, KIP-890.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.handlers.requests.exchange import PARTITIONS_MAX
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import AddPartitionsToTxnResponse


def failed(exchange: ApiExchange, code: ErrorCode) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
                topic.name,
                [
                    AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(partition, code)
                    for partition in topic.partitions
                ],
            )
            for topic in exchange.body.v3_and_below_topics
        ]
    )


@api(
    ApiKey.ADD_PARTITIONS_TO_TXN,
    0,
    3,
    name="AddPartitionsToTxn",
    failed=failed,
    is_forwarded=True,
    elements_max=PARTITIONS_MAX,
)
def handle(exchange: ApiExchange) -> None:
    """Makes partitions part of a transaction."""
    exchange.broker.forwarding.pass_on(exchange)
