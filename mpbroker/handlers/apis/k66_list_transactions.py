"""ListTransactions (key 66), versions 0-2: the transactional ids there are, by state, producer, duration (v1,
KIP-994) or a pattern of the id (v2, KIP-1152).

(Kafka: TransactionStateManager.listTransactionStates; KIP-664.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.protocol.api_keys import ApiKey


@api(ApiKey.LIST_TRANSACTIONS, 0, 2, name="ListTransactions", is_forwarded=True)
def handle(exchange: ApiExchange) -> None:
    """Lists transactional ids, by state, producer, duration or pattern."""
    exchange.broker.forwarding.pass_on(
        exchange, lambda request: len(request.state_filters) + len(request.producer_id_filters)
    )
