"""The judge finds every crime in histories made up for it, and none in good ones."""

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
    assert violations(History()) == []


def lose_one(history: History) -> None:
    history.final.pop(7)
    history.final = renumbered(history.final)
    ack_as_read(history)


def lose_the_tail(history: History) -> None:
    history.final.pop()
    history.live = []


def double(history: History) -> None:
    history.final.append(Read(0, history.final[-1].record))
    history.final = renumbered(history.final)
    ack_as_read(history)


def double_what_is_not_acknowledged(history: History) -> None:
    double(history)
    del history.acked[history.final[-1].record]


def reorder(history: History) -> None:
    reads = history.final
    mine = [at for at, (_, record) in enumerate(reads) if record[:2] == (1, 2)]
    reads[mine[3]], reads[mine[9]] = reads[mine[9]], reads[mine[3]]
    history.final = renumbered(reads)
    ack_as_read(history)


def move(history: History) -> None:
    history.acked[history.final[4].record] += 1


def leave_the_offset_open(history: History) -> None:
    history.acked[history.final[4].record] = OFFSET_UNKNOWN


def invent(history: History) -> None:
    history.final.append(Read(PRODUCERS * NUMBERS, RecordId(0, PARTITIONS - 1, NUMBERS)))


def show_another(history: History) -> None:
    unacked = history.final[-1]
    del history.acked[unacked.record]
    seen = RecordId(0, unacked.record.partition, NUMBERS)
    history.sent.add(seen)
    history.live[-1] = Read(unacked.offset, seen)


def take_back(history: History) -> None:
    del history.acked[history.final.pop().record]


def take_back_what_nobody_saw(history: History) -> None:
    take_back(history)
    history.live.pop()


def skip_an_offset(history: History) -> None:
    history.final = [Read(offset + (offset > 9), record) for offset, record in history.final]
    ack_as_read(history)


def skip(history: History) -> None:
    history.live = history.live[:5] + history.live[6:]


def repeat(history: History) -> None:
    history.live = history.live[:6] + history.live[5:]


def complain(history: History) -> None:
    history.complaints.append("fatal error")


@pytest.mark.parametrize(
    ("crime", "found"),
    [
        (lose_one, {"lost"}),
        (lose_the_tail, {"lost"}),
        (double, {"duplicated"}),
        (double_what_is_not_acknowledged, {"duplicated"}),
        (reorder, {"reordered"}),
        (move, {"moved"}),
        (invent, {"phantom"}),
        (show_another, {"revoked"}),
        (take_back, {"revoked"}),
        (skip, {"gap"}),
        (repeat, {"gap"}),
        (skip_an_offset, {"gap"}),
        (complain, {"complaint"}),
        (leave_the_offset_open, set()),
        (take_back_what_nobody_saw, set()),
    ],
)
def test_each_crime_is_found(crime: Callable[[History], None], found: set[str]) -> None:
    history = good_history()
    crime(history)
    assert {violation.kind for violation in violations(history)} == found
