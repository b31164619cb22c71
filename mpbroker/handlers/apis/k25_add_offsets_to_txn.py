"""AddOffsetsToTxn (key 25), versions 0-4: the offsets of a group will be part of a transaction.

What is added is the group's partition of `__consumer_offsets`. Clients that commit with TxnOffsetCommit v5 do
not ask. (Kafka: KafkaApis.handleAddOffsetsToTxnRequest; KIP-98, KIP-890.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.exchange import Exchange
from mpbroker.handlers.fencing import told_to
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import AddOffsetsToTxnResponse

FIRST_VERSION_WITH_FENCED = 2


def failed(exchange: Exchange, code: ErrorCode) -> AddOffsetsToTxnResponse:
    return shaped(exchange, AddOffsetsToTxnResponse(error_code=code))


def shaped(exchange: Exchange, response: AddOffsetsToTxnResponse) -> AddOffsetsToTxnResponse:
    response.error_code = told_to(exchange.version, response.error_code, FIRST_VERSION_WITH_FENCED)
    return response


@api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, name="AddOffsetsToTxn", failed=failed)
def handle(exchange: Exchange) -> None:
    """Makes the offsets of a group part of a transaction."""
    exchange.broker.forwarding.forward(exchange, exchange.body, lambda response: shaped(exchange, response))
