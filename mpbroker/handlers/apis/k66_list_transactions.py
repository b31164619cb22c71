"""ListTransactions (key 66), versions 0-2: the existing transactional ids, by state, producer and more.

v1 adds a filter by duration (KIP-994), v2 one by a pattern of the id (KIP-1152). (Kafka:
TransactionStateManager.listTransactionStates; KIP-664.)
"""

from __future__ import annotations

from mpbroker.handlers.api_parts.visible_lists import list_visible
from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.handlers.requests.limits import SMALL_REQUEST_ELEMENTS_MAX
from mpbroker.handlers.requests.permissions import DESCRIBE_TRANSACTION
from mpbroker.protocol.api_keys import ApiKey


@api(
    ApiKey.LIST_TRANSACTIONS,
    0,
    2,
    name="ListTransactions",
    is_forwarded=True,
    elements_max=SMALL_REQUEST_ELEMENTS_MAX,
)
def handle(exchange: ApiExchange) -> None:
    """Lists transactional ids, by state, producer, duration or pattern."""
    if not exchange.broker.authorization.is_on:
        exchange.broker.forwarding.pass_on(exchange)
    else:
        list_visible(
            exchange, "transaction_states", DESCRIBE_TRANSACTION, lambda state: state.transactional_id
        )
