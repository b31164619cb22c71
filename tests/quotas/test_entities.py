"""Who is limited by what: the eight levels, who shares a budget, and which quotas there may be."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.quotas.entities import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Entity,
    InvalidQuota,
    Limit,
    MatchType,
    QuotaTable,
    check_quota,
    entity_of,
)

KEY = PRODUCER_BYTE_RATE


def entity(user: str | bool | None = False, client: str | bool | None = False) -> Entity:
    """False: the entity has no such part; None: the default."""
    pairs: list[tuple[str, str | None]] = []
    if user is not False:
        pairs.append(("user", user if user is None else str(user)))
    if client is not False:
        pairs.append(("client-id", client if client is None else str(client)))
    return entity_of(pairs)


# Kafka's order of precedence, and whose budget each level means for user alice with client id app.
LEVELS = [
    (entity("alice", "app"), ("alice", "app")),
    (entity("alice", None), ("alice", "app")),
    (entity("alice"), ("alice", "")),
    (entity(None, "app"), ("alice", "app")),
    (entity(None, None), ("alice", "app")),
    (entity(None), ("alice", "")),
    (entity(client="app"), ("", "app")),
    (entity(client=None), ("", "app")),
]


@pytest.mark.parametrize("levels", list(itertools.product([False, True], repeat=8)))
def test_the_first_level_that_is_there_wins(levels: tuple[bool, ...]) -> None:
    table = QuotaTable()
    there = [number for number, has in enumerate(levels) if has]
    for number in there:
        table.change(LEVELS[number][0], KEY, 100.0 + number)
    # A quota of another kind does not make a level count.
    table.change(LEVELS[0][0], CONSUMER_BYTE_RATE, 1.0)
    found = table.limit(KEY, "alice", "app")
    assert found == (Limit(*LEVELS[there[0]][1], 100.0 + there[0]) if there else None)


def test_a_default_user_quota_gives_every_user_a_budget_of_its_own() -> None:
    table = QuotaTable()
    table.change(entity(None), KEY, 5.0)
    assert table.limit(KEY, "alice", "app") == Limit("alice", "", 5.0)
    assert table.limit(KEY, "bob", "app") == Limit("bob", "", 5.0)


def test_all_client_ids_of_a_user_share_its_budget() -> None:
    table = QuotaTable()
    table.change(entity("alice"), KEY, 5.0)
    assert table.limit(KEY, "alice", "one") == table.limit(KEY, "alice", "two") == Limit("alice", "", 5.0)


def test_all_users_of_a_client_id_share_its_budget() -> None:
    table = QuotaTable()
    table.change(entity(client="app"), KEY, 5.0)
    assert table.limit(KEY, "alice", "app") == table.limit(KEY, "bob", "app") == Limit("", "app", 5.0)
    assert table.limit(KEY, "bob", "other") is None


def test_a_client_without_an_id_is_not_limited_by_client_quotas() -> None:
    table = QuotaTable()
    table.change(entity(client=None), KEY, 5.0)
    assert table.limit(KEY, "alice", "") is None
    table.change(entity("alice", None), KEY, 6.0)
    assert table.limit(KEY, "alice", "") is None
    # It uses its user's budget, if that has one.
    table.change(entity(None), KEY, 7.0)
    assert table.limit(KEY, "alice", "") == Limit("alice", "", 7.0)


names = st.sampled_from(["alice", "bob", "app", "", "<default>"])


@given(
    st.dictionaries(
        st.sampled_from([level for level, _ in LEVELS]), st.floats(0.5, 1e9), min_size=1, max_size=8
    ),
    names.filter(bool),
    names,
)
def test_limits_against_a_slow_search(quotas: dict[Entity, float], user: str, client: str) -> None:
    table = QuotaTable()
    for who, value in quotas.items():
        table.change(who, KEY, value)
    limit = table.limit(KEY, user, client)
    candidates = [
        entity_of([("user", u), *([("client-id", c)] if c is not False else [])])
        for u, c in [(user, client), (user, None), (user, False), (None, client), (None, None), (None, False)]
        if c != ""
    ] + ([entity(client=client), entity(client=None)] if client else [])
    if client:
        found = next((who for who in candidates if who in quotas), None)
        assert (limit.bound if limit else None) == (quotas[found] if found else None)
    else:
        assert limit is None or (limit.user, limit.client_id) == (user, "")


def test_an_address_has_one_entity_however_it_is_written() -> None:
    assert entity_of([("ip", "0:0::1")]) == (("ip", "::1"),)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "empty client quota entity"),
        ([("group", "a")], "Unhandled client quota entity type: group"),
        ([("user", "")], "Empty user not supported"),
        ([("user", "a"), ("user", "b")], "more than once"),
        ([("ip", "10.0.0.1"), ("user", "a")], "cannot be combined"),
        ([("ip", "nowhere at all")], "is not an IP address"),
    ],
)
def test_entities_that_cannot_have_quotas(pairs: list[tuple[str, str | None]], message: str) -> None:
    with pytest.raises(InvalidQuota, match=message):
        entity_of(pairs)


@pytest.mark.parametrize(
    ("pairs", "key", "value", "problem"),
    [
        ([("user", "a")], PRODUCER_BYTE_RATE, 1024.0, None),
        ([("client-id", None)], CONSUMER_BYTE_RATE, 1024.0 + 1e-7, None),
        ([("user", None)], REQUEST_PERCENTAGE, 0.5, None),
        ([("user", None)], CONTROLLER_MUTATION_RATE, 0.5, None),
        ([("ip", None)], CONNECTION_CREATION_RATE, 1.0, None),
        ([("user", "a")], PRODUCER_BYTE_RATE, 0.5, "whole number"),
        ([("user", "a")], PRODUCER_BYTE_RATE, 0.0, "greater than 0"),
        ([("user", "a")], REQUEST_PERCENTAGE, -1.0, "greater than 0"),
        ([("user", "a")], REQUEST_PERCENTAGE, float("nan"), "greater than 0"),
        ([("user", "a")], REQUEST_PERCENTAGE, float("inf"), "greater than 0"),
        ([("user", "a")], CONNECTION_CREATION_RATE, 1.0, "Invalid configuration key"),
        ([("ip", None)], PRODUCER_BYTE_RATE, 1.0, "Invalid configuration key"),
        ([("user", "a")], "max_speed", 1.0, "Invalid configuration key max_speed"),
    ],
)
def test_quotas_that_an_entity_may_have(
    pairs: list[tuple[str, str | None]], key: str, value: float, problem: str | None
) -> None:
    if problem is None:
        check_quota(entity_of(pairs), key, value)
    else:
        with pytest.raises(InvalidQuota, match=problem):
            check_quota(entity_of(pairs), key, value)


def test_changes_replace_and_remove() -> None:
    table = QuotaTable()
    table.change(entity("alice"), KEY, 1.0)
    draft = table.copy()
    draft.change(entity("alice"), CONSUMER_BYTE_RATE, 2.0)
    draft.change(entity("alice"), KEY, None)
    assert draft.of(entity("alice")) == {CONSUMER_BYTE_RATE: 2.0}
    assert table.of(entity("alice")) == {KEY: 1.0}
    draft.change(entity("alice"), CONSUMER_BYTE_RATE, None)
    assert len(draft) == 0


def test_filters() -> None:
    table = QuotaTable()
    everyone = [level for level, _ in LEVELS]
    for who in everyone:
        table.change(who, KEY, 1.0)
    exact = {"user": (MatchType.EXACT, "alice")}
    assert set(table.matching(exact, strict=False)) == {
        entity("alice", "app"),
        entity("alice", None),
        entity("alice"),
    }
    assert list(table.matching(exact, strict=True)) == [entity("alice")]
    default = {"user": (MatchType.DEFAULT, None), "client-id": (MatchType.SPECIFIED, None)}
    assert set(table.matching(default, strict=True)) == {entity(None, "app"), entity(None, None)}
    assert set(table.matching({}, strict=False)) == set(everyone)
    assert list(table.matching({}, strict=True)) == []
