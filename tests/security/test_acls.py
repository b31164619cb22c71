"""Access control entries: which can be, and which a filter matches. Expected values are Kafka's."""

from __future__ import annotations

import pytest

from mpbroker.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    BadAcl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_new,
)

LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED


def acl(name: str = "orders", pattern: int = LITERAL, kind: int = ResourceType.TOPIC) -> Acl:
    return Acl(kind, name, pattern, "User:ann", "*", Operation.READ, Permission.ALLOW)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (acl()._replace(resource_type=0), "Invalid resourceType UNKNOWN"),
        (acl()._replace(resource_type=1), "Invalid resourceType ANY"),
        (acl()._replace(resource_type=99), "Invalid resourceType UNKNOWN"),
        (acl()._replace(resource_name=""), "Invalid empty resource name"),
        (acl()._replace(pattern_type=PatternType.MATCH), "Invalid patternType MATCH"),
        (acl()._replace(pattern_type=PatternType.ANY), "Invalid patternType ANY"),
        (acl()._replace(operation=Operation.ANY), "Invalid operation ANY"),
        (acl()._replace(operation=77), "Invalid operation UNKNOWN"),
        (acl()._replace(permission=Permission.ANY), "Invalid permissionType ANY"),
        (acl()._replace(principal="ann"), "principalType:principalName but got ann"),
        (acl(kind=ResourceType.CLUSTER), f"only valid name for the CLUSTER resource is {CLUSTER_NAME}"),
    ],
)
def test_entries_that_cannot_be(wrong: Acl, says: str) -> None:
    with pytest.raises(BadAcl, match=says):
        check_new(wrong)


def test_entries_that_can_be() -> None:
    check_new(acl())
    check_new(acl("*"))
    check_new(acl("ord", PREFIXED))
    check_new(acl(CLUSTER_NAME, kind=ResourceType.CLUSTER))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (AclFilter(resource_type=0), "patternFilter"),
        (AclFilter(pattern_type=9), "patternFilter"),
        (AclFilter(operation=0), "entryFilter"),
        (AclFilter(permission=7), "entryFilter"),
    ],
)
def test_filters_that_cannot_be(wrong: AclFilter, says: str) -> None:
    AclFilter().check()
    with pytest.raises(BadAcl, match=says):
        wrong.check()


@pytest.mark.parametrize(
    ("pattern", "name", "found"),
    [
        (PatternType.ANY, None, "orders:3 *:3 ord:4 orders:4"),
        (PatternType.ANY, "orders", "orders:3 orders:4"),
        (PatternType.MATCH, "orders", "orders:3 *:3 ord:4 orders:4"),
        (PatternType.MATCH, "ordinary", "*:3 ord:4"),
        (PatternType.MATCH, "other", "*:3"),
        (PatternType.MATCH, "*", "*:3"),
        (LITERAL, "orders", "orders:3"),
        (LITERAL, None, "orders:3 *:3"),
        (PREFIXED, "ord", "ord:4"),
        (PREFIXED, "orders", "orders:4"),
    ],
)
def test_resources_that_a_filter_matches(pattern: int, name: str | None, found: str) -> None:
    entries = [acl(), acl("*"), acl("ord", PREFIXED), acl("orders", PREFIXED)]
    asked = AclFilter(resource_name=name, pattern_type=pattern)
    assert [f"{a.resource_name}:{a.pattern_type}" for a in entries if asked.matches(a)] == found.split()


def test_each_other_field_narrows_a_filter() -> None:
    one = acl()
    assert AclFilter().matches(one)
    assert AclFilter(ResourceType.TOPIC, "orders", LITERAL, "User:ann", "*", 3, 3).matches(one)
    for narrow in (
        AclFilter(resource_type=ResourceType.GROUP),
        AclFilter(principal="User:bob"),
        AclFilter(host="10.0.0.1"),
        AclFilter(operation=Operation.WRITE),
        AclFilter(operation=Operation.ALL),
        AclFilter(permission=Permission.DENY),
    ):
        assert not narrow.matches(one)


def test_an_entry_is_written_for_people() -> None:
    assert str(acl("ord", PREFIXED)) == "ALLOW User:ann from host * operation READ on PREFIXED TOPIC ord"
