"""LeaveGroup (key 13), versions 0-5: one member leaves, from v3 on several may be removed at once (KIP-345).

(Kafka: GroupCoordinatorService.leaveGroup, LeaveGroupRequest, LeaveGroupResponse.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.exchange import Exchange
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import LeaveGroupRequest, LeaveGroupResponse

FIRST_VERSION_WITH_MEMBERS = 3


def failed(_exchange: Exchange, code: ErrorCode) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=code)


def shaped(exchange: Exchange, response: LeaveGroupResponse) -> LeaveGroupResponse:
    """Older versions have one error for all, that of the one member."""
    if exchange.version >= FIRST_VERSION_WITH_MEMBERS or response.error_code or not response.members:
        return response
    return LeaveGroupResponse(error_code=response.members[0].error_code)


@api(ApiKey.LEAVE_GROUP, 0, 5, name="LeaveGroup", failed=failed)
def handle(exchange: Exchange) -> None:
    """Takes members out of a group."""
    request = exchange.body
    if exchange.version < FIRST_VERSION_WITH_MEMBERS:
        request.members = [LeaveGroupRequest.MemberIdentity(request.member_id)]
    if exchange.names_too_many(len(request.members)):
        return
    exchange.broker.forwarding.forward(exchange, request, lambda response: shaped(exchange, response))
