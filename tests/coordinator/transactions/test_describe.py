"""DescribeTransactions."""

from __future__ import annotations

from mpbroker.coordinator.transactions.records import TransactionValue
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DescribeTransactionsRequest, DescribeTransactionsResponse
from tests.support.transaction_rig import TransactionRig

T0, T1 = ("t", 0), ("t", 1)
NONE = ErrorCode.NONE
WEEK_MS = 7 * 24 * 3_600_000


def described(rig: TransactionRig, *names: str) -> list[DescribeTransactionsResponse.TransactionState]:
    answer = rig.answers[rig.ask(DescribeTransactionsRequest(list(names)), 0)]
    assert isinstance(answer, DescribeTransactionsResponse)
    return answer.transaction_states


def test_describing_transactions(rig: TransactionRig) -> None:
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


def test_what_would_be_too_large_an_answer_is_described_in_parts(rig: TransactionRig) -> None:
    for name in ("x", "y", "z"):
        rig.init(name=name)
        value: TransactionValue = rig.value(name)
        many = frozenset(("t", index) for index in range(30_000))
        rig.write_record(value._replace(state=type(value.state).ONGOING, partitions=many, start_ms=1), name)
    assert [one.transactional_id for one in described(rig, "x", "y", "z")] == ["x", "y"]


def test_who_is_about_to_be_forgotten_is_not_there(rig: TransactionRig) -> None:
    rig.init()
    rig.later(WEEK_MS)
    assert described(rig, "x")[0].error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
