"""OffsetDelete (key 47), version 0: deletes offsets of topics that no member is subscribed to (KIP-496).

(Kafka: KafkaApis.handleOffsetDeleteRequest, OffsetMetadataManager.deleteOffsets.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.exchange import Exchange
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import OffsetDeleteResponse


def failed(_exchange: Exchange, code: ErrorCode) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=code)


@api(ApiKey.OFFSET_DELETE, 0, 0, name="OffsetDelete", failed=failed)
def handle(exchange: Exchange) -> None:
    """Deletes committed offsets of topics that the group is not subscribed to."""
    topics = exchange.body.topics
    if exchange.names_too_many(len(topics) + sum(len(t.partitions) for t in topics)):
        return
    exchange.broker.forwarding.forward(exchange, exchange.body, lambda response: response)
