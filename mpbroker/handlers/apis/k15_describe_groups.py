"""DescribeGroups (key 15), versions 0-6: state, members and assignment of groups.

An unknown group is Dead; from v6 on that is an error as well (KIP-1043). Each group is described once.
(Kafka: GroupMetadataManager.describeGroups.)
"""

from __future__ import annotations

from mpbroker.handlers.api_parts.acl_operations import GROUP_OPERATIONS, NOT_ASKED
from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DescribeGroupsRequest, DescribeGroupsResponse


def failed(exchange: ApiExchange, code: ErrorCode) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(
        groups=[
            DescribeGroupsResponse.DescribedGroup(error_code=code, group_id=name)
            for name in dict.fromkeys(exchange.body.groups)
        ]
    )


def shaped(
    exchange: ApiExchange, groups: list[DescribeGroupsResponse.DescribedGroup]
) -> DescribeGroupsResponse:
    operations = GROUP_OPERATIONS if exchange.body.include_authorized_operations else NOT_ASKED
    for group in groups:
        group.authorized_operations = NOT_ASKED if group.error_code else operations
    return DescribeGroupsResponse(groups=groups)


@api(ApiKey.DESCRIBE_GROUPS, 0, 6, name="DescribeGroups", failed=failed)
def handle(exchange: ApiExchange) -> None:
    """State, members and assignment of classic groups."""
    exchange.broker.forwarding.forward_for_each(
        exchange,
        exchange.body.groups,
        lambda names: DescribeGroupsRequest(groups=names),
        lambda response: response.groups,
        lambda groups: shaped(exchange, groups),
    )
