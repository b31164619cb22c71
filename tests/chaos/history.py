"""What happened to every record, and what must not have happened: the judge of the chaos runs. No I/O.

Producers number their records per partition from 0. A record is known by (producer, partition, number). At
the end the topic is read whole; what was acknowledged must be there exactly once, where the broker said it
is, and in the order it was sent in. A record whose delivery failed may be there or not, but not twice. What
a reader saw while the processes were being killed must be what is there at the end, or it has seen records
that were taken back.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

OFFSET_UNKNOWN: Final = -1


class RecordId(NamedTuple):
    producer: int
    partition: int
    number: int


class Read(NamedTuple):
    """A record as a reader got it."""

    offset: int
    record: RecordId


@dataclass
class History:
    """All that producers and readers noted down.

    `acked` holds the offset from the acknowledgement, or OFFSET_UNKNOWN where the broker only said that it
    has the record already. `live` is in the order of reading; `final` is the whole topic, read when all was
    over.
    """

    sent: set[RecordId] = field(default_factory=set)
    acked: dict[RecordId, int] = field(default_factory=dict)
    live: list[Read] = field(default_factory=list)
    final: list[Read] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Violation:
    """A broken promise; `kind` is one word, `what` tells the record and the offsets."""

    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


Partitions = Mapping[int, Sequence[Read]]


def _by_partition(reads: Iterable[Read]) -> Partitions:
    partitions: dict[int, list[Read]] = {}
    for read in reads:
        partitions.setdefault(read.record.partition, []).append(read)
    return partitions


def _offsets_without_gap(name: str, partitions: Partitions) -> Iterator[Violation]:
    for partition, reads in partitions.items():
        for expected, read in enumerate(reads):
            if read.offset != expected:
                what = (
                    f"{name} reader got offset {read.offset} of partition {partition} where {expected} comes"
                )
                yield Violation("gap", what)
                break


def _once_and_sent(history: History) -> Iterator[Violation]:
    offset_of: dict[RecordId, int] = {}
    for offset, record in history.final:
        if record in offset_of:
            yield Violation("duplicated", f"{record} is at {offset_of[record]} and at {offset}")
        elif record not in history.sent:
            yield Violation("phantom", f"{record} at {offset} was never sent")
        offset_of[record] = offset


def _acked_in_place(history: History) -> Iterator[Violation]:
    places: dict[RecordId, list[int]] = {}
    for offset, record in history.final:
        places.setdefault(record, []).append(offset)
    for record, offset in history.acked.items():
        found = places.get(record)
        if found is None:
            yield Violation("lost", f"{record} was acknowledged at {offset}")
        elif offset not in (OFFSET_UNKNOWN, *found):
            yield Violation("moved", f"{record} was acknowledged at {offset} and is at {found}")


def _in_order(partitions: Partitions) -> Iterator[Violation]:
    for reads in partitions.values():
        last: dict[int, Read] = {}
        for read in reads:
            before = last.get(read.record.producer)
            if before is not None and before.record.number > read.record.number:
                yield Violation("reordered", f"{before.record} stands before {read.record} at {read.offset}")
            last[read.record.producer] = read


def _seen_is_there(history: History) -> Iterator[Violation]:
    there = {(read.record.partition, read.offset): read.record for read in history.final}
    for offset, record in history.live:
        now = there.get((record.partition, offset))
        if now != record:
            yield Violation(
                "revoked", f"{record} was read at {offset}, where there is {now or 'nothing'} now"
            )


def violations(history: History) -> list[Violation]:
    """Every broken promise; empty is good."""
    final = _by_partition(history.final)
    return [
        *(Violation("complaint", complaint) for complaint in history.complaints),
        *_offsets_without_gap("the last", final),
        *_offsets_without_gap("the live", _by_partition(history.live)),
        *_once_and_sent(history),
        *_acked_in_place(history),
        *_in_order(final),
        *_seen_is_there(history),
    ]
