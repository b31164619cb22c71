"""What EndTxn and InitProducerId do in each state: the tables that Kafka's TransactionCoordinator decides by.

A row is a state and what the producer says that it is, a cell what it is told:

    E  NONE: the transaction ends
    N  NONE: it has ended so already
    I  INVALID_TXN_STATE
    P  PRODUCER_FENCED
    M  INVALID_PRODUCER_ID_MAPPING
    C  CONCURRENT_TRANSACTIONS, after a wait for the markers
"""

from __future__ import annotations

import pytest

from mpbroker.coordinator.transactions.records import BY_LABEL, TV1, TV2, TransactionState, TransactionValue
from mpbroker.coordinator.transactions.steps import EXHAUSTED_FROM, LAST_EPOCH
from mpbroker.protocol.errors import ErrorCode
from tests.support.transaction_rig import NOBODY, V1, V2, Producer, TransactionRig, code_of

T0 = ("t", 0)
ERRORS = {
    "E": ErrorCode.NONE,
    "N": ErrorCode.NONE,
    "I": ErrorCode.INVALID_TXN_STATE,
    "P": ErrorCode.PRODUCER_FENCED,
    "M": ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    "C": ErrorCode.CONCURRENT_TRANSACTIONS,
}
ENDS = [(V1, True), (V1, False), (V2, True), (V2, False)]
CURRENT, BEFORE, EARLIER, NEXT, OTHER_ID = (1000, 5), (1000, 4), (1000, 3), (1000, 6), (999, 5)
LAST = (1000, EXHAUSTED_FROM)
END_TXN: list[tuple[str, Producer, str]] = [
    # state, the producer; cells: commit and abort of version 4, commit and abort of version 5
    ("Empty", CURRENT, "I I I E"),
    ("Empty", BEFORE, "P P P P"),
    ("Empty", EARLIER, "P P P P"),
    ("Empty", NEXT, "P P P P"),
    ("Empty", OTHER_ID, "M M M M"),
    ("Ongoing", CURRENT, "E E E E"),
    ("Ongoing", BEFORE, "P P P P"),
    ("Ongoing", EARLIER, "P P P P"),
    ("Ongoing", NEXT, "P P P P"),
    ("Ongoing", OTHER_ID, "M M M M"),
    ("PrepareCommit", CURRENT, "C C C C"),
    ("PrepareCommit", BEFORE, "P P C C"),
    ("PrepareCommit", EARLIER, "P P C C"),
    ("PrepareCommit", NEXT, "P P C C"),
    ("PrepareCommit", OTHER_ID, "M M C C"),
    ("PrepareAbort", CURRENT, "C C C C"),
    ("PrepareAbort", BEFORE, "P P C C"),
    ("PrepareAbort", EARLIER, "P P C C"),
    ("PrepareAbort", NEXT, "P P C C"),
    ("PrepareAbort", OTHER_ID, "M M C C"),
    ("CompleteCommit", CURRENT, "N I I E"),
    ("CompleteCommit", BEFORE, "P P N I"),
    ("CompleteCommit", EARLIER, "P P P P"),
    ("CompleteCommit", NEXT, "P P P P"),
    ("CompleteCommit", OTHER_ID, "M M M M"),
    ("CompleteAbort", CURRENT, "I N I E"),
    ("CompleteAbort", BEFORE, "P P I N"),
    ("CompleteAbort", EARLIER, "P P P P"),
    ("CompleteAbort", NEXT, "P P P P"),
    ("CompleteAbort", OTHER_ID, "M M M M"),
]
END_TXN_OF_A_NEW_ID: list[tuple[str, Producer, str]] = [
    # The same where the producer (1000, 32766) has become (1001, 0).
    ("Empty", LAST, "M M P P"),
    ("Empty", (1000, EXHAUSTED_FROM - 1), "M M M M"),
    ("Empty", (1001, 0), "I I I E"),
    ("CompleteCommit", LAST, "M M N I"),
    ("CompleteCommit", (1000, EXHAUSTED_FROM - 1), "M M M M"),
    ("CompleteCommit", (1001, 0), "N I I E"),
    ("CompleteAbort", LAST, "M M I N"),
    ("CompleteAbort", (1000, EXHAUSTED_FROM - 1), "M M M M"),
    ("CompleteAbort", (1001, 0), "I N I E"),
]
OPEN = ["Ongoing"]
OVER = ["Empty", "CompleteCommit", "CompleteAbort"]
NEW_ID = (1001, 0)
FENCED = "fenced"
INIT_PRODUCER_ID: list[tuple[Producer, str, int, Producer, Producer | str]] = [
    # The producer of the id, whether its transaction is open, the epoch before it (-1: forgotten by a start);
    # what the producer says that it is, and what it becomes.
    (CURRENT, "over", 4, NOBODY, (1000, 6)),
    (CURRENT, "over", 4, CURRENT, (1000, 6)),
    (CURRENT, "over", 4, BEFORE, CURRENT),
    (CURRENT, "over", -1, BEFORE, FENCED),
    (CURRENT, "over", 4, EARLIER, FENCED),
    (CURRENT, "over", 4, NEXT, FENCED),
    (CURRENT, "over", 4, OTHER_ID, FENCED),
    (CURRENT, "open", 4, NOBODY, (1000, 7)),
    (CURRENT, "open", 4, CURRENT, (1000, 6)),
    (CURRENT, "open", 4, NEXT, (1000, 7)),
    (CURRENT, "open", 4, BEFORE, FENCED),
    (CURRENT, "open", -1, BEFORE, FENCED),
    (CURRENT, "open", 4, EARLIER, FENCED),
    (CURRENT, "open", 4, (1000, 7), FENCED),
    (CURRENT, "open", 4, OTHER_ID, FENCED),
    (LAST, "over", -1, NOBODY, NEW_ID),
    (LAST, "over", -1, LAST, NEW_ID),
    # Kafka: UNKNOWN_SERVER_ERROR, since it prepares the next epoch before it sees that this is a retry.
    (LAST, "over", EXHAUSTED_FROM - 1, (1000, EXHAUSTED_FROM - 1), LAST),
    (LAST, "open", -1, NOBODY, (1001, 1)),
    (LAST, "open", -1, LAST, NEW_ID),
    (LAST, "open", -1, (1000, LAST_EPOCH), FENCED),
    (LAST, "open", -1, (1000, EXHAUSTED_FROM - 1), FENCED),
    (NEW_ID, "over", EXHAUSTED_FROM, NOBODY, (1001, 1)),
    (NEW_ID, "over", EXHAUSTED_FROM, NEW_ID, (1001, 1)),
    (NEW_ID, "over", EXHAUSTED_FROM, LAST, NEW_ID),
    (NEW_ID, "over", -1, LAST, FENCED),
    (NEW_ID, "over", EXHAUSTED_FROM, (1000, EXHAUSTED_FROM - 1), FENCED),
]


def in_state(label: str, producer: Producer = CURRENT, client_version: int = TV2) -> TransactionRig:
    """Return a rig whose id "x" is in that state, with this producer, whose id was 1000 before."""
    rig = TransactionRig()
    rig.init()
    assert next(rig.next_ids) == 1001
    state = BY_LABEL[label]
    has_partitions = state.is_preparing or state is TransactionState.ONGOING
    rig.write_record(
        TransactionValue(
            producer[0],
            producer[1],
            60_000,
            state,
            frozenset({T0} if has_partitions else ()),
            rig.wall_ms(),
            rig.wall_ms(),
            previous_producer_id=1000,
            client_version=client_version,
        )
    )
    rig.next_ids = iter(range(1001, 1010))  # type: ignore[assignment]
    return rig


def check_end(rig: TransactionRig, producer: Producer, cell: str, version: int, is_commit: bool) -> None:
    before = rig.value()
    waiter = rig.ask_end(producer, is_commit, version=version)
    if cell == "E":
        rig.settle()
    rig.later(100)
    assert code_of(rig.answers[waiter]) is ERRORS[cell]
    if cell != "E":
        assert rig.value() == before
    if version == V2 and cell in "EN":
        epoch = before.producer_epoch + (cell == "E")
        assert rig.ended(waiter) == (before.producer_id, epoch)
        assert rig.value()[:2] == (before.producer_id, epoch)


@pytest.mark.parametrize("client_version", [TV1, TV2])
@pytest.mark.parametrize(("version", "is_commit"), ENDS)
@pytest.mark.parametrize(("state", "producer", "cells"), END_TXN)
def test_end_txn(
    state: str, producer: Producer, cells: str, version: int, is_commit: bool, client_version: int
) -> None:
    cell = cells.split()[ENDS.index((version, is_commit))]
    check_end(in_state(state, client_version=client_version), producer, cell, version, is_commit)


@pytest.mark.parametrize(("version", "is_commit"), ENDS)
@pytest.mark.parametrize(("state", "producer", "cells"), END_TXN_OF_A_NEW_ID)
def test_end_txn_where_the_producer_id_has_changed(
    state: str, producer: Producer, cells: str, version: int, is_commit: bool
) -> None:
    cell = cells.split()[ENDS.index((version, is_commit))]
    check_end(in_state(state, NEW_ID), producer, cell, version, is_commit)


@pytest.mark.parametrize(("version", "is_commit"), ENDS)
@pytest.mark.parametrize(
    ("state", "after"), [("PrepareCommit", "CompleteCommit"), ("PrepareAbort", "CompleteAbort")]
)
@pytest.mark.parametrize("producer", [CURRENT, BEFORE, EARLIER, NEXT, OTHER_ID])
def test_an_end_that_waits_for_markers_is_judged_behind_them(
    state: str, after: str, producer: Producer, version: int, is_commit: bool
) -> None:
    rig, there = in_state(state), in_state(after)
    waiter = rig.ask_end(producer, is_commit, version=version)
    rig.settle()
    other = there.ask_end(producer, is_commit, version=version)
    there.settle()
    assert rig.answers[waiter] == there.answers[other]


@pytest.mark.parametrize(
    ("state", "current", "last_epoch", "expected", "becomes"),
    [(state, row[0], *row[2:]) for row in INIT_PRODUCER_ID for state in (OVER if row[1] == "over" else OPEN)],
)
def test_init_producer_id(
    state: str, current: Producer, last_epoch: int, expected: Producer, becomes: Producer | str
) -> None:
    rig = in_state(state, current)
    transaction = rig.coordinator.state.find("x")
    assert transaction is not None
    transaction.last_epoch = last_epoch
    before, waiter = rig.value(), rig.ask_init(expected)
    rig.settle()
    if becomes == FENCED:
        assert code_of(rig.answers[waiter]) is ErrorCode.PRODUCER_FENCED
        could_be_told = expected[1] != LAST_EPOCH
        assert not could_be_told or (rig.value(), rig.markers) == (before, [])
        return
    assert (rig.state, rig.began(waiter)) == ("Empty", becomes)
    assert [marker.is_commit for marker, _ in rig.markers] == ([False] if state == "Ongoing" else [])
    if expected[0] == becomes[0]:
        assert rig.init(expected) == becomes, "its answer was lost"


@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize("epoch", [5, EXHAUSTED_FROM])
def test_a_transaction_that_timed_out_has_ended_as_tv2_does(version: int, epoch: int) -> None:
    rig = in_state("Ongoing", (1000, epoch), TV1)
    rig.later(80_000)
    rig.settle()
    after = NEW_ID if epoch == EXHAUSTED_FROM else NEXT
    assert (rig.state, rig.value()[:2], rig.value().client_version) == ("CompleteAbort", after, TV2)
    assert rig.value().previous_producer_id == 1000
    if version == V2:
        assert rig.end_v2((1000, epoch), False) == after
        assert rig.end((1000, epoch), True, version=V2) is ErrorCode.INVALID_TXN_STATE
    else:
        other_id = epoch == EXHAUSTED_FROM
        refused = ErrorCode.INVALID_PRODUCER_ID_MAPPING if other_id else ErrorCode.PRODUCER_FENCED
        assert rig.end((1000, epoch), False) is rig.end((1000, epoch), True) is refused
    assert rig.init((1000, epoch)) == after
    assert rig.add(after) is ErrorCode.NONE


def test_each_record_has_the_producer_id_of_the_record_before(rig: TransactionRig) -> None:
    rig.init()
    rig.write_record(rig.value()._replace(producer_epoch=EXHAUSTED_FROM))
    assert rig.add(LAST) is ErrorCode.NONE
    assert rig.end_v2(LAST) == NEW_ID
    assert rig.init() == (1001, 1)
    assert [
        (one.state.label, one.producer_id, one.previous_producer_id) for one in rig.records_of() if one
    ] == [
        ("Empty", 1000, 1000),
        ("Empty", 1000, 1000),
        ("Ongoing", 1000, 1000),
        ("PrepareCommit", 1000, 1000),
        ("CompleteCommit", 1001, 1000),
        ("Empty", 1001, 1001),
    ]
