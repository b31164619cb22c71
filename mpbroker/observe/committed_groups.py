"""Committed offsets and members of groups, from batches of `__consumer_offsets` that the caller has read.

The coordinator keeps more about groups (`group_manager`). Offsets in a transaction are added when the
transaction's commit marker is read. (Kafka: GroupCoordinatorRecordSerde)
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.groups.consumer.records import ConsumerKey
from mpbroker.coordinator.groups.member_memory import MemberMemory
from mpbroker.coordinator.groups.records import GroupKey, GroupValue, OffsetKey, OffsetValue, decode
from mpbroker.protocol.consumer_protocol import CLASSIC, CONSUMER, CONSUMER_PROTOCOL
from mpbroker.protocol.table_progress import TableNote, note_of
from mpbroker.records.iterate import Batch
from mpbroker.records.markers import COMMIT, marker_of


@dataclass
class CommittedGroup:
    """A group: offsets by (topic, partition), and its members as of its last generation.

    `assignments`: only of a classic group of consumers (ConsumerProtocolAssignment). `consumer`: the state
    of a group of the consumer protocol, with its assignments; None for a classic group. `note`: what the
    tables job says of its table.
    """

    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    members: int | None = None  # None: it never had any, or was deleted
    assignments: tuple[bytes, ...] = ()
    consumer: ConsumerGroup | None = None
    note: TableNote | None = None

    @property
    def type(self) -> str:
        return CLASSIC if self.consumer is None else CONSUMER

    @property
    def subscribed_topics(self) -> Iterable[str]:
        """Return the topics to which members of a group of the consumer protocol have subscribed."""
        if self.consumer is None:
            return ()
        return self.consumer.subscribers.keys() | self.consumer.pattern_topics.keys()


class CommittedGroups:
    """The groups by name, as of the batches taken so far."""

    def __init__(self) -> None:
        self.groups: dict[str, CommittedGroup] = {}
        # By partition of the topic and producer id.
        self._pending: dict[tuple[int, int], list[tuple[OffsetKey, OffsetValue]]] = {}

    def forget(self) -> None:
        """Remove all groups, to begin again."""
        self.groups.clear()
        self._pending.clear()

    def take(self, partition: int, batch: Batch) -> None:
        """Apply the next batch of a partition. Raises CorruptBatch, UnreadableRecord."""
        transaction = partition, batch.header.producer_id
        if batch.is_control:
            ended = self._pending.pop(transaction, [])
            marker = marker_of(batch.bytes)
            if marker is not None and marker[0] == COMMIT:
                for committed, offset in ended:
                    self._commit(committed, offset)
            return
        for record in batch.records():
            entry = decode(record.key, record.value)
            if entry is None:
                continue
            key, value = entry
            if isinstance(key, GroupKey):
                assert value is None or isinstance(value, GroupValue)
                group = self.groups.setdefault(key.group, CommittedGroup())
                group.members = None if value is None else len(value.members)
                group.assignments = _assignments(value)
                group.consumer = None
                self._drop_if_empty(key.group)
                continue
            if not isinstance(key, OffsetKey):
                self._replay(key, value)
                continue
            assert value is None or isinstance(value, OffsetValue)
            if value is None:
                self._delete(key)
            elif batch.is_transactional:
                self._pending.setdefault(transaction, []).append((key, value))
            else:
                self._commit(key, value)

    def _replay(self, key: ConsumerKey, value: Any) -> None:
        """Apply a record of a group of the consumer protocol."""
        found = self.groups.get(key.group)
        if value is None and (found is None or found.consumer is None):
            # The group is a classic one again, or the cleaner has dropped its other records.
            return
        group = found or self.groups.setdefault(key.group, CommittedGroup())
        group.consumer = group.consumer or ConsumerGroup(key.group, MemberMemory())
        group.consumer.replay(key, value)
        if group.consumer.has_records:
            group.members, group.assignments = len(group.consumer.members), ()
        else:
            group.consumer = group.members = None
            self._drop_if_empty(key.group)

    def _commit(self, key: OffsetKey, value: OffsetValue) -> None:
        # One text for all partitions of a topic: there may be many.
        place = sys.intern(key.topic), key.partition
        group = self.groups.setdefault(key.group, CommittedGroup())
        group.offsets[place] = value.offset
        group.note = note_of(key.group, value.metadata)

    def _delete(self, key: OffsetKey) -> None:
        group = self.groups.get(key.group)
        if group is not None:
            group.offsets.pop((key.topic, key.partition), None)
            self._drop_if_empty(key.group)

    def _drop_if_empty(self, name: str) -> None:
        group = self.groups[name]
        if group.members is None and not group.offsets:
            del self.groups[name]


def _assignments(value: GroupValue | None) -> tuple[bytes, ...]:
    """Return the assignments of the members; () for a group whose members are not consumers."""
    if value is None or value.protocol_type != CONSUMER_PROTOCOL:
        return ()
    return tuple(member.assignment for member in value.members if member.assignment)
