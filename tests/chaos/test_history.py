"""The judge finds every crime in histories made up for it, and none in good ones."""

import dataclasses
import random
from collections.abc import Callable

import pytest

from tests.chaos.history import OFFSET_UNKNOWN, History, Read, RecordId, violations

PRODUCERS = 2
PARTITIONS = 3
NUMBERS = 20


def good_history(seed: int = 0) -> History:
    """Producers interleaved at random in each partition, all acked, all seen while it happened."""
    chance, history = random.Random(seed), History()
    for partition in range(PARTITIONS):
        left = {producer: iter(range(NUMBERS)) for producer in range(PRODUCERS)}
        turns = [producer for producer in range(PRODUCERS) for _ in range(NUMBERS)]
        chance.shuffle(turns)
        for offset, producer in enumerate(turns):
            record = RecordId(producer, partition, next(left[producer]))
            history.sent.add(record)
            history.acked[record] = offset
            history.final.append(Read(offset, record))
    history.live = list(history.final)
    return history


def kinds(history: History) -> set[str]:
    return {violation.kind for violation in violations(history)}


def renumbered(reads: list[Read]) -> list[Read]:
    """The same records in the same order, at offsets without a gap."""
    ends: dict[int, int] = {}
    out = []
    for read in reads:
        partition = read.record.partition
        out.append(Read(ends.get(partition, 0), read.record))
        ends[partition] = ends.get(partition, 0) + 1
    return out


def ack_as_read(history: History) -> None:
    """The broker's acknowledgements agree with what it did wrong, and nobody was watching."""
    history.live = []
    for offset, record in reversed(history.final):
        history.acked[record] = offset


@pytest.mark.parametrize("seed", range(5))
def test_a_good_history_passes(seed: int) -> None:
    assert violations(good_history(seed)) == []


def test_nothing_happened_is_no_crime() -> None:
    assert violations(History()) == []


def test_an_acknowledged_record_that_is_gone_is_lost() -> None:
    history = good_history()
    gone = history.final.pop(7).record
    history.final = renumbered(history.final)
    ack_as_read(history)
    (violation,) = violations(history)
    assert violation.kind == "lost"
    assert str(gone) in str(violation)


def test_an_acknowledged_tail_that_is_gone_is_lost() -> None:
    history = good_history()
    history.final.pop()
    history.live = []
    assert kinds(history) == {"lost"}


def test_a_record_that_was_not_acknowledged_may_be_gone_or_be_there() -> None:
    history = good_history()
    last = history.final[-1].record
    del history.acked[last]
    assert violations(history) == []
    history.final.pop()
    history.live.pop()
    assert violations(history) == []


@pytest.mark.parametrize("acked", [True, False])
def test_a_record_twice_is_duplicated(acked: bool) -> None:
    history = good_history()
    twice = history.final[-1].record
    history.final.append(Read(0, twice))
    history.final = renumbered(history.final)
    ack_as_read(history)
    if not acked:
        del history.acked[twice]
    assert kinds(history) == {"duplicated"}


def test_records_of_one_producer_that_changed_places_are_reordered() -> None:
    history = good_history()
    mine = [at for at, (_, record) in enumerate(history.final) if record[:2] == (1, 2)]
    first, second = mine[3], mine[9]
    reads = history.final
    reads[first], reads[second] = reads[second], reads[first]
    history.final = renumbered(reads)
    ack_as_read(history)
    assert kinds(history) == {"reordered"}


def test_a_record_at_another_offset_than_acknowledged_has_moved() -> None:
    history = good_history()
    history.acked[history.final[4].record] += 1
    assert kinds(history) == {"moved"}


def test_an_acknowledgement_may_leave_the_offset_open() -> None:
    history = good_history()
    history.acked[history.final[4].record] = OFFSET_UNKNOWN
    assert violations(history) == []


def test_a_record_that_nobody_sent_is_a_phantom() -> None:
    history = good_history()
    history.final.append(Read(PRODUCERS * NUMBERS, RecordId(0, PARTITIONS - 1, NUMBERS)))
    assert kinds(history) == {"phantom"}


def _another_record_there(history: History) -> None:
    unacked = history.final[-1]
    del history.acked[unacked.record]
    seen = RecordId(0, unacked.record.partition, NUMBERS)
    history.sent.add(seen)
    history.live[-1] = Read(unacked.offset, seen)


def _nothing_there(history: History) -> None:
    unacked = history.final.pop()
    del history.acked[unacked.record]


@pytest.mark.parametrize("take_back", [_another_record_there, _nothing_there])
def test_a_record_that_was_seen_and_is_not_there_is_revoked(take_back: Callable[[History], None]) -> None:
    history = good_history()
    take_back(history)
    assert kinds(history) == {"revoked"}


def _skip(reads: list[Read]) -> list[Read]:
    return reads[:5] + reads[6:]


def _repeat(reads: list[Read]) -> list[Read]:
    return reads[:6] + reads[5:]


@pytest.mark.parametrize("spoil", [_skip, _repeat])
def test_a_reader_that_skips_or_repeats_has_a_gap(spoil: Callable[[list[Read]], list[Read]]) -> None:
    history = good_history()
    history.live = spoil(history.live)
    assert kinds(history) == {"gap"}


def test_offsets_that_skip_have_a_gap() -> None:
    history = good_history()
    history.final = [
        read._replace(offset=read.offset + 1) if read.offset > 9 else read for read in history.final
    ]
    ack_as_read(history)
    assert kinds(history) == {"gap"}


def test_a_complaint_of_a_client_counts() -> None:
    history = dataclasses.replace(good_history(), complaints=["fatal error"])
    assert kinds(history) == {"complaint"}
