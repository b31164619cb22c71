"""ListTransactions (key 66), versions 0-2: the transactional ids, filtered by state, producer and more.

v1 adds a filter by duration (KIP-994), v2 a filter by a pattern of the id (KIP-1152). (Kafka:
TransactionStateManager.listTransactionStates; KIP-664.)
"""

from __future__ import annotations

from mpbroker.handlers.api_parts.visible_lists import list_visible
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import SMALL_REQUEST_ELEMENTS_MAX
from mpbroker.handlers.requests.permissions import DESCRIBE_TRANSACTION
from mpbroker.handlers.requests.request import Outcome
from mpbroker.protocol.api_keys import ApiKey


@api(
    ApiKey.LIST_TRANSACTIONS,
    0,
    2,
    name="ListTransactions",
    is_forwarded=True,
    elements_max=SMALL_REQUEST_ELEMENTS_MAX,
)
def handle(context: RequestContext) -> Outcome:
    """Lists transactional ids, by state, producer, duration or pattern."""
    if not context.broker.authorization.is_on:
        context.broker.forwarding.pass_on(context)
        return None
    return list_visible(
        context, "transaction_states", DESCRIBE_TRANSACTION, lambda state: state.transactional_id
    )
