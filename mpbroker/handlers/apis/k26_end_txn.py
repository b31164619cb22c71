"""EndTxn (key 26), versions 0-5: commits or aborts a transaction.

The response comes when the decision is durable; transaction markers are written afterwards. From v5 on the
response has the epoch with which the producer continues. (Kafka: KafkaApis.handleEndTxnRequest,
TransactionCoordinator.endTransaction; KIP-98, KIP-890.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import SMALL_REQUEST_ELEMENTS_MAX
from mpbroker.protocol.api_keys import ApiKey


@api(ApiKey.END_TXN, 0, 5, name="EndTxn", is_forwarded=True, elements_max=SMALL_REQUEST_ELEMENTS_MAX)
def handle(context: RequestContext) -> None:
    """Commits or aborts a transaction, and answers when the decision is durable."""
    context.broker.forwarding.pass_on(context)
