"""DescribeTransactions (key 65), version 0: producer, state and partitions of transactional ids.

Each id is described once. (Kafka: TransactionCoordinator.handleDescribeTransactions; KIP-664.)
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias

from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import GROUP_IDS_MAX, LOOKUPS_PER_PIECE
from mpbroker.handlers.requests.permissions import DESCRIBE_TOPIC, DESCRIBE_TRANSACTION
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DescribeTransactionsRequest, DescribeTransactionsResponse

State: TypeAlias = DescribeTransactionsResponse.TransactionState


def failed(context: RequestContext, code: ErrorCode) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(transaction_states=refused(context.body.transactional_ids, code))


def refused(names: list[str], code: ErrorCode) -> list[State]:
    return [State(error_code=code, transactional_id=name) for name in dict.fromkeys(names)]


def visible(
    context: RequestContext, states: list[State], denials: list[State]
) -> Generator[None, None, DescribeTransactionsResponse]:
    """Return the response without the topics that the client may not describe."""
    allows = context.broker.authorization.allows
    for done, state in enumerate(states, start=1):
        state.topics = [t for t in state.topics if allows(context, DESCRIBE_TOPIC, t.topic, is_logged=False)]
        if context.should_yield(done, LOOKUPS_PER_PIECE):
            yield
    return DescribeTransactionsResponse(transaction_states=states + denials)


@api(
    ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, name="DescribeTransactions", failed=failed, elements_max=GROUP_IDS_MAX
)
def handle(context: RequestContext) -> Generator[None, None, DescribeTransactionsResponse]:
    """Returns producer, state and partitions of transactional ids."""
    allowed, denied = yield from context.split(DESCRIBE_TRANSACTION, context.body.transactional_ids, str)
    denials = refused(denied, DESCRIBE_TRANSACTION.denied)
    if not allowed:
        return DescribeTransactionsResponse(transaction_states=denials)
    states = yield from context.broker.forwarding.forward_for_each(
        context,
        allowed,
        lambda names: DescribeTransactionsRequest(transactional_ids=names),
        lambda response: response.transaction_states,
    )
    return (yield from visible(context, states, denials))
