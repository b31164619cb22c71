"""InitProducerId (key 22), versions 0-5: an id for an idempotent producer, with epoch 0.

Ids come from blocks that the coordinator makes durable before it gives them away; what is left of a block
when the handler ends is never used. Transactions are not built: a transactional id is refused with an error
that clients take as fatal. (Kafka: TransactionCoordinator.handleInitProducerId; KIP-98, KIP-360, KIP-730.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.exchange import Exchange
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import InitProducerIdResponse

NONE = -1


def failed(_exchange: Exchange, code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=NONE, producer_epoch=NONE)


def taken(exchange: Exchange, found: int | ErrorCode) -> None:
    if isinstance(found, ErrorCode):
        exchange.fail(found)
    else:
        exchange.reply(InitProducerIdResponse(producer_id=found, producer_epoch=0))


@api(ApiKey.INIT_PRODUCER_ID, 0, 5, name="InitProducerId", failed=failed)
def handle(exchange: Exchange) -> InitProducerIdResponse | None:
    """An id for an idempotent producer; transactional ids are refused."""
    request = exchange.body
    if request.transactional_id == "" or (request.producer_id == NONE) != (request.producer_epoch == NONE):
        return failed(exchange, ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        return failed(exchange, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    exchange.broker.producer_ids.take(exchange.later(lambda found: taken(exchange, found)))
    return None
