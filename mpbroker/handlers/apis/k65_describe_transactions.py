"""DescribeTransactions (key 65), version 0: producer, state and partitions of transactional ids.

Each id is described once. (Kafka: TransactionCoordinator.handleDescribeTransactions; KIP-664.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DescribeTransactionsRequest, DescribeTransactionsResponse


def failed(exchange: ApiExchange, code: ErrorCode) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[
            DescribeTransactionsResponse.TransactionState(error_code=code, transactional_id=name)
            for name in dict.fromkeys(exchange.body.transactional_ids)
        ]
    )


@api(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, name="DescribeTransactions", failed=failed)
def handle(exchange: ApiExchange) -> DescribeTransactionsResponse | None:
    """Producer, state and partitions of transactional ids."""
    if not exchange.body.transactional_ids:
        return DescribeTransactionsResponse()
    exchange.broker.forwarding.forward_for_each(
        exchange,
        exchange.body.transactional_ids,
        lambda names: DescribeTransactionsRequest(transactional_ids=names),
        lambda response: response.transaction_states,
        lambda states: DescribeTransactionsResponse(transaction_states=states),
    )
    return None
