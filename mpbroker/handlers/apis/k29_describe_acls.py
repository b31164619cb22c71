"""DescribeAcls (key 29), versions 1-3: the access control entries that a filter matches.

(Kafka: AclApis.handleDescribeAcls; KIP-140, KIP-290.)
"""

from __future__ import annotations

from msgspec.structs import astuple

from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DescribeAclsResponse
from mpbroker.security.acls import Acl, AclFilter, BadAcl


def failed(_context: RequestContext, code: ErrorCode) -> DescribeAclsResponse:
    return refused(code, code.message)


def refused(code: ErrorCode, message: str) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=code, error_message=message)


def resources_of(acls: list[Acl]) -> list[DescribeAclsResponse.DescribeAclsResource]:
    """Group entries by resource pattern, in the order in which the patterns first occur."""
    found: dict[tuple[int, str, int], DescribeAclsResponse.DescribeAclsResource] = {}
    for acl in acls:
        key, entry = acl[:3], acl[3:]
        if key not in found:
            found[key] = DescribeAclsResponse.DescribeAclsResource(*key)
        found[key].acls.append(DescribeAclsResponse.AclDescription(*entry))
    return list(found.values())


@api(ApiKey.DESCRIBE_ACLS, 1, 3, name="DescribeAcls", failed=failed)
def handle(context: RequestContext) -> DescribeAclsResponse:
    """Returns the access control entries that match a filter."""
    authorizer = context.broker.authorization.authorizer
    if authorizer is None:
        return refused(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")
    asked = AclFilter(*astuple(context.body))
    try:
        asked.check()
    except BadAcl as error:
        return refused(ErrorCode.INVALID_REQUEST, str(error))
    return DescribeAclsResponse(resources=resources_of(authorizer.find(asked)))
