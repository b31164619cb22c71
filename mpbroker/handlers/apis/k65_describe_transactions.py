"""DescribeTransactions (key 65), version 0: producer, state and partitions of transactional ids.

Each id is described once. (Kafka: TransactionCoordinator.handleDescribeTransactions; KIP-664.)
"""

from __future__ import annotations

from typing import TypeAlias

from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.handlers.requests.exchange import NAMED_MAX
from mpbroker.handlers.requests.permissions import DESCRIBE_TOPIC, DESCRIBE_TRANSACTION
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DescribeTransactionsRequest, DescribeTransactionsResponse

State: TypeAlias = DescribeTransactionsResponse.TransactionState


def failed(exchange: ApiExchange, code: ErrorCode) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(transaction_states=refused(exchange.body.transactional_ids, code))


def refused(names: list[str], code: ErrorCode) -> list[State]:
    return [State(error_code=code, transactional_id=name) for name in dict.fromkeys(names)]


def without_hidden_topics(exchange: ApiExchange, states: list[State]) -> list[State]:
    """Leave out the topics that the client may not describe."""
    allows = exchange.broker.authorization.allows
    for state in states:
        state.topics = [t for t in state.topics if allows(exchange, DESCRIBE_TOPIC, t.topic, is_told=False)]
    return states


@api(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, name="DescribeTransactions", failed=failed, elements_max=NAMED_MAX)
def handle(exchange: ApiExchange) -> DescribeTransactionsResponse | None:
    """Producer, state and partitions of transactional ids."""
    allowed, denied = exchange.broker.authorization.split(
        exchange, DESCRIBE_TRANSACTION, exchange.body.transactional_ids, lambda name: name
    )
    denials = refused(denied, DESCRIBE_TRANSACTION.denied)
    if not allowed:
        return DescribeTransactionsResponse(transaction_states=denials)
    exchange.broker.forwarding.forward_for_each(
        exchange,
        allowed,
        lambda names: DescribeTransactionsRequest(transactional_ids=names),
        lambda response: response.transaction_states,
        lambda states: DescribeTransactionsResponse(
            transaction_states=without_hidden_topics(exchange, states) + denials
        ),
    )
    return None
