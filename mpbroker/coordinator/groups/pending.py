"""Offsets that transactions have committed and that do not count before their marker is written.

The later record of a key counts, whichever way it was committed: the end of a transaction does not undo an
offset that was written while it was open. Compaction keeps the last record and has the same result. (Kafka:
OffsetMetadataManager.pendingTransactionalOffsets, openTransactionsByGroup.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from mpbroker.coordinator.groups.records import OffsetKey, OffsetValue


class TransactionKey(NamedTuple):
    """Identifies the open transaction of a producer in a partition of `__consumer_offsets`."""

    partition: int
    producer_id: int


class _Pending(NamedTuple):
    """`order` grows with each record of the log."""

    order: int
    value: OffsetValue


@dataclass(eq=False)
class _OpenTransaction:
    """`groups` keeps a group also when none of its offsets is left here."""

    offsets: dict[OffsetKey, _Pending] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)


@dataclass(eq=False)
class _KeyState:
    """`overtaken_before`: records with an earlier place in the order do not count any more."""

    transactions: set[TransactionKey] = field(default_factory=set)
    overtaken_before: int = 0


class PendingOffsets:
    """Any number of open transactions may have a group, and a key. Only an end looks at each of them."""

    def __init__(self) -> None:
        self._open: dict[TransactionKey, _OpenTransaction] = {}
        self._of_group: dict[str, set[TransactionKey]] = {}
        self._of_key: dict[OffsetKey, _KeyState] = {}
        self._next_order = 0

    def add(self, transaction: TransactionKey, key: OffsetKey, value: OffsetValue) -> None:
        """Add a durable record."""
        one = self._open.setdefault(transaction, _OpenTransaction())
        one.offsets[key] = _Pending(self._next_order, value)
        one.groups.add(key.group)
        self._next_order += 1
        self._of_group.setdefault(key.group, set()).add(transaction)
        self._of_key.setdefault(key, _KeyState()).transactions.add(transaction)

    def overtake(self, key: OffsetKey, before: int | None = None) -> None:
        """Note that an offset of the key counts which was written just now, or has the place `before` in the
        order.
        """
        if (found := self._of_key.get(key)) is not None:
            before = self._next_order if before is None else before
            found.overtaken_before = max(found.overtaken_before, before)

    def remove(self, key: OffsetKey) -> None:
        """Drop the offsets of a key: a tombstone was written after all of them."""
        if (found := self._of_key.pop(key, None)) is not None:
            for transaction in found.transactions:
                del self._open[transaction].offsets[key]

    def end(self, transaction: TransactionKey) -> list[tuple[OffsetKey, OffsetValue, int]]:
        """End a transaction whose marker is durable.

        Returns what a commit makes count, with its place in the order.
        """
        ended = self._open.pop(transaction, _OpenTransaction())
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

    def drop_partition(self, partition: int) -> None:
        """Drop the transactions of a partition that was unloaded."""
        for transaction in [one for one in self._open if one.partition == partition]:
            self.end(transaction)

    def clear(self) -> None:
        self._open.clear()
        self._of_group.clear()
        self._of_key.clear()

    def is_open(self, group_id: str) -> bool:
        """Return whether a transaction has committed offsets of the group and has not ended."""
        return group_id in self._of_group

    def has(self, key: OffsetKey) -> bool:
        return key in self._of_key

    def keys_of(self, group_id: str) -> list[OffsetKey]:
        ones = [self._open[one].offsets for one in self._of_group.get(group_id, ())]
        return list(dict.fromkeys(key for offsets in ones for key in offsets if key.group == group_id))

    def groups(self) -> set[str]:
        """Return the groups that have pending offsets."""
        return {key.group for key in self._of_key}
