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
from tests.coordinator.transaction_world import World

T0, T1 = ("t", 0), ("t", 1)
NONE = ErrorCode.NONE
WEEK_MS = 7 * 24 * 3_600_000


def described(world: World, *names: str) -> list[DescribeTransactionsResponse.TransactionState]:
    answer = world.answers[world.ask(DescribeTransactionsRequest(list(names)), 0)]
    assert isinstance(answer, DescribeTransactionsResponse)
    return answer.transaction_states


def test_describing_transactions() -> None:
    world = World()
    producer = world.init()
    assert world.add(producer, T1, ("u", 0), T0) is NONE
    one, unknown, nameless = described(world, "x", "y", "")
    assert (one.error_code, one.transaction_state, one.transaction_timeout_ms) == (0, "Ongoing", 60_000)
    assert (one.producer_id, one.producer_epoch) == producer
    assert one.transaction_start_time_ms == world.wall_ms()
    assert [(topic.topic, topic.partitions) for topic in one.topics] == [("t", [0, 1]), ("u", [0])]
    assert unknown.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert nameless.error_code == ErrorCode.INVALID_REQUEST
    world.coordinator.failed(world.coordinator.partition_for("x"))
    assert described(world, "x")[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_what_would_be_too_large_an_answer_is_described_in_parts() -> None:
    world = World()
    for name in ("x", "y", "z"):
        world.init(name=name)
        value: TransactionValue = world.value(name)
        many = frozenset(("t", index) for index in range(30_000))
        world.write_record(value._replace(state=type(value.state).ONGOING, partitions=many, start_ms=1), name)
    assert [one.transactional_id for one in described(world, "x", "y", "z")] == ["x", "y"]


def listed(world: World, **filters: object) -> list[str]:
    answer = world.answers[world.ask(ListTransactionsRequest(**filters), 2)]  # type: ignore[arg-type]
    return sorted(one.transactional_id for one in answer.transaction_states)


def test_listing_transactions() -> None:
    world = World()
    assert world.add(world.init(), T0) is NONE
    world.later(5_000)
    world.init(name="y-1")
    other = world.init(name="y-2")
    assert world.add(other, T0, name="y-2") is NONE
    world.now_ms += 1
    assert listed(world) == ["x", "y-1", "y-2"]
    assert listed(world, state_filters=["Ongoing"]) == ["x", "y-2"]
    assert listed(world, state_filters=["Ongoing", "Empty"]) == ["x", "y-1", "y-2"]
    assert listed(world, producer_id_filters=[other[0]]) == ["y-2"]
    assert listed(world, state_filters=["Ongoing"], duration_filter=5_000) == ["x"]
    assert listed(world, state_filters=["Ongoing"], duration_filter=0) == ["x", "y-2"]
    assert listed(world, state_filters=["Ongoing"], duration_filter=5_001) == []
    assert listed(world, transactional_id_pattern="y-.*") == ["y-1", "y-2"]
    assert listed(world, transactional_id_pattern="y") == [], "the whole of it"
    assert listed(world, transactional_id_pattern="") == ["x", "y-1", "y-2"]
    answer = world.answers[world.ask(ListTransactionsRequest(["Nope", "Ongoing"]), 2)]
    assert answer.unknown_state_filters == ["Nope"]
    assert len(answer.transaction_states) == 2
    assert listed(world, state_filters=["Nope"]) == []
    assert listed(world, transactional_id_pattern=r"(?i)Y-\d") == ["y-1", "y-2"]


def test_half_a_list_is_none() -> None:
    world = World()
    world.coordinator.failed(1)
    assert listed(world) == []
    world.coordinator.reopened(1)
    refused = world.ask(ListTransactionsRequest(), 2)
    assert world.answers[refused] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_who_is_about_to_be_forgotten_is_not_there() -> None:
    world = World()
    world.init()
    world.later(WEEK_MS)
    assert listed(world) == []
    assert described(world, "x")[0].error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


@pytest.mark.parametrize(
    "pattern", ["(", "a**", "a\\", "(?=a)", r"(a)\1", "a{1001}", "((a{30}){30}){30}" * 20]
)
def test_a_pattern_that_re2_refuses(pattern: str) -> None:
    world = World()
    refused = world.ask(ListTransactionsRequest(transactional_id_pattern=pattern), 2)
    assert world.answers[refused] is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_pattern_is_tried_once_at_each_place() -> None:
    """Python's `re` would take longer than anybody lives."""
    world = World()
    world.init(name="a" * 2000)
    for pattern in ("(a+)+b", "(a|a)*b", "(a*)*(a*)*b", ".*.*.*.*.*b"):
        assert listed(world, transactional_id_pattern=pattern) == []
    assert len(listed(world, transactional_id_pattern="(a+)+")) == 1


@given(st.text("ab()[]{}|*+?^$\\.-,1d<>P:\0é", max_size=12))
def test_any_text_is_a_pattern_or_refused(pattern: str) -> None:
    world = World()
    world.init(name="ab1")
    answer = world.answers[world.ask(ListTransactionsRequest(transactional_id_pattern=pattern), 2)]
    assert isinstance(answer, ListTransactionsResponse) or answer is ErrorCode.INVALID_REGULAR_EXPRESSION
