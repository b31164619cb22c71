"""DescribeTransactions (key 65), version 0: producer, state and partitions of transactional ids.

Each id is described once. (Kafka: TransactionCoordinator.handleDescribeTransactions; KIP-664.)
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias

from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.handlers.requests.limits import GROUP_IDS_MAX, LOOKUPS_PER_PIECE
from mpbroker.handlers.requests.permissions import DESCRIBE_TOPIC, DESCRIBE_TRANSACTION
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DescribeTransactionsRequest, DescribeTransactionsResponse

State: TypeAlias = DescribeTransactionsResponse.TransactionState


def failed(exchange: ApiExchange, code: ErrorCode) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(transaction_states=refused(exchange.body.transactional_ids, code))


def refused(names: list[str], code: ErrorCode) -> list[State]:
    return [State(error_code=code, transactional_id=name) for name in dict.fromkeys(names)]


def visible(
    exchange: ApiExchange, states: list[State], denials: list[State]
) -> Generator[None, None, DescribeTransactionsResponse]:
    """Leave out the topics that the client may not describe."""
    allows = exchange.broker.authorization.allows
    for done, state in enumerate(states, start=1):
        state.topics = [t for t in state.topics if allows(exchange, DESCRIBE_TOPIC, t.topic, is_told=False)]
        if exchange.has_had_its_share(done, LOOKUPS_PER_PIECE):
            yield
    return DescribeTransactionsResponse(transaction_states=states + denials)


@api(
    ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, name="DescribeTransactions", failed=failed, elements_max=GROUP_IDS_MAX
)
def handle(exchange: ApiExchange) -> Generator[None, None, DescribeTransactionsResponse | None]:
    """Producer, state and partitions of transactional ids."""
    allowed, denied = yield from exchange.split(DESCRIBE_TRANSACTION, exchange.body.transactional_ids, str)
    denials = refused(denied, DESCRIBE_TRANSACTION.denied)
    if not allowed:
        return DescribeTransactionsResponse(transaction_states=denials)
    exchange.broker.forwarding.forward_for_each(
        exchange,
        allowed,
        lambda names: DescribeTransactionsRequest(transactional_ids=names),
        lambda response: response.transaction_states,
        lambda states: visible(exchange, states, denials),
    )
    return None
