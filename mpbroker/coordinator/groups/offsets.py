"""Committed offsets: durable, being appended ("under way"), or pending in a transaction; and their expiry.

Deletions remove offsets of all three kinds; clients see only durable offsets. (Kafka: OffsetMetadataManager,
OffsetExpirationConditionImpl; KIP-211 for the expiry.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mpbroker.coordinator.groups.classic.group import Group, GroupState
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.groups.records import NO_TIME, OffsetKey, OffsetValue
from mpbroker.protocol.consumer_protocol import CONSUMER_PROTOCOL

NO_OFFSET: Final = -1


class TransactionKey(NamedTuple):
    """Identifies the open transaction of a producer in a partition of `__consumer_offsets`."""

    partition: int
    producer_id: int


class _Pending(NamedTuple):
    """An offset of a transaction. `order` numbers the pending offsets in the order of their records."""

    order: int
    value: OffsetValue


@dataclass(eq=False)
class _OpenTransaction:
    """A transaction with offsets. `groups` has each group that ever had an offset in the transaction."""

    offsets: dict[OffsetKey, _Pending] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)


@dataclass(eq=False)
class _KeyState:
    """The open transactions with offsets of one (group, topic, partition).

    Pending offsets of the key with an `order` below `overtaken_before` were replaced by a later commit.
    """

    transactions: set[TransactionKey] = field(default_factory=set)
    overtaken_before: int = 0


class PendingOffsets:
    """Offsets committed in open transactions. They count once the transaction's commit marker is durable.

    Of two records of a key, the later one counts: the end of a transaction does not undo an offset that was
    written while the transaction was open. (Compaction keeps the last record, too.) A group or a key may have
    any number of open transactions. (Kafka: OffsetMetadataManager.pendingTransactionalOffsets,
    openTransactionsByGroup.)
    """

    def __init__(self) -> None:
        self._open: dict[TransactionKey, _OpenTransaction] = {}
        self._of_group: dict[str, set[TransactionKey]] = {}
        self._of_key: dict[OffsetKey, _KeyState] = {}
        self._next_order = 0

    def add(self, transaction: TransactionKey, key: OffsetKey, value: OffsetValue) -> None:
        """Add an offset of an open transaction, after the offset's record has become durable."""
        one = self._open.setdefault(transaction, _OpenTransaction())
        one.offsets[key] = _Pending(self._next_order, value)
        one.groups.add(key.group)
        self._next_order += 1
        self._of_group.setdefault(key.group, set()).add(transaction)
        self._of_key.setdefault(key, _KeyState()).transactions.add(transaction)

    def overtake(self, key: OffsetKey, before: int | None = None) -> None:
        """Void the key's pending offsets whose order is below `before` (None: all pending offsets)."""
        if (found := self._of_key.get(key)) is not None:
            before = self._next_order if before is None else before
            found.overtaken_before = max(found.overtaken_before, before)

    def remove(self, key: OffsetKey) -> None:
        """Drop the pending offsets of a key, because a tombstone was written after them."""
        if (found := self._of_key.pop(key, None)) is not None:
            for transaction in found.transactions:
                del self._open[transaction].offsets[key]

    def end(self, transaction: TransactionKey) -> list[tuple[OffsetKey, OffsetValue, int]]:
        """Remove a transaction. Return (key, value, order) of its offsets that have not been overtaken."""
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
        """Return whether offsets of the group were added to a transaction that is still open."""
        return group_id in self._of_group

    def has(self, key: OffsetKey) -> bool:
        return key in self._of_key

    def keys_of(self, group_id: str) -> list[OffsetKey]:
        ones = [self._open[one].offsets for one in self._of_group.get(group_id, ())]
        return list(dict.fromkeys(key for offsets in ones for key in offsets if key.group == group_id))

    def groups(self) -> set[str]:
        """Return the groups that have pending offsets."""
        return {key.group for key in self._of_key}


class Offsets:
    """Offsets by group, topic and partition."""

    def __init__(self) -> None:
        self._durable: dict[str, dict[tuple[str, int], OffsetValue]] = {}
        self._under_way: dict[str, Counter[tuple[str, int]]] = {}
        self._pending = PendingOffsets()

    def __len__(self) -> int:
        return sum(len(offsets) for offsets in self._durable.values())

    def of(self, group_id: str) -> dict[tuple[str, int], OffsetValue]:
        """Return the group's durable offsets by (topic, partition). The dict is not a copy."""
        return self._durable.get(group_id, {})

    def has_any(self, group_id: str) -> bool:
        is_there = group_id in self._durable or group_id in self._under_way
        return is_there or self._pending.is_open(group_id)

    def is_under_way(self, group_id: str) -> bool:
        return group_id in self._under_way

    def begin(self, keys: Iterable[OffsetKey]) -> None:
        """Note that records of these keys are being appended."""
        for key in keys:
            under_way = self._under_way.get(key.group)
            if under_way is None:
                under_way = self._under_way[key.group] = Counter()
            under_way[key.topic, key.partition] += 1

    def end(self, keys: Iterable[OffsetKey]) -> None:
        """Note that the records of these keys are no longer being appended: they are durable or refused."""
        for key in keys:
            under_way = self._under_way[key.group]
            under_way[key.topic, key.partition] -= 1
            if not under_way[key.topic, key.partition]:
                del under_way[key.topic, key.partition]
            if not under_way:
                del self._under_way[key.group]

    def apply(self, key: OffsetKey, value: OffsetValue | None) -> None:
        """Apply a durable record that is not in a transaction. A value of None is a tombstone."""
        if value is not None:
            self._pending.overtake(key)
            self._believe(key, value)
            return
        self._pending.remove(key)
        offsets = self._durable.get(key.group, {})
        offsets.pop((key.topic, key.partition), None)
        if not offsets:
            self._durable.pop(key.group, None)

    def _believe(self, key: OffsetKey, value: OffsetValue) -> None:
        self._durable.setdefault(key.group, {})[key.topic, key.partition] = value

    def pend(self, transaction: TransactionKey, key: OffsetKey, value: OffsetValue) -> None:
        """Keep a durable record until its transaction ends. It counts if the transaction is committed."""
        self._pending.add(transaction, key, value)

    def end_transaction(self, transaction: TransactionKey, is_commit: bool) -> None:
        """Apply a durable marker. Do nothing if the transaction is unknown."""
        ended = self._pending.end(transaction)
        for key, value, order in ended if is_commit else ():
            self._pending.overtake(key, order)
            self._believe(key, value)

    def is_pending(self, key: OffsetKey) -> bool:
        return self._pending.has(key)

    def is_in_transaction(self, group_id: str) -> bool:
        """Return whether offsets of the group were added to a transaction that is still open."""
        return self._pending.is_open(group_id)

    def drop_group(self, group_id: str) -> None:
        """Drop the durable offsets of a group whose partition was unloaded."""
        self._durable.pop(group_id, None)

    def drop_transactions(self, partition: int | None = None) -> None:
        """Drop the pending offsets of an unloaded partition; if `partition` is None, of all partitions."""
        if partition is None:
            self._pending.clear()
        else:
            self._pending.drop_partition(partition)

    def groups(self) -> list[str]:
        return list(self._durable.keys() | self._pending.groups())

    def topics(self) -> set[str]:
        """Return the names of all topics that have offsets, durable or pending."""
        return {key.topic for group_id in self.groups() for key in self.keys_of(group_id)}

    def keys_of(self, group_id: str) -> list[OffsetKey]:
        """Return the keys of all offsets of the group: durable, under way and pending."""
        found = dict.fromkeys(self.of(group_id)) | dict.fromkeys(self._under_way.get(group_id, ()))
        keys = [OffsetKey(group_id, topic, partition) for topic, partition in found]
        return list(dict.fromkeys([*keys, *self._pending.keys_of(group_id)]))

    def keys_of_topics(self, topics: Iterable[str]) -> Iterator[tuple[str, list[OffsetKey]]]:
        """Yield the id of each group that has offsets of these topics, and the keys of these offsets."""
        deleted = frozenset(topics)
        for group_id in self._durable.keys() | self._under_way.keys() | self._pending.groups():
            keys = [key for key in self.keys_of(group_id) if key.topic in deleted]
            if keys:
                yield group_id, keys

    def expired(self, group: Group | ConsumerGroup, now_ms: int, retention_ms: int) -> list[OffsetKey]:
        """Return the keys of the group's expired offsets, except offsets of topics that members subscribe to.

        The retention begins at the commit or, if all members have left the group, when the group became
        empty. An offset with its own expiry (OffsetCommit v2-4) expires at that time instead.
        """
        idle_ms = None
        if isinstance(group, Group):
            is_idle = group.protocol_type is not None and group.state is GroupState.EMPTY
            is_simple = group.protocol_type is None
            is_watched = (
                group.protocol_type == CONSUMER_PROTOCOL
                and group.subscribed is not None
                and group.state is GroupState.STABLE
            )
            if not (is_idle or is_simple or is_watched):
                return []
            idle_ms = group.state_ms if is_idle else None
        under_way = self._under_way.get(group.group_id, Counter())
        found = []
        for (topic, partition), value in self.of(group.group_id).items():
            since_ms = value.commit_ms if idle_ms is None else idle_ms
            is_old = now_ms - since_ms >= retention_ms
            if value.expire_ms != NO_TIME:
                is_old = now_ms >= value.expire_ms
            key = OffsetKey(group.group_id, topic, partition)
            is_in_use = (topic, partition) in under_way or self.is_pending(key)
            if is_old and not group.is_subscribed_to(topic) and not is_in_use:
                found.append(key)
        return found
