"""AddPartitionsToTxn (key 24), versions 0-3: adds partitions to a producer's transaction.

Clients with Produce v12 or later do not use this API: writing to a partition adds the partition. From v4 on
only Kafka's brokers use it, among themselves; handlers here send `CheckTransaction` instead. (Kafka:
KafkaApis.handleAddPartitionsToTxnRequest; KIP-98, KIP-890.)
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeAlias

from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import TOPICS_MAX
from mpbroker.handlers.requests.permissions import WRITE_TOPIC
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import AddPartitionsToTxnResponse

Partition: TypeAlias = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult


def failed(context: RequestContext, code: ErrorCode) -> AddPartitionsToTxnResponse:
    return response_of(context, lambda _topic: code)


def response_of(context: RequestContext, code_of: Callable[[str], ErrorCode]) -> AddPartitionsToTxnResponse:
    """Build a response in which all partitions of a topic get the error `code_of(topic name)`."""
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
            for topic in context.body.v3_and_below_topics
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
def handle(context: RequestContext) -> Generator[None, None, AddPartitionsToTxnResponse | None]:
    """Adds partitions to a transaction."""
    authorization = context.broker.authorization
    if authorization.is_on:
        topics = context.body.v3_and_below_topics
        _, denied = yield from context.split(WRITE_TOPIC, topics, lambda topic: topic.name)
        if denied:
            # All of them or none.
            wrong = {topic.name for topic in denied}
            return response_of(
                context,
                lambda name: WRITE_TOPIC.denied if name in wrong else ErrorCode.OPERATION_NOT_ATTEMPTED,
            )
    context.broker.forwarding.pass_on(context)
    return None
