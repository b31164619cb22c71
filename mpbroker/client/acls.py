"""Access control lists of a broker, by DescribeAcls, CreateAcls and DeleteAcls."""

from __future__ import annotations

import ipaddress
from typing import Final

from msgspec.structs import astuple

from mpbroker.client.admin import Admin
from mpbroker.client.errors import ApiFailed, BadText, ClientError, FailedPrecondition, InvalidArgument
from mpbroker.config import known
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode
from mpbroker.security.acls import (
    WILDCARD,
    Acl,
    BadAcl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_principal,
    kafka_word,
)

COLUMNS: Final = ("resource", "name", "pattern", "principal", "host", "operation", "permission")
ANY: Final = (Operation.ANY, Permission.ANY)
EVERYTHING: Final = m.DeleteAclsRequest.DeleteAclsFilter(
    ResourceType.ANY, None, PatternType.ANY, None, None, *ANY
)


def check_is_principal(text: str) -> None:
    """Raise InvalidArgument unless the text is a principal, such as User:ann."""
    try:
        check_principal(text)
    except BadAcl as error:
        raise InvalidArgument(f"{text}: a principal is TYPE:NAME, as in User:ann") from error


def check_host(text: str) -> None:
    """Raise BadText unless a host is an IP address or *. The broker compares clients' addresses with it."""
    try:
        if text != WILDCARD:
            ipaddress.ip_address(text)
    except ValueError as error:
        raise BadText("write an IP address: names are not resolved") from error


def operation_of(name: str) -> Operation:
    """Return the operation that has this name in Kafka's tools. Raises InvalidArgument."""
    words = {kafka_word(one).lower(): one for one in Operation if one > Operation.ANY}
    found = words.get(name.lower().replace("_", ""))
    if found is None:
        near = known.closest(name.lower(), words)
        those = ", ".join(kafka_word(one) for one in words.values())
        guess = f"; did you mean {kafka_word(words[near])}?" if near else f"; there are {those}"
        raise InvalidArgument(f"{name} is not an operation{guess}")
    return found


def create(admin: Admin, acls: list[Acl]) -> None:
    """Add entries to the broker. Raises ApiFailed, FailedPrecondition."""
    creation = m.CreateAclsRequest.AclCreation
    response: m.CreateAclsResponse = admin.cluster.ask_any(
        m.CreateAclsRequest([creation(*acl) for acl in acls])
    )
    for acl, result in zip(acls, response.results, strict=True):
        if result.error_code:
            raise _failed(str(acl), result.error_code, result.error_message)


def delete(admin: Admin, filters: list[m.DeleteAclsRequest.DeleteAclsFilter]) -> list[Acl]:
    """Remove and return the entries that match any of the filters. Raises ApiFailed, FailedPrecondition."""
    response: m.DeleteAclsResponse = admin.cluster.ask_any(m.DeleteAclsRequest(filters))
    removed: dict[Acl, None] = {}
    for result in response.filter_results:
        if result.error_code:
            raise _failed("ACLs", result.error_code, result.error_message)
        # They have an error code and a message first.
        removed.update(dict.fromkeys(Acl(*astuple(one)[2:]) for one in result.matching_acls))
    return list(removed)


def filter_of(acl: Acl) -> m.DeleteAclsRequest.DeleteAclsFilter:
    """Return the filter that matches this entry alone."""
    return m.DeleteAclsRequest.DeleteAclsFilter(*acl)


def document(acl: Acl) -> dict[str, str]:
    """Map the names in COLUMNS to the fields of an entry, written as Kafka's tools write them."""
    values = (
        kafka_word(ResourceType(acl.resource_type)),
        acl.resource_name,
        kafka_word(PatternType(acl.pattern_type)),
        acl.principal,
        acl.host,
        kafka_word(Operation(acl.operation)),
        kafka_word(Permission(acl.permission)),
    )
    return dict(zip(COLUMNS, values, strict=True))


def describe(admin: Admin, asked: m.DeleteAclsRequest.DeleteAclsFilter) -> list[Acl]:
    """Return the entries that a filter matches. Raises ApiFailed."""
    request = m.DescribeAclsRequest(*astuple(asked))
    response: m.DescribeAclsResponse = admin.cluster.ask_any(request)
    if response.error_code:
        raise _failed("ACLs", response.error_code, response.error_message)
    return [
        Acl(one.resource_type, one.resource_name, one.pattern_type, *astuple(acl))
        for one in response.resources
        for acl in one.acls
    ]


def _failed(what: str, code: int, message: str | None) -> ClientError:
    if code == ErrorCode.SECURITY_DISABLED:
        return FailedPrecondition(
            f"{what}: the broker has no authorizer: set its authorizer.class.name and super.users, "
            "as mpbroker docs security#in-five-minutes shows"
        )
    return ApiFailed(what, code, message)
