"""Offsets that transactions have committed and that do not count yet: each waits for a marker.

The later record of a key counts, whichever way it was committed: what was written while a transaction was
open is not undone by its end. So compaction, which keeps the last record, comes to the same. (Kafka:
OffsetMetadataManager.pendingTransactionalOffsets, openTransactionsByGroup.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from mpbroker.coordinator.groups.records import OffsetKey, OffsetValue


class Transaction(NamedTuple):
    """What one producer has committed in one partition of `__consumer_offsets`, which gets one marker."""

    partition: int
    producer_id: int


class _Pending(NamedTuple):
    """`order`: that of the log."""

    order: int
    value: OffsetValue


@dataclass(eq=False)
class _Open:
    """A transaction. Its groups stay, also if none of their offsets is left in it."""

    offsets: dict[OffsetKey, _Pending] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)


@dataclass(eq=False)
class _OfKey:
    """`overtaken_before`: what has an earlier place in the order does not count any more."""

    transactions: set[Transaction] = field(default_factory=set)
    overtaken_before: int = 0


class PendingOffsets:
    """A group, and a key, may be in any number of open transactions: nothing but an end looks at each."""

    def __init__(self) -> None:
        self._open: dict[Transaction, _Open] = {}
        self._of_group: dict[str, set[Transaction]] = {}
        self._of_key: dict[OffsetKey, _OfKey] = {}
        self._next_order = 0

    def add(self, transaction: Transaction, key: OffsetKey, value: OffsetValue) -> None:
        """A durable record."""
        one = self._open.setdefault(transaction, _Open())
        one.offsets[key] = _Pending(self._next_order, value)
        one.groups.add(key.group)
        self._next_order += 1
        self._of_group.setdefault(key.group, set()).add(transaction)
        self._of_key.setdefault(key, _OfKey()).transactions.add(transaction)

    def overtake(self, key: OffsetKey, before: int | None = None) -> None:
        """An offset of that key counts that was written after these, or has that place in the order."""
        if (found := self._of_key.get(key)) is not None:
            before = self._next_order if before is None else before
            found.overtaken_before = max(found.overtaken_before, before)

    def remove(self, key: OffsetKey) -> None:
        """A tombstone was written after all of these."""
        if (found := self._of_key.pop(key, None)) is not None:
            for transaction in found.transactions:
                del self._open[transaction].offsets[key]

    def end(self, transaction: Transaction) -> list[tuple[OffsetKey, OffsetValue, int]]:
        """Its marker is durable: what counts if that says so, and its place in the order."""
        ended = self._open.pop(transaction, _Open())
        for group_id in ended.groups:
            self._of_group[group_id].discard(transaction)
            if not self._of_group[group_id]:
                del self._of_group[group_id]
        counts = []
        for key, (order, value) in ended.offsets.items():
            of_key = self._of_key[key]
            if order >= of_key.overtaken_before:
                counts.append((key, value, order))
            of_key.transactions.discard(transaction)
            if not of_key.transactions:
                del self._of_key[key]
        return counts

    def forget(self, partition: int) -> None:
        """What that partition says is not known any more."""
        for transaction in [one for one in self._open if one.partition == partition]:
            self.end(transaction)

    def clear(self) -> None:
        self._open.clear()
        self._of_group.clear()
        self._of_key.clear()

    def is_open(self, group_id: str) -> bool:
        """Whether a transaction has committed offsets of the group and has not ended."""
        return group_id in self._of_group

    def has(self, key: OffsetKey) -> bool:
        return key in self._of_key

    def keys_of(self, group_id: str) -> list[OffsetKey]:
        ones = [self._open[one].offsets for one in self._of_group.get(group_id, ())]
        return list(dict.fromkeys(key for offsets in ones for key in offsets if key.group == group_id))

    def groups(self) -> set[str]:
        """Of which something is pending."""
        return {key.group for key in self._of_key}
