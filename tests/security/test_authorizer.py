"""Decisions by access control lists: rule by rule, and all together against a naive reading of them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.security.acls import (
    OPERATIONS,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from mpbroker.security.authorizer import Authorizer, Client, Reason, super_users_in

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL
ANN = Client("User:ann", "10.0.0.1")


def entry(
    name: str = "orders",
    operation: int = READ,
    permission: int = ALLOW,
    *,
    pattern: int = LITERAL,
    principal: str = "User:ann",
    host: str = "*",
    kind: int = TOPIC,
) -> Acl:
    return Acl(kind, name, pattern, principal, host, operation, permission)


def with_entries(*acls: Acl, super_users: Iterable[str] = (), allow_if_no_acl: bool = False) -> Authorizer:
    made = Authorizer(super_users, allow_if_no_acl=allow_if_no_acl)
    for acl in acls:
        made.put(acl)
    return made


def may(authorizer: Authorizer, operation: Operation = READ, name: str = "orders", who: Client = ANN) -> bool:
    return authorizer.authorize(who, operation, TOPIC, name).is_allowed


@pytest.mark.parametrize(
    ("acl", "allowed"),
    [
        (entry(), True),
        (entry("other"), False),
        (entry("*"), True),
        (entry("ord", pattern=PREFIXED), True),
        (entry("orders", pattern=PREFIXED), True),
        (entry("orders.eu", pattern=PREFIXED), False),
        (entry("*", pattern=PREFIXED), False),
        (entry(operation=ALL), True),
        (entry(operation=WRITE), False),
        (entry(principal="User:bob"), False),
        (entry(principal="User:*"), True),
        (entry(principal="Group:*"), False),
        (entry(host="10.0.0.1"), True),
        (entry(host="10.0.0.2"), False),
        (entry(kind=GROUP), False),
        (entry(permission=DENY), False),
    ],
)
def test_one_entry(acl: Acl, allowed: bool) -> None:
    assert may(with_entries(acl)) is allowed


def test_a_denial_wins_wherever_it_stands() -> None:
    for deny in (
        entry(permission=DENY),
        entry("*", permission=DENY),
        entry("o", permission=DENY, pattern=PREFIXED),
        entry(operation=ALL, permission=DENY),
    ):
        verdict = with_entries(entry(), entry("*"), deny).authorize(ANN, READ, TOPIC, "orders")
        assert verdict == (False, deny)


@pytest.mark.parametrize("implying", [READ, WRITE, Operation.DELETE, Operation.ALTER, DESCRIBE, ALL])
def test_who_may_use_a_resource_may_describe_it(implying: Operation) -> None:
    assert may(with_entries(entry(operation=implying)), DESCRIBE)
    assert may(with_entries(entry(operation=DESCRIBE)), READ) is False
    # Whoever may not read may still describe.
    denied = with_entries(entry(operation=DESCRIBE), entry(operation=READ, permission=DENY))
    assert may(denied, DESCRIBE)


def test_who_may_alter_settings_may_see_them() -> None:
    altering = with_entries(entry(operation=Operation.ALTER_CONFIGS))
    assert may(altering, Operation.DESCRIBE_CONFIGS)
    assert not may(altering, DESCRIBE)
    assert not may(with_entries(entry(operation=READ)), Operation.DESCRIBE_CONFIGS)


def test_resources_without_an_entry() -> None:
    assert Authorizer().authorize(ANN, READ, TOPIC, "orders") == (False, Reason.NO_ENTRY)
    lenient = with_entries(entry(principal="User:bob"), allow_if_no_acl=True)
    assert may(lenient, name="other")
    # An entry about somebody else closes the resource.
    assert lenient.authorize(ANN, READ, TOPIC, "orders") == (False, Reason.NO_ALLOWING_ENTRY)


def test_super_users_may_do_everything() -> None:
    authorizer = with_entries(
        entry(operation=ALL, permission=DENY, principal="User:*"), super_users=["User:ann"]
    )
    assert may(authorizer)
    assert not may(authorizer, who=Client("User:bob", "10.0.0.1"))
    assert super_users_in(" User:CN=a,O=b ; User:ann;; ") == ["User:CN=a,O=b", "User:ann"]


def test_entries_come_and_go() -> None:
    authorizer = with_entries(entry(), entry(), entry("ord", pattern=PREFIXED))
    assert len(authorizer) == 2
    authorizer.remove(entry("ord", pattern=PREFIXED))
    authorizer.remove(entry())
    assert not may(authorizer)
    assert authorizer.find(AclFilter()) == []
    # Somebody may hear of an entry only when it is gone.
    authorizer.remove(entry())


@pytest.mark.parametrize(
    ("acls", "allowed"),
    [
        ([], False),
        ([entry(operation=WRITE)], True),
        ([entry(operation=ALL)], True),
        # Reading implies nothing here.
        ([entry(operation=READ)], False),
        ([entry(operation=WRITE), entry("*", WRITE, DENY)], False),
        ([entry("*", WRITE), entry("o", WRITE, DENY, pattern=PREFIXED)], True),
        ([entry(operation=WRITE), entry(operation=WRITE, permission=DENY)], False),
        ([entry(operation=WRITE), entry("ord", WRITE, DENY, pattern=PREFIXED)], False),
        ([entry("ord", WRITE, pattern=PREFIXED), entry("orders", WRITE, DENY)], True),
        ([entry("ord", WRITE, pattern=PREFIXED), entry("ord", WRITE, DENY, pattern=PREFIXED)], False),
        ([entry(operation=WRITE, host="10.0.0.2")], False),
    ],
)
def test_whether_any_topic_may_be_written(acls: list[Acl], allowed: bool) -> None:
    assert with_entries(*acls).authorize_any(ANN, WRITE, TOPIC) is allowed


def test_operations_as_bits() -> None:
    authorizer = with_entries(entry(operation=READ), entry(operation=Operation.ALTER_CONFIGS))
    assert authorizer.operations(ANN, TOPIC, "orders") == 1 << 3 | 1 << 8 | 1 << 10 | 1 << 11


def naive(acls: Iterable[Acl], who: Client, operation: Operation, name: str, *, lenient: bool) -> bool:
    """Decide by a walk over all entries, written from Kafka's documentation alone."""
    about, denied, allowed = False, False, False
    for acl in acls:
        if acl.pattern_type == PREFIXED:
            covers = name.startswith(acl.resource_name)
        else:
            covers = acl.resource_name in ("*", name)
        if not covers or acl.resource_type != TOPIC:
            continue
        about = True
        if acl.principal != "User:*" and acl.principal != who.principal:
            continue
        if acl.host != "*" and acl.host != who.host:
            continue
        implied = {DESCRIBE: {3, 4, 6, 7}, Operation.DESCRIBE_CONFIGS: {11}}.get(operation, set())
        same = acl.operation in (operation, ALL)
        if acl.permission == DENY:
            denied |= same
        else:
            allowed |= same or acl.operation in implied
    if denied:
        return False
    return allowed or (lenient and not about)


NAMES = st.text("ab*", max_size=3)
ENTRIES = st.builds(
    Acl,
    st.sampled_from([TOPIC, GROUP]),
    NAMES.filter(bool),
    st.sampled_from([LITERAL, PREFIXED]),
    st.sampled_from(["User:ann", "User:bob", "User:*", "Group:*"]),
    st.sampled_from(["*", "10.0.0.1", "10.0.0.2"]),
    st.sampled_from([ALL, READ, WRITE, DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS]),
    st.sampled_from([ALLOW, DENY]),
)


@given(
    st.lists(ENTRIES, max_size=8),
    st.lists(st.integers(0, 7), max_size=4),
    st.sampled_from([READ, WRITE, DESCRIBE, Operation.DESCRIBE_CONFIGS]),
    NAMES,
    st.booleans(),
)
def test_decisions_are_those_of_a_naive_reading(
    acls: list[Acl], removed: list[int], operation: Operation, name: str, lenient: bool
) -> None:
    authorizer = with_entries(*acls, allow_if_no_acl=lenient)
    left = dict.fromkeys(acls)
    for number in removed:
        if number < len(acls) and acls[number] in left:
            del left[acls[number]]
            authorizer.remove(acls[number])
    assert list(authorizer) == list(left)
    assert may(authorizer, operation, name) is naive(left, ANN, operation, name, lenient=lenient)
    bits = [one for one in OPERATIONS[TOPIC] if may(authorizer, one, name)]
    assert authorizer.operations(ANN, TOPIC, name) == sum(1 << one for one in bits)
