"""A partition as its readers may see it, without files: which records are there, committed, aborted, latest.

The model says what Kafka promises, not how a log keeps it. `tests/support/partition_walk.py` does the same to
a log with real files, and compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mpbroker.records.aborted import NOT_ENDED

PLAIN = -1
"""The producer id of records outside of any transaction."""
NO_TRANSACTION = -1
NO_HORIZON = 1 << 62

Pair = tuple[bytes, bytes | None]


class Transaction(NamedTuple):
    """Offsets from the first record to the marker; while it is open there is no marker."""

    producer_id: int
    first_offset: int
    last_offset: int = NOT_ENDED
    is_committed: bool = False


@dataclass
class Entry:
    """A record, and the number of its transaction in `PartitionModel.transactions`, or NO_TRANSACTION.

    A tombstone stays until `horizon_ms`, which the first cleaning that meets it sets.
    """

    offset: int
    key: bytes
    value: bytes | None
    timestamp_ms: int
    transaction: int = NO_TRANSACTION
    horizon_ms: int = NO_HORIZON


@dataclass
class PartitionModel:
    """`entries` are the records that are left, by offset. `ever` has every record that was appended."""

    log_start: int = 0
    end: int = 0
    entries: dict[int, Entry] = field(default_factory=dict)
    ever: dict[int, Entry] = field(default_factory=dict)
    transactions: list[Transaction] = field(default_factory=list)
    _open: dict[int, int] = field(default_factory=dict)

    # ---- what happens to it ----

    def append(
        self,
        pairs: Sequence[Pair],
        timestamp_ms: int,
        *,
        producer_id: int = PLAIN,
        transactional: bool = False,
    ) -> int:
        """Append one batch; return its base offset."""
        base, transaction = self.end, NO_TRANSACTION
        if transactional:
            if producer_id not in self._open:
                self._open[producer_id] = len(self.transactions)
                self.transactions.append(Transaction(producer_id, base))
            transaction = self._open[producer_id]
        for offset, (key, value) in enumerate(pairs, base):
            entry = Entry(offset, key, value, timestamp_ms, transaction)
            self.entries[offset] = self.ever[offset] = entry
        self.end = base + len(pairs)
        return base

    def end_transaction(self, producer_id: int, *, commits: bool) -> int:
        """Append a marker, which may end nothing; return its offset."""
        number = self._open.pop(producer_id, None)
        if number is not None:
            begun = self.transactions[number]
            self.transactions[number] = begun._replace(last_offset=self.end, is_committed=commits)
        self.end += 1
        return self.end - 1

    def start_at(self, offset: int) -> None:
        """Delete what lies below the offset."""
        self.log_start = max(self.log_start, offset)
        for gone in [one for one in self.entries if one < self.log_start]:
            del self.entries[gone]

    def forget_deleted(self) -> None:
        """Forget what open transactions had below the log start.

        A recovery finds producers in what is left of the log; a snapshot at the log start does not count.
        (Kafka: ProducerStateManager.truncateAndReload.)
        """
        for producer_id, number in list(self._open.items()):
            left = [one.offset for one in self.entries.values() if one.transaction == number]
            self.transactions[number] = self.transactions[number]._replace(
                first_offset=min(left, default=NOT_ENDED)
            )
            if not left:
                del self._open[producer_id]

    def clean(self, first_dirty: int, end: int, now_ms: int, delete_retention_ms: int) -> Mapping[bytes, int]:
        """Compact the log below `end`; return the latest offset of each key in [first_dirty, end)."""
        latest = {
            one.key: one.offset
            for one in self.entries.values()
            if first_dirty <= one.offset < end and not self._is_aborted(one)
        }
        for one in [one for one in self.entries.values() if one.offset < end]:
            if self._is_aborted(one) or latest.get(one.key, -1) > one.offset or one.horizon_ms <= now_ms:
                del self.entries[one.offset]
            elif one.value is None:
                one.horizon_ms = min(one.horizon_ms, now_ms + delete_retention_ms)
        return latest

    # ---- what is to be seen of it ----

    def stable(self, high_watermark: int | None = None, *, is_cleaned: bool = False) -> int:
        """Return the last stable offset; markers at or above the high watermark end nothing yet.

        `is_cleaned`: transactions begin with the first record that a cleaning has left. Nothing else is known
        in a log that was cleaned beyond the high watermark.
        """
        high_watermark = self.end if high_watermark is None else high_watermark
        still_open = {
            number: one.first_offset
            for number, one in enumerate(self.transactions)
            if one.last_offset >= high_watermark
        }
        begun = (
            [one.offset for one in self.entries.values() if one.transaction in still_open]
            if is_cleaned
            else list(still_open.values())
        )
        return max(min([high_watermark, *begun]), self.log_start)

    def records(self, end: int | None = None) -> list[Entry]:
        """Return what a read_uncommitted consumer gets, below an offset."""
        end = self.end if end is None else end
        return [one for one in self.entries.values() if self.log_start <= one.offset < end]

    def committed(self, end: int | None = None) -> list[Entry]:
        """Return what a read_committed consumer gets, below an offset, by default the last stable one."""
        return [
            one for one in self.records(self.stable() if end is None else end) if not self._is_aborted(one)
        ]

    def latest(self) -> dict[bytes, bytes]:
        """Return the latest committed value of each key, without deleted keys, as a coordinator replays it.

        Commits above the last stable offset count, too. The order is that of the records, not of the markers.
        """
        open_ones = set(self._open.values())
        values = {
            one.key: one.value
            for one in self.entries.values()
            if one.transaction not in open_ones and not self._is_aborted(one)
        }
        return {key: value for key, value in values.items() if value is not None}

    def pending(self) -> set[bytes]:
        """Return the keys that open transactions have written since their last tombstone."""
        found: set[bytes] = set()
        open_ones = set(self._open.values())
        for one in self.ever.values():
            if one.value is None and one.transaction == NO_TRANSACTION:
                found.discard(one.key)
            elif one.transaction in open_ones:
                found.add(one.key)
        return found

    def was_aborted(self, producer_id: int, first_offset: int) -> bool:
        """Tell whether a producer's transaction that was aborted began there, or went on there."""
        return any(
            one.producer_id == producer_id and one.first_offset <= first_offset < one.last_offset
            for one in self.transactions
            if one.last_offset < NOT_ENDED and not one.is_committed
        )

    def hides(self, offset: int) -> bool:
        """Tell whether the record at an offset is of an aborted transaction."""
        return self._is_aborted(self.ever[offset])

    def _is_aborted(self, one: Entry) -> bool:
        if one.transaction == NO_TRANSACTION:
            return False
        found = self.transactions[one.transaction]
        return found.last_offset < NOT_ENDED and not found.is_committed


def pairs_of(entries: Iterable[Entry]) -> list[tuple[int, bytes, bytes | None]]:
    """Return offset, key and value of each."""
    return [(one.offset, one.key, one.value) for one in entries]
