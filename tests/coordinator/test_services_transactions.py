"""Transactions in the coordinator process, with the real log process."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec

from mpbroker.ipc.calls import CheckTransaction, DeleteTopics, Failed, HoldsEnded
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.topology import COORDINATOR
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from tests.support.coordinator_party import CoordinatorParty
from tests.support.coordinator_tree import CoordinatorTree

ROOM = 256 << 10


def fill_arena(tree: CoordinatorTree) -> None:
    """The first handler takes no answers, until there is no memory for another."""
    slow = tree.handlers[0]
    slow.sleeps = True
    counters = tree.memory.counters(COORDINATOR)
    missing = DeleteTopics([f"t{number}" for number in range(2000)])
    for sent in itertools.count(slow.inbox.waiting() + 1):
        slow.call(missing)
        tree.until(lambda sent=sent: slow.inbox.waiting() == sent)  # type: ignore[misc]
        if counters.get(Counter.COUNT_ARENA_BYTES) >= ROOM:
            return


def test_what_was_added_can_be_ended_when_less_is_allowed_by_then(
    make_tree: Callable[..., CoordinatorTree],
) -> None:
    party = CoordinatorParty(make_tree, transaction_state_log_num_partitions=1)
    try:
        for handler in party.tree.handlers:
            handler.call(HoldsEnded())
        begun = party.ask(InitProducerIdRequest("x", 60_000))
        producer = begun.producer_id, begun.producer_epoch
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic("t", [0, 1])
        party.ask(AddPartitionsToTxnRequest("x", *producer, [topic]))
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
        for handler in party.tree.handlers:
            handler.call(HoldsEnded())
        begun = party.ask(InitProducerIdRequest("x", 60_000))
        producer = begun.producer_id, begun.producer_epoch
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic("t", [0])
        party.ask(AddPartitionsToTxnRequest("x", *producer, [topic]))
        slow, fast = party.tree.handlers
        fill_arena(party.tree)
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
