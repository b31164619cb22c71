"""Filters of access control entries as DescribeAcls and DeleteAcls have them, field by field the same."""

from __future__ import annotations

from mpbroker.ipc.acls import AclFilterImage
from mpbroker.protocol.messages import DeleteAclsRequest, DescribeAclsRequest


def filter_in(asked: DescribeAclsRequest | DeleteAclsRequest.DeleteAclsFilter) -> AclFilterImage:
    return AclFilterImage(
        asked.resource_type_filter,
        asked.resource_name_filter,
        asked.pattern_type_filter,
        asked.principal_filter,
        asked.host_filter,
        asked.operation,
        asked.permission_type,
    )
