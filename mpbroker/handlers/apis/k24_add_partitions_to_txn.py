"""AddPartitionsToTxn (key 24), versions 0-3: a producer will write to these partitions in its transaction.

Clients that produce with v12 or later do not ask: there the partitions are added by what is written. From v4
on it is the form of brokers that ask each other's coordinators; no client sends that, and handlers here have
`CheckTransaction` for it. (Kafka: KafkaApis.handleAddPartitionsToTxnRequest; KIP-98, KIP-890.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.exchange import Exchange
from mpbroker.handlers.fencing import told_to
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import AddPartitionsToTxnResponse

FIRST_VERSION_WITH_FENCED = 2


def failed(exchange: Exchange, code: ErrorCode) -> AddPartitionsToTxnResponse:
    response = AddPartitionsToTxnResponse(
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
    return shaped(exchange, response)


def shaped(exchange: Exchange, response: AddPartitionsToTxnResponse) -> AddPartitionsToTxnResponse:
    for topic in response.results_by_topic_v3_and_below:
        for partition in topic.results_by_partition:
            partition.partition_error_code = told_to(
                exchange.version, partition.partition_error_code, FIRST_VERSION_WITH_FENCED
            )
    return response


@api(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 3, name="AddPartitionsToTxn", failed=failed)
def handle(exchange: Exchange) -> None:
    """Makes partitions part of a transaction."""
    request = exchange.body
    topics = request.v3_and_below_topics
    if not exchange.names_too_many(len(topics) + sum(len(topic.partitions) for topic in topics)):
        exchange.broker.forwarding.forward(exchange, request, lambda response: shaped(exchange, response))
