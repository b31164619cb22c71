"""DeleteGroups (key 42), versions 0-2: deletes groups without members, with their offsets (KIP-229).

(Kafka: GroupCoordinatorShard.deleteGroups.)
"""

from __future__ import annotations

from collections.abc import Generator

from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import GROUP_IDS_MAX
from mpbroker.handlers.requests.permissions import DELETE_GROUP
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DeleteGroupsRequest, DeleteGroupsResponse


def failed(context: RequestContext, code: ErrorCode) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(results=refused(context.body.groups_names, code))


def refused(names: list[str], code: ErrorCode) -> list[DeleteGroupsResponse.DeletableGroupResult]:
    return [DeleteGroupsResponse.DeletableGroupResult(name, code) for name in dict.fromkeys(names)]


@api(ApiKey.DELETE_GROUPS, 0, 2, name="DeleteGroups", failed=failed, elements_max=GROUP_IDS_MAX)
def handle(context: RequestContext) -> Generator[None, None, DeleteGroupsResponse]:
    """Deletes groups without members, and their offsets."""
    allowed, denied = yield from context.split(DELETE_GROUP, context.body.groups_names, str)
    denials = refused(denied, DELETE_GROUP.denied)
    if denied and not allowed:
        return DeleteGroupsResponse(results=denials)
    results = yield from context.broker.forwarding.forward_for_each(
        context,
        allowed,
        lambda names: DeleteGroupsRequest(groups_names=names),
        lambda response: response.results,
    )
    return DeleteGroupsResponse(results=results + denials)
