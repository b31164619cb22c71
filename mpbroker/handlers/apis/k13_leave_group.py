"""LeaveGroup (key 13), versions 0-5: removes a member from a group, from v3 on several members (KIP-345).

(Kafka: GroupCoordinatorService.leaveGroup, LeaveGroupRequest, LeaveGroupResponse.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import MEMBERS_MAX
from mpbroker.protocol.api_keys import ApiKey


@api(ApiKey.LEAVE_GROUP, 0, 5, name="LeaveGroup", is_forwarded=True, elements_max=MEMBERS_MAX)
def handle(context: RequestContext) -> None:
    """Removes members from a group."""
    context.broker.forwarding.pass_on(context)
