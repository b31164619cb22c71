"""Transactions in the coordinator process, with the real log process."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from mpbroker.ipc.calls import CheckTransaction, Failed
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    DescribeTransactionsRequest,
    EndTxnRequest,
)
from tests.support.coordinator_party import CoordinatorParty
from tests.support.coordinator_tree import CoordinatorTree

ROOM = 256 << 10


def test_what_was_added_can_be_ended_when_less_is_allowed_by_then(
    make_tree: Callable[..., CoordinatorTree],
) -> None:
    party = CoordinatorParty(make_tree, transaction_state_log_num_partitions=1)
    try:
        producer = party.begin_transaction(0, 1)
        party.tree.config = msgspec.structs.replace(party.tree.config, message_max_bytes=100)
        party.kill_coordinator()
        assert party.ask(EndTxnRequest("x", *producer, True)).error_code == ErrorCode.NONE
    finally:
        party.log.kill()


def test_a_hold_that_nobody_could_be_told_of_does_not_keep_a_transaction_open(
    make_tree: Callable[..., CoordinatorTree],
) -> None:
    party = CoordinatorParty(make_tree, reply_limit_bytes=ROOM, transaction_state_log_num_partitions=1)
    try:
        producer = party.begin_transaction(0)
        slow, fast = party.tree.handlers
        party.tree.fill_arena(ROOM)
        checked = fast.call(CheckTransaction("x", *producer, [("t", 0)], adds=False))
        party.tree.until(lambda: checked in fast.answers)
        assert isinstance(fast.answers[checked], Failed)
        slow.sleeps = False
        assert party.ask(EndTxnRequest("x", *producer, True), 1).error_code == ErrorCode.NONE

        def state() -> str:
            (one,) = party.ask(DescribeTransactionsRequest(["x"]), 1).transaction_states
            return str(one.transaction_state)

        party.tree.until(lambda: state() == "CompleteCommit")
    finally:
        party.log.kill()
