"""EndTxn (key 26), versions 0-5: commits or aborts a transaction.

Answered when the decision is durable; the markers in the partitions follow it. From v5 on the producer goes
on with another epoch, which the answer says. (Kafka: KafkaApis.handleEndTxnRequest,
TransactionCoordinator.endTransaction; KIP-98, KIP-890.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.exchange import Exchange
from mpbroker.handlers.fencing import told_to
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import EndTxnResponse

FIRST_VERSION_WITH_FENCED = 2


def failed(exchange: Exchange, code: ErrorCode) -> EndTxnResponse:
    return shaped(exchange, EndTxnResponse(error_code=code))


def shaped(exchange: Exchange, response: EndTxnResponse) -> EndTxnResponse:
    response.error_code = told_to(exchange.version, response.error_code, FIRST_VERSION_WITH_FENCED)
    return response


@api(ApiKey.END_TXN, 0, 5, name="EndTxn", failed=failed)
def handle(exchange: Exchange) -> None:
    """Commits or aborts a transaction, durably before it answers."""
    exchange.broker.forwarding.forward(exchange, exchange.body, lambda response: shaped(exchange, response))
