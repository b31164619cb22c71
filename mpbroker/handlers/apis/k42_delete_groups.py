"""DeleteGroups (key 42), versions 0-2: deletes groups without members, with their offsets (KIP-229).

(Kafka: GroupCoordinatorShard.deleteGroups.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DeleteGroupsRequest, DeleteGroupsResponse


def failed(exchange: ApiExchange, code: ErrorCode) -> DeleteGroupsResponse:
    names = dict.fromkeys(exchange.body.groups_names)
    return DeleteGroupsResponse(
        results=[DeleteGroupsResponse.DeletableGroupResult(name, code) for name in names]
    )


@api(ApiKey.DELETE_GROUPS, 0, 2, name="DeleteGroups", failed=failed)
def handle(exchange: ApiExchange) -> None:
    """Deletes groups without members, and their offsets."""
    exchange.broker.forwarding.forward_for_each(
        exchange,
        exchange.body.groups_names,
        lambda names: DeleteGroupsRequest(groups_names=names),
        lambda response: response.results,
        lambda results: DeleteGroupsResponse(results=results),
    )
