"""The judge of transactions finds every crime in histories made up for it, and none in good ones."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest

from tests.chaos.exactly_once import Copied, Copies, Outcome, Seen, Transaction, violations

SOURCES, PLACES, TRANSACTIONS = 3, 2, 12


def good_copies(seed: int = 0) -> Copies:
    """Copiers take turns at random; every fourth transaction is aborted, and of some nobody knows."""
    chance, copies = random.Random(seed), Copies(PLACES)
    behind = dict.fromkeys(range(SOURCES), 0)
    # Markers and what is aborted have offsets, too.
    ends = dict.fromkeys(range(SOURCES), 0)
    for number in range(TRANSACTIONS):
        source = chance.randrange(SOURCES)
        first = behind[source]
        is_there = number % 4 != 3
        known = Outcome.COMMITTED if is_there else Outcome.ABORTED
        outcome = chance.choice((known, Outcome.UNKNOWN))
        copies.transactions[number] = Transaction(source, first, first + 3, outcome)
        for each in range(first, first + 3):
            for place in range(PLACES):
                partition = (source + place) % SOURCES
                if is_there:
                    record = Copied(source, each, place, number)
                    copies.final.append(Seen(partition, ends[partition], record))
                ends[partition] += 1
        if is_there:
            behind[source] = first + 3
        copies.offsets[source].append(behind[source])
    copies.live = list(copies.final)
    copies.ends = {("target", partition): (end, end) for partition, end in ends.items()}
    return copies


def known(copies: Copies, outcome: Outcome) -> int:
    """A transaction that has records or not, and whose client knows it."""
    is_there = outcome is Outcome.COMMITTED
    there = {seen.record.transaction for seen in copies.final}
    number = next(each for each in copies.transactions if (each in there) is is_there)
    copies.transactions[number] = dataclasses.replace(copies.transactions[number], outcome=outcome)
    return number


def without(copies: Copies, doomed: Callable[[Seen], bool]) -> None:
    copies.final = [seen for seen in copies.final if not doomed(seen)]
    copies.live = list(copies.final)


def kinds(copies: Copies) -> set[str]:
    return {violation.kind for violation in violations(copies)}


@pytest.mark.parametrize("seed", range(5))
def test_a_good_history_passes(seed: int) -> None:
    assert violations(good_copies(seed)) == []


def test_nothing_happened_is_no_crime() -> None:
    assert violations(Copies(PLACES)) == []


def test_a_committed_transaction_that_is_gone_is_lost() -> None:
    copies = good_copies()
    number = known(copies, Outcome.COMMITTED)
    without(copies, lambda seen: seen.record.transaction == number)
    assert {"lost"} <= kinds(copies) <= {"lost", "gap", "offset"}


def test_an_aborted_transaction_that_is_there_is_told() -> None:
    copies = good_copies()
    number = known(copies, Outcome.COMMITTED)
    whole = copies.transactions[number]
    copies.transactions[number] = dataclasses.replace(whole, outcome=Outcome.ABORTED)
    assert kinds(copies) == {"aborted"}


@pytest.mark.parametrize("outcome", [Outcome.COMMITTED, Outcome.UNKNOWN])
def test_a_part_of_a_transaction_is_torn(outcome: Outcome) -> None:
    """Check that the checker finds a transaction of which the records in one partition are missing."""
    copies = good_copies()
    number = known(copies, Outcome.COMMITTED)
    copies.transactions[number] = dataclasses.replace(copies.transactions[number], outcome=outcome)
    without(copies, lambda seen: seen.record.transaction == number and seen.record.place == 1)
    assert {"torn"} <= kinds(copies) <= {"torn", "gap"}


def test_a_record_that_is_there_twice_is_duplicated() -> None:
    copies = good_copies()
    last = max(seen.offset for seen in copies.final)
    copies.final.append(copies.final[0]._replace(offset=last + 1))
    assert "duplicated" in kinds(copies)


def test_records_in_another_order_are_told() -> None:
    copies = good_copies()
    of_one = copies.final[0].record._replace(number=1)
    one, other = copies.final[0], next(seen for seen in copies.final if seen.record == of_one)
    at, behind = copies.final.index(one), copies.final.index(other)
    copies.final[at], copies.final[behind] = (
        one._replace(record=other.record),
        other._replace(record=one.record),
    )
    copies.live = list(copies.final)
    assert kinds(copies) == {"gap", "duplicated"}


def test_a_record_that_was_read_and_is_gone_is_revoked() -> None:
    copies = good_copies()
    number = known(copies, Outcome.COMMITTED)
    live = copies.live
    without(copies, lambda seen: seen.record.transaction == number)
    copies.live = live
    assert "revoked" in kinds(copies)


def test_an_offset_of_an_aborted_transaction_is_told() -> None:
    copies = good_copies()
    copies.offsets[0].insert(1, max(copies.offsets[0]) + 3)
    assert kinds(copies) == {"offset"}


def test_an_offset_that_goes_back_is_told() -> None:
    copies = good_copies()
    source = next(each for each, offsets in copies.offsets.items() if len(set(offsets)) > 1)
    copies.offsets[source].insert(-1, 0)
    copies.offsets[source].insert(-1, max(copies.offsets[source]))
    copies.offsets[source].insert(-1, 0)
    assert kinds(copies) == {"offset"}


def test_an_offset_that_stays_behind_its_records_is_told() -> None:
    copies = good_copies()
    source = next(each for each, offsets in copies.offsets.items() if len(set(offsets)) > 1)
    last = copies.offsets[source][-1]
    copies.offsets[source] = [offset for offset in copies.offsets[source] if offset < last]
    assert kinds(copies) == {"offset"}


def test_a_transaction_that_was_never_begun_is_a_phantom() -> None:
    copies = good_copies()
    number = known(copies, Outcome.COMMITTED)
    del copies.transactions[number]
    assert "phantom" in kinds(copies)


def test_offsets_that_a_reader_gets_backwards_are_told() -> None:
    copies = good_copies()
    copies.live.append(copies.live[0])
    assert "backwards" in kinds(copies)


def test_what_stays_open_is_told() -> None:
    copies = good_copies()
    copies.ends["target", 0] = (1, 2)
    copies.left_open = ["somebody"]
    found = violations(copies)
    assert [violation.kind for violation in found] == ["open", "open"]


def test_complaints_of_clients_are_told() -> None:
    copies = good_copies()
    copies.complaints.append("a client hangs")
    assert [str(violation) for violation in violations(copies)] == ["complaint: a client hangs"]
