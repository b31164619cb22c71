"""Heartbeat (key 12), versions 0-4: keeps a member alive. The response says if a rebalance is under way.

(Kafka: GroupCoordinatorService.heartbeat.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import SMALL_REQUEST_ELEMENTS_MAX
from mpbroker.protocol.api_keys import ApiKey


@api(ApiKey.HEARTBEAT, 0, 4, name="Heartbeat", is_forwarded=True, elements_max=SMALL_REQUEST_ELEMENTS_MAX)
def handle(context: RequestContext) -> None:
    """Keeps a member's session alive; the response says if a rebalance is under way."""
    context.broker.forwarding.pass_on(context)
