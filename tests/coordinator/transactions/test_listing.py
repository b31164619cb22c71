"""ListTransactions: filters, patterns, and the slices in which it works."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.coordinator.transactions import listing
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ListTransactionsRequest, ListTransactionsResponse
from tests.support.transaction_rig import TransactionRig

T0 = ("t", 0)
NONE = ErrorCode.NONE
WEEK_MS = 7 * 24 * 3_600_000


def listed(rig: TransactionRig, **filters: object) -> list[str]:
    answer = rig.answers[rig.ask(ListTransactionsRequest(**filters), 2)]  # type: ignore[arg-type]
    return sorted(one.transactional_id for one in answer.transaction_states)


def test_listing_transactions(rig: TransactionRig) -> None:
    assert rig.add(rig.init(), T0) is NONE
    rig.later(5_000)
    rig.init(name="y-1")
    other = rig.init(name="y-2")
    assert rig.add(other, T0, name="y-2") is NONE
    rig.now_ms += 1
    assert listed(rig) == ["x", "y-1", "y-2"]
    assert listed(rig, state_filters=["Ongoing"]) == ["x", "y-2"]
    assert listed(rig, state_filters=["Ongoing", "Empty"]) == ["x", "y-1", "y-2"]
    assert listed(rig, producer_id_filters=[other[0]]) == ["y-2"]
    assert listed(rig, state_filters=["Ongoing"], duration_filter=5_000) == ["x"]
    assert listed(rig, state_filters=["Ongoing"], duration_filter=0) == ["x", "y-2"]
    assert listed(rig, state_filters=["Ongoing"], duration_filter=5_001) == []
    assert listed(rig, transactional_id_pattern="y-.*") == ["y-1", "y-2"]
    assert listed(rig, transactional_id_pattern="y") == [], "the whole of it"
    assert listed(rig, transactional_id_pattern="") == ["x", "y-1", "y-2"]
    answer = rig.answers[rig.ask(ListTransactionsRequest(["Nope", "Ongoing"]), 2)]
    assert answer.unknown_state_filters == ["Nope"]
    assert len(answer.transaction_states) == 2
    assert listed(rig, state_filters=["Nope"]) == []
    assert listed(rig, transactional_id_pattern=r"(?i)Y-\d") == ["y-1", "y-2"]


def test_half_a_list_is_none(rig: TransactionRig) -> None:
    rig.coordinator.state.fail(1)
    assert listed(rig) == []
    rig.coordinator.partitions.reopen(1)
    refused = rig.ask(ListTransactionsRequest(), 2)
    assert rig.answers[refused] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_who_is_about_to_be_forgotten_is_not_there(rig: TransactionRig) -> None:
    rig.init()
    rig.later(WEEK_MS)
    assert listed(rig) == []


@pytest.mark.parametrize(
    "pattern", ["(", "a**", "a\\", "(?=a)", r"(a)\1", "a{1001}", "((a{30}){30}){30}" * 20]
)
def test_a_pattern_that_re2_refuses(rig: TransactionRig, pattern: str) -> None:
    refused = rig.ask(ListTransactionsRequest(transactional_id_pattern=pattern), 2)
    assert rig.answers[refused] is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_pattern_is_tried_once_at_each_place(rig: TransactionRig) -> None:
    """Check it with a pattern for which Python's `re` would practically never end."""
    rig.init(name="a" * 2000)
    for pattern in ("(a+)+b", "(a|a)*b", "(a*)*(a*)*b", ".*.*.*.*.*b"):
        assert listed(rig, transactional_id_pattern=pattern) == []
    assert len(listed(rig, transactional_id_pattern="(a+)+")) == 1


@given(st.text("ab()[]{}|*+?^$\\.-,1d<>P:\0é", max_size=12))
def test_any_text_is_a_pattern_or_refused(pattern: str) -> None:
    rig = TransactionRig()
    rig.init(name="ab1")
    answer = rig.answers[rig.ask(ListTransactionsRequest(transactional_id_pattern=pattern), 2)]
    assert isinstance(answer, ListTransactionsResponse) or answer is ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize("pattern", ["a" * 1001, r"\pL+\pL+\pL+", "[ab]*a" + "[ab]" * 3980])
def test_a_pattern_that_is_too_large(rig: TransactionRig, pattern: str) -> None:
    refused = rig.ask(ListTransactionsRequest(transactional_id_pattern=pattern), 2)
    assert rig.answers[refused] is ErrorCode.INVALID_REGULAR_EXPRESSION


def many_ids(count: int) -> TransactionRig:
    """Make ids on which a pattern takes long, for which no automaton has room."""
    rig = TransactionRig()
    for number in range(count):
        rig.init(name=f"{number:04}" + "ab" * 2000)
    return rig


SLOW = r"\d{4}[ab]*a[ab]{201}"
SLOW_PER_SLICE = -(-listing.SLICE_STEPS // (200 * 4000))


def test_others_go_on_while_a_pattern_is_slow() -> None:
    """A slice is over after a bounded number of steps, and requests of others are served between slices."""
    ids = 5 * SLOW_PER_SLICE
    rig = many_ids(ids)
    slow = rig.ask(ListTransactionsRequest(transactional_id_pattern=SLOW), 2)
    slices = 0
    while slow not in rig.answers:
        slices += 1
        other = rig.ask(ListTransactionsRequest(producer_id_filters=[1000]), 2)
        rig.init(name=f"new-{slices}")
        rig.coordinator.tick()
        rig.coordinator.tick()
        assert len(rig.answers[other].transaction_states) == 1
    assert slices >= 3
    assert len(rig.answers[slow].transaction_states) == ids


def test_a_list_whose_client_is_gone_ends() -> None:
    rig = many_ids(3 * SLOW_PER_SLICE)
    slow = rig.ask(ListTransactionsRequest(transactional_id_pattern=SLOW), 2)
    assert rig.coordinator.waiters() == [slow]
    rig.coordinator.abandon(slow)
    rig.coordinator.tick()
    assert rig.answers[slow] is ErrorCode.NETWORK_EXCEPTION
    assert rig.coordinator.waiters() == []


def test_a_list_ends_where_a_partition_is_read_again() -> None:
    rig = many_ids(3 * SLOW_PER_SLICE)
    slow = rig.ask(ListTransactionsRequest(transactional_id_pattern=SLOW), 2)
    rig.coordinator.state.fail(1)
    rig.coordinator.partitions.reopen(1)
    rig.coordinator.tick()
    assert rig.answers[slow] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_so_many_lists_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LISTINGS_MAX", 2)
    rig = many_ids(3 * SLOW_PER_SLICE)
    asked = [rig.ask(ListTransactionsRequest(transactional_id_pattern=SLOW), 2) for _ in range(3)]
    assert [rig.answers.get(one) for one in asked] == [None, None, ErrorCode.COORDINATOR_NOT_AVAILABLE]
