"""Users and access control lists for the page, by the same requests as `mpbroker user` and `acl`."""

from __future__ import annotations

from typing import Any

from mpbroker.client import acls, users
from mpbroker.client.admin import Admin
from mpbroker.client.errors import BadText, FailedPrecondition, InvalidArgument
from mpbroker.security.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    Acl,
    PatternType,
    Permission,
    ResourceType,
    kafka_word,
)
from mpbroker.security.scram import TYPES


def listed(client: Admin) -> dict[str, Any]:
    """Return users, ACL entries (or why there are none), and the choices for the page's forms."""
    found: dict[str, Any] = {
        "users": users.listed(client),
        "mechanisms": list(TYPES),
        "operations": {kafka_word(kind): ["All", *map(kafka_word, OPERATIONS[kind])] for kind in OPERATIONS},
        "acls": [],
        "acls_problem": None,
    }
    try:
        found["acls"] = [acls.document(one) for one in acls.describe(client, acls.EVERYTHING)]
    except FailedPrecondition as error:
        found["acls_problem"] = str(error)
    return found


def entry_of(document: dict[str, str]) -> Acl:
    """Return the ACL entry that a row of the page describes. Raises InvalidArgument."""
    kind = _named(ResourceType, document["resource"], "resource")
    acls.check_is_principal(document["principal"])
    try:
        acls.check_host(document["host"])
    except BadText as error:
        raise InvalidArgument(f"host {document['host'][:50]!r}: {error}") from error
    return Acl(
        kind,
        CLUSTER_NAME if kind == ResourceType.CLUSTER else document["name"],
        _named(PatternType, document["pattern"], "pattern"),
        document["principal"],
        document["host"],
        acls.operation_of(document["operation"]),
        _named(Permission, document["permission"], "permission"),
    )


def _named(kinds: Any, name: str, what: str) -> Any:
    for one in kinds:
        if kafka_word(one) == name:
            return one
    raise InvalidArgument(f"{name[:50]!r} is not a {what}")
