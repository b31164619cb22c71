"""ListGroups (key 16), versions 0-5: the groups there are, by state (KIP-518) or type (KIP-848).

(Kafka: GroupMetadataManager.listGroups.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ListGroupsResponse


def failed(_exchange: ApiExchange, code: ErrorCode) -> ListGroupsResponse:
    return ListGroupsResponse(error_code=code)


@api(ApiKey.LIST_GROUPS, 0, 5, name="ListGroups", failed=failed, is_forwarded=True)
def handle(exchange: ApiExchange) -> None:
    """Lists groups, by state or type."""
    exchange.broker.forwarding.pass_on(exchange)
