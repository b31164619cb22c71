"""ListGroups (key 16), versions 0-5: the existing groups, by state (KIP-518) or type (KIP-848).

(Kafka: GroupMetadataManager.listGroups.)
"""

from __future__ import annotations

from mpbroker.handlers.api_parts.visible_lists import list_visible
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import SMALL_REQUEST_ELEMENTS_MAX
from mpbroker.handlers.requests.permissions import DESCRIBE_CLUSTER, DESCRIBE_GROUP
from mpbroker.handlers.requests.request import Outcome
from mpbroker.protocol.api_keys import ApiKey


@api(ApiKey.LIST_GROUPS, 0, 5, name="ListGroups", is_forwarded=True, elements_max=SMALL_REQUEST_ELEMENTS_MAX)
def handle(context: RequestContext) -> Outcome:
    """Lists groups, by state or type."""
    if context.broker.authorization.allows_cluster(context, DESCRIBE_CLUSTER, is_logged=False):
        context.broker.forwarding.pass_on(context)
        return None
    return list_visible(context, "groups", DESCRIBE_GROUP, lambda group: group.group_id)
