"""AddPartitionsToTxn (key 24), versions 0-3: a producer will write to these partitions in its transaction.

Clients that produce with v12 or later do not ask: writing to a partition adds it. From v4 on this API is for
brokers that ask each other's coordinators; no client sends that, and handlers here use `CheckTransaction`
instead. (Kafka: KafkaApis.handleAddPartitionsToTxnRequest; KIP-98, KIP-890.)
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeAlias

from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.handlers.requests.limits import TOPICS_MAX
from mpbroker.handlers.requests.permissions import WRITE_TOPIC
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import AddPartitionsToTxnResponse

Partition: TypeAlias = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult


def failed(exchange: ApiExchange, code: ErrorCode) -> AddPartitionsToTxnResponse:
    return response_of(exchange, lambda _topic: code)


def response_of(exchange: ApiExchange, code_of: Callable[[str], ErrorCode]) -> AddPartitionsToTxnResponse:
    """Build a response in which all partitions of a topic have the error that `code_of` its name returns."""
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
                topic.name,
                [
                    AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                        partition, code_of(topic.name)
                    )
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
    elements_max=TOPICS_MAX,
)
def handle(exchange: ApiExchange) -> Generator[None, None, AddPartitionsToTxnResponse | None]:
    """Makes partitions part of a transaction."""
    authorization = exchange.broker.authorization
    if authorization.is_on:
        topics = exchange.body.v3_and_below_topics
        _, denied = yield from exchange.split(WRITE_TOPIC, topics, lambda topic: topic.name)
        if denied:
            # All of them or none.
            wrong = {topic.name for topic in denied}
            return response_of(
                exchange,
                lambda name: WRITE_TOPIC.denied if name in wrong else ErrorCode.OPERATION_NOT_ATTEMPTED,
            )
    exchange.broker.forwarding.pass_on(exchange)
    return None
