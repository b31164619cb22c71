"""JoinGroup (key 11), versions 0-9: become a member of a group, or stay one in its next generation.

The answer comes when the group has a new generation, which may take as long as its rebalance timeout. The
leader's answer has all members. (Kafka: GroupCoordinatorService.joinGroup; KIP-62, KIP-345, KIP-394, KIP-559
and KIP-814.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import JoinGroupResponse


def failed(exchange: ApiExchange, code: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, member_id=exchange.body.member_id)


@api(ApiKey.JOIN_GROUP, 0, 9, name="JoinGroup", failed=failed, is_forwarded=True)
def handle(exchange: ApiExchange) -> None:
    """Makes the client a member of a group, and waits for the group's next generation."""
    exchange.broker.forwarding.pass_on(exchange, lambda request: len(request.protocols))
