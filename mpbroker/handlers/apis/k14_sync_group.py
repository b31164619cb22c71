"""SyncGroup (key 14), versions 0-5: the leader sends the assignment, each member gets its part.

Members wait for the leader, and for the assignment to be durable. From v5 on the protocol must be named
(KIP-559). (Kafka: KafkaApis.handleSyncGroupRequest, GroupCoordinatorService.syncGroup.)
"""

from __future__ import annotations

from mpbroker.handlers.api_parts.group_sizes import is_too_large
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import MEMBERS_MAX
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import SyncGroupResponse


def refusal(context: RequestContext) -> SyncGroupResponse | None:
    """Return an error response if the request is too large, else None."""
    return SyncGroupResponse(error_code=ErrorCode.MESSAGE_TOO_LARGE) if is_too_large(context) else None


@api(ApiKey.SYNC_GROUP, 0, 5, name="SyncGroup", is_forwarded=True, elements_max=MEMBERS_MAX, refusal=refusal)
def handle(context: RequestContext) -> None:
    """Takes the assignment from the leader and answers each member with its part."""
    context.broker.forwarding.pass_on(context)
