"""DescribeTransactions and ListTransactions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.coordinator.transactions.records import TransactionValue
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from tests.support.transaction_rig import TransactionRig

T0, T1 = ("t", 0), ("t", 1)
NONE = ErrorCode.NONE
WEEK_MS = 7 * 24 * 3_600_000


def described(rig: TransactionRig, *names: str) -> list[DescribeTransactionsResponse.TransactionState]:
    answer = rig.answers[rig.ask(DescribeTransactionsRequest(list(names)), 0)]
    assert isinstance(answer, DescribeTransactionsResponse)
    return answer.transaction_states


def test_describing_transactions() -> None:
    rig = TransactionRig()
    producer = rig.init()
    assert rig.add(producer, T1, ("u", 0), T0) is NONE
    one, unknown, nameless = described(rig, "x", "y", "")
    assert (one.error_code, one.transaction_state, one.transaction_timeout_ms) == (0, "Ongoing", 60_000)
    assert (one.producer_id, one.producer_epoch) == producer
    assert one.transaction_start_time_ms == rig.wall_ms()
    assert [(topic.topic, topic.partitions) for topic in one.topics] == [("t", [0, 1]), ("u", [0])]
    assert unknown.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert nameless.error_code == ErrorCode.INVALID_REQUEST
    rig.coordinator.state.fail(rig.coordinator.partitions.partition_for("x"))
    assert described(rig, "x")[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_what_would_be_too_large_an_answer_is_described_in_parts() -> None:
    rig = TransactionRig()
    for name in ("x", "y", "z"):
        rig.init(name=name)
        value: TransactionValue = rig.value(name)
        many = frozenset(("t", index) for index in range(30_000))
        rig.write_record(value._replace(state=type(value.state).ONGOING, partitions=many, start_ms=1), name)
    assert [one.transactional_id for one in described(rig, "x", "y", "z")] == ["x", "y"]


def listed(rig: TransactionRig, **filters: object) -> list[str]:
    answer = rig.answers[rig.ask(ListTransactionsRequest(**filters), 2)]  # type: ignore[arg-type]
    return sorted(one.transactional_id for one in answer.transaction_states)


def test_listing_transactions() -> None:
    rig = TransactionRig()
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


def test_half_a_list_is_none() -> None:
    rig = TransactionRig()
    rig.coordinator.state.fail(1)
    assert listed(rig) == []
    rig.coordinator.partitions.reopen(1)
    refused = rig.ask(ListTransactionsRequest(), 2)
    assert rig.answers[refused] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_who_is_about_to_be_forgotten_is_not_there() -> None:
    rig = TransactionRig()
    rig.init()
    rig.later(WEEK_MS)
    assert listed(rig) == []
    assert described(rig, "x")[0].error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


@pytest.mark.parametrize(
    "pattern", ["(", "a**", "a\\", "(?=a)", r"(a)\1", "a{1001}", "((a{30}){30}){30}" * 20]
)
def test_a_pattern_that_re2_refuses(pattern: str) -> None:
    rig = TransactionRig()
    refused = rig.ask(ListTransactionsRequest(transactional_id_pattern=pattern), 2)
    assert rig.answers[refused] is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_pattern_is_tried_once_at_each_place() -> None:
    """Check it with a pattern for which Python's `re` would practically never end."""
    rig = TransactionRig()
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
