"""AddOffsetsToTxn (key 25), versions 0-4: adds the offsets of a group to a transaction.

The group's partition of `__consumer_offsets` is added. Clients that commit with TxnOffsetCommit v5 do not use
this API. (Kafka: KafkaApis.handleAddOffsetsToTxnRequest; KIP-98, KIP-890.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import SMALL_REQUEST_ELEMENTS_MAX
from mpbroker.protocol.api_keys import ApiKey


@api(
    ApiKey.ADD_OFFSETS_TO_TXN,
    0,
    4,
    name="AddOffsetsToTxn",
    is_forwarded=True,
    elements_max=SMALL_REQUEST_ELEMENTS_MAX,
)
def handle(context: RequestContext) -> None:
    """Adds the offsets of a group to a transaction."""
    context.broker.forwarding.pass_on(context)
