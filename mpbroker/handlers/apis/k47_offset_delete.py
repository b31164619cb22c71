"""OffsetDelete (key 47), version 0: deletes offsets of topics that no member is subscribed to (KIP-496).

(Kafka: KafkaApis.handleOffsetDeleteRequest, OffsetMetadataManager.deleteOffsets.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.handlers.requests.exchange import PARTITIONS_MAX
from mpbroker.protocol.api_keys import ApiKey


@api(ApiKey.OFFSET_DELETE, 0, 0, name="OffsetDelete", is_forwarded=True, elements_max=PARTITIONS_MAX)
def handle(exchange: ApiExchange) -> None:
    """Deletes committed offsets of topics that the group is not subscribed to."""
    exchange.broker.forwarding.pass_on(exchange)
