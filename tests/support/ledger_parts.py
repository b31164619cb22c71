"""Events and ledgers for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from mpbroker.remote.layout.indexes import IndexSizes
from mpbroker.remote.ledger.events import SegmentAdded, Started, TopicSet
from mpbroker.remote.ledger.ledger import Ledger
from mpbroker.remote.ledger.owner import OwnerFile
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.store.object_store import ObjectStore

TOPIC_ID = bytes(range(16))
T = TypeVar("T")
R = TypeVar("R")
STARTED = Started("cluster", 1, "host")
TOPIC = TopicSet("topic", TOPIC_ID, 2, {"retention.ms": "1000"})


class Serial:
    """Does at once what a pool of threads would do: a walk is the same each time."""

    def __init__(self, _count: int) -> None:
        """There are no threads."""

    def __enter__(self) -> Serial:
        return self

    def __exit__(self, *_: object) -> None:
        """Nobody is waited for."""

    def map(self, do: Callable[[T], R], things: Iterable[T]) -> Iterator[R]:
        return map(do, things)


def segment(base: int, partition: int = 0, topic_id: bytes = TOPIC_ID, end: int = -1) -> SegmentAdded:
    """Return the event of a segment, with ten offsets if no end is given."""
    return SegmentAdded(
        topic_id,
        partition,
        topic="topic",
        segment_id=base.to_bytes(12) + partition.to_bytes(4),
        base=base,
        end=base + 10 if end < 0 else end,
        size=1000,
        largest_ms=base,
        epochs=((0, base),),
        index_sizes=IndexSizes(16, 24, 4, 6, 0),
        has_aborted=False,
        log_crc=base,
        indexes_crc=base,
    )


def ledger_of(store: ObjectStore, directory: Path, clock_ms: int = 5_000) -> Ledger:
    """Return a ledger that has not begun yet, whose clock stands still."""
    return Ledger(LedgerReader(store), OwnerFile(directory), lambda: clock_ms)


def read(store: ObjectStore) -> LedgerReader:
    """Read a store's ledger to its end, as somebody who does not own it."""
    reader = LedgerReader(store)
    reader.read_to_end()
    return reader


def opened_ledger(store: ObjectStore, directory: Path) -> Ledger:
    """Return a store's ledger that has begun."""
    ledger = Ledger(LedgerReader(store), OwnerFile(directory))
    ledger.start(STARTED)
    return ledger


def snapshot_if_due(ledger: Ledger) -> bool:
    """Write a snapshot if one is due, as the tier does; return whether it was."""
    made = ledger.due_snapshot()
    if made is None:
        return False
    ledger.write_snapshot(made)
    ledger.append(made.events)
    return True
