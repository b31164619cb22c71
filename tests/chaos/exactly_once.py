"""What happened to every transaction, and what must not have happened: the judge of their chaos. No I/O.

Copiers take numbered records from the partitions of one topic and write each to several partitions of another
one, together with the offset behind what they took. Nobody but one copier has a partition at a time, and who
comes after it goes on at the committed offset. So whatever dies in between, each record of the source that
lies in front of the committed offset is there once, in each of its places, in the order of the source, and
nothing else is there (what is wrong otherwise Jepsen calls G1a, lost and duplicate writes).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tests.chaos.history import Violation


class Outcome(Enum):
    """What its client knows of a transaction's end."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Copied(NamedTuple):
    """A record of the target: which one of the source it was, and by which transaction it came here."""

    source: int
    number: int
    place: int
    transaction: int


class Seen(NamedTuple):
    """A record as a reader of committed ones got it."""

    partition: int
    offset: int
    record: Copied


@dataclass(frozen=True)
class Transaction:
    """`source` is the partition that it took [first, behind) from."""

    source: int
    first: int
    behind: int
    outcome: Outcome


@dataclass
class Copies:
    """All that copiers and readers noted down. `places` are the partitions that each record is written to.

    `live` is what a reader saw while processes were dying, `final` the whole topic when all was over;
    `offsets` are those that somebody found committed, of each partition in the order of looking, the last of
    them when all was over. `ends` are the last stable offset and the high watermark of each partition then.
    """

    places: int
    transactions: dict[int, Transaction] = field(default_factory=dict)
    live: list[Seen] = field(default_factory=list)
    final: list[Seen] = field(default_factory=list)
    offsets: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    ends: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    left_open: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


def _by_transaction(reads: Iterable[Seen]) -> Mapping[int, list[Seen]]:
    found: dict[int, list[Seen]] = defaultdict(list)
    for seen in reads:
        found[seen.record.transaction].append(seen)
    return found


def _all_or_nothing(copies: Copies) -> Iterator[Violation]:
    there = _by_transaction(copies.final)
    for number in there.keys() - copies.transactions.keys():
        yield Violation("phantom", f"transaction {number} was never begun, and {there[number][0]} is of it")
    for number, transaction in copies.transactions.items():
        wanted = (transaction.behind - transaction.first) * copies.places
        found = len({seen.record for seen in there.get(number, ())})
        if transaction.outcome is Outcome.COMMITTED and not found:
            yield Violation("lost", f"nothing is there of {number}: {transaction}")
        elif transaction.outcome is Outcome.ABORTED and found:
            yield Violation("aborted", f"{there[number][0]} is there, of {number}: {transaction}")
        elif found and found != wanted:
            yield Violation("torn", f"{found} of {wanted} records are there, of {number}: {transaction}")


def _once_and_in_order(name: str, reads: Sequence[Seen]) -> Iterator[Violation]:
    """Find places that lack a record of a source, or have one twice or out of order."""
    behind: dict[tuple[int, int, int], int] = defaultdict(int)
    for seen in reads:
        source, number, place, _ = seen.record
        wanted = behind[source, place, seen.partition]
        if number < wanted:
            yield Violation("duplicated", f"{name} reader got {seen} behind number {wanted - 1}")
        elif number > wanted:
            yield Violation("gap", f"{name} reader got {seen} where number {wanted} comes")
        behind[source, place, seen.partition] = max(wanted, number + 1)


def _offsets_increase(reads: Sequence[Seen]) -> Iterator[Violation]:
    last: dict[int, Seen] = {}
    for seen in reads:
        before = last.get(seen.partition)
        if before is not None and before.offset >= seen.offset:
            yield Violation("backwards", f"{before} was read in front of {seen}")
        last[seen.partition] = seen


def _seen_is_there(copies: Copies) -> Iterator[Violation]:
    there = {(seen.partition, seen.offset): seen.record for seen in copies.final}
    for seen in copies.live:
        now = there.get((seen.partition, seen.offset))
        if now != seen.record:
            yield Violation("revoked", f"{seen} was read, where there is {now or 'nothing'} now")


def _offsets_go_with_records(copies: Copies) -> Iterator[Violation]:
    """Find committed offsets whose transaction's records are missing."""
    there = _by_transaction(copies.final)
    behind: dict[int, set[int]] = defaultdict(lambda: {0})
    for number in there.keys() & copies.transactions.keys():
        transaction = copies.transactions[number]
        behind[transaction.source].add(transaction.behind)
    for source, offsets in copies.offsets.items():
        for before, offset in zip([0, *offsets], offsets, strict=False):
            if offset not in behind[source]:
                yield Violation("offset", f"{offset} was committed of {source} by nothing that is there")
            if offset < before:
                yield Violation("offset", f"{offset} was committed of {source} when {before} had been")
        if offsets and offsets[-1] != max(behind[source]):
            what = f"{offsets[-1]} is committed of {source}, records are there up to {max(behind[source])}"
            yield Violation("offset", what)


def _nothing_is_open(copies: Copies) -> Iterator[Violation]:
    for (topic, partition), (stable, end) in copies.ends.items():
        if stable != end:
            yield Violation("open", f"{topic}-{partition} is stable up to {stable} of {end}")
    for name in copies.left_open:
        yield Violation("open", f"the transaction of {name} has no end")


def violations(copies: Copies) -> list[Violation]:
    """Every broken promise; empty is good."""
    return [
        *(Violation("complaint", complaint) for complaint in copies.complaints),
        *_all_or_nothing(copies),
        *_once_and_in_order("the last", copies.final),
        *_once_and_in_order("the live", copies.live),
        *_offsets_increase(copies.final),
        *_offsets_increase(copies.live),
        *_seen_is_there(copies),
        *_offsets_go_with_records(copies),
        *_nothing_is_open(copies),
    ]
