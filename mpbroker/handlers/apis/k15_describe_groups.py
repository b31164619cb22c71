"""DescribeGroups (key 15), versions 0-6: state, members and assignment of groups.

An unknown group has the state Dead, from v6 on with an error (KIP-1043). Each group is described once.
(Kafka: GroupMetadataManager.describeGroups.)
"""

from __future__ import annotations

from collections.abc import Generator

from mpbroker.handlers.api_parts.acl_operations import NOT_ASKED, operations
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import GROUP_IDS_MAX, LOOKUPS_PER_PIECE
from mpbroker.handlers.requests.permissions import DESCRIBE_GROUP
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DescribeGroupsRequest, DescribeGroupsResponse
from mpbroker.security.acls import ResourceType


def failed(context: RequestContext, code: ErrorCode) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(groups=refused(context.body.groups, code))


def refused(names: list[str], code: ErrorCode) -> list[DescribeGroupsResponse.DescribedGroup]:
    return [
        DescribeGroupsResponse.DescribedGroup(error_code=code, group_id=name) for name in dict.fromkeys(names)
    ]


def shaped(
    context: RequestContext, groups: list[DescribeGroupsResponse.DescribedGroup], denied: list[str]
) -> Generator[None, None, DescribeGroupsResponse]:
    is_asked = context.body.include_authorized_operations
    for done, group in enumerate(groups if is_asked else (), start=1):
        may = operations(context, ResourceType.GROUP, group.group_id, is_asked)
        group.authorized_operations = NOT_ASKED if group.error_code else may
        if context.should_yield(done, LOOKUPS_PER_PIECE):
            yield
    return DescribeGroupsResponse(groups=groups + refused(denied, DESCRIBE_GROUP.denied))


@api(ApiKey.DESCRIBE_GROUPS, 0, 6, name="DescribeGroups", failed=failed, elements_max=GROUP_IDS_MAX)
def handle(context: RequestContext) -> Generator[None, None, DescribeGroupsResponse]:
    """Describes classic groups: state, members and assignment."""
    allowed, denied = yield from context.split(DESCRIBE_GROUP, context.body.groups, str)
    if denied and not allowed:
        return (yield from shaped(context, [], denied))
    groups = yield from context.broker.forwarding.forward_for_each(
        context,
        allowed,
        lambda names: DescribeGroupsRequest(groups=names),
        lambda response: response.groups,
    )
    return (yield from shaped(context, groups, denied))
