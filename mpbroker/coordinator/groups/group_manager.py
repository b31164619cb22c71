"""The groups, loaded from `__consumer_offsets` and changed by requests. (Kafka: GroupMetadataManager.)"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.groups.classic.group import Group, GroupState
from mpbroker.coordinator.groups.classic.rebalances import Rebalances
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.groups.member_memory import MemberMemory
from mpbroker.coordinator.groups.offsets import Offsets, TransactionKey
from mpbroker.coordinator.groups.records import GroupKey, GroupValue, OffsetKey, OffsetValue, decode
from mpbroker.coordinator.runtime.partitions import LoadState, TopicPartitions
from mpbroker.coordinator.runtime.timers import Clock
from mpbroker.ipc.table import Partition
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.records.iterate import Batch
from mpbroker.records.markers import COMMIT, marker_of

AnyGroup: TypeAlias = Group | ConsumerGroup

log: Final = logging.getLogger("mpbroker.coordinator.groups")


class ConsumerSessions(Protocol):
    def begin_all(self, group: ConsumerGroup) -> None:
        """Start the sessions of the members of a group that was read from the log."""

    def drop(self, group: ConsumerGroup) -> None:
        """Cancel the timers of a group that is dropped."""


@dataclass(eq=False)
class GroupMetadataManager:
    """The groups by id. `_offsets` has the committed offsets of these groups and of ids without a group."""

    _config: BrokerConfig
    _clock: Clock
    partitions: TopicPartitions
    _offsets: Offsets
    _rebalances: Rebalances
    _sessions: ConsumerSessions
    # By id, how many deletions of consumer groups are not durable yet.
    deleting: Counter[str] = field(default_factory=Counter, init=False)
    groups: dict[str, AnyGroup] = field(default_factory=dict, init=False)
    memory: MemberMemory = field(default_factory=MemberMemory, init=False)

    def find(self, group_id: str) -> AnyGroup | None:
        return self.groups.get(group_id)

    def find_consumer(self, group_id: str) -> ConsumerGroup | None:
        """Return a group of the consumer protocol, None if there is none with this id."""
        found = self.groups.get(group_id)
        return found if isinstance(found, ConsumerGroup) else None

    def new_group(self, group_id: str) -> Group:
        """Return a new, empty classic group. The caller passes it to `add`.

        Raises ApiError while a consumer group with this id is being deleted: a refused deletion restores it.
        """
        if self.deleting[group_id]:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return Group(group_id, state_ms=self._clock.wall_ms(), memory=self.memory)

    def consumer_group(self, group_id: str) -> ConsumerGroup:
        """Return a group of the consumer protocol. Raises ApiError if there is none, or it is not loaded."""
        group = self._find_loaded(group_id)
        if not isinstance(group, ConsumerGroup):
            what = "not found" if group is None else "is not a consumer group"
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id:.255s} {what}.")
        return group

    def add(self, group: AnyGroup) -> None:
        """Add a group. Do nothing if a group has this id already."""
        self.groups.setdefault(group.group_id, group)

    def remove(self, group: AnyGroup) -> None:
        """Remove a group, unless another group has taken its id."""
        if self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]

    def live(self, group_id: str) -> Group:
        """Return a classic group for a member's request.

        Raises ApiError if it is missing, dead, not loaded or of the consumer protocol.
        """
        if not group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        group = self._find_loaded(group_id)
        if not isinstance(group, Group):
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if group.state is GroupState.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return group

    def existing(self, group_id: str) -> AnyGroup:
        """Return a group; its id may be empty. Raises ApiError if it is missing, dead or not loaded."""
        group = self._find_loaded(group_id)
        if group is None or group.state is GroupState.DEAD:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
        return group

    def _find_loaded(self, group_id: str) -> AnyGroup | None:
        """Return a group, None if it does not exist. Raises ApiError until its partition is loaded."""
        self.partitions.check_loaded(group_id)
        return self.groups.get(group_id)

    # --- loading and unloading

    def load(
        self,
        partition: int,
        values: Mapping[str, GroupValue | None],
        consumer_groups: Mapping[str, ConsumerGroup],
    ) -> None:
        """Add the groups of a partition. `values`: the last records of classic groups.

        An id that has only offsets gets an empty classic group. So the offsets must be applied before.
        """
        # Groups of other partitions are known, or not read yet; there may be many.
        new = (name for name in self._offsets.groups() if name not in self.groups)
        names = {name for name in new if self.partitions.partition_for(name) == partition}
        for name, value in values.items():
            if value is not None:
                names.discard(name)
                group = self.groups[name] = Group.from_record(name, value, self.memory)
                for member in group.members.values():
                    self._rebalances.keep_alive(group, member)
                if len(group.members) > self._config.group_max_size:
                    self._rebalances.prepare(group, "more members than group.max.size allows")
        for name, consumer_group in consumer_groups.items():
            if not consumer_group.has_records:
                continue
            names.discard(name)
            if name in self.groups:
                log.error("group %.255s: the log has it by both protocols; its consumer protocol wins", name)
            self.groups[name] = consumer_group
            consumer_group.charge_to(self.memory)
            self._sessions.begin_all(consumer_group)
        for name in names:
            self.groups[name] = Group(name, memory=self.memory)
        self.partitions.set(partition, LoadState.LOADED)

    def fail(self, partition: int) -> None:
        """Mark the partition offline, and drop the offsets that were read from it."""
        for name in self._offsets.groups():
            if self.partitions.partition_for(name) == partition:
                self._offsets.drop_group(name)
        self._offsets.drop_transactions(partition)
        self.partitions.set(partition, LoadState.OFFLINE)

    def unload(self) -> None:
        """Drop all groups and offsets. Answer all waiting requests with NOT_COORDINATOR."""
        for group in self.groups.values():
            if isinstance(group, ConsumerGroup):
                self._sessions.drop(group)
            else:
                self._rebalances.end_group(group, ErrorCode.NOT_COORDINATOR)
        for name in self._offsets.groups():
            self._offsets.drop_group(name)
        self._offsets.drop_transactions()
        self.groups.clear()
        # A new counter: waits of dropped groups that end later charge the old one.
        self.memory = MemberMemory()
        self.partitions.close()


class GroupContents:
    """Takes the records read from `__consumer_offsets`: applies offsets and keeps each group's last record.

    Offsets of a transaction stay pending until its marker is read. If the log lacks the marker, the
    transaction coordinator will send it.
    """

    def __init__(self, manager: GroupMetadataManager, offsets: Offsets) -> None:
        self._manager = manager
        self._offsets = offsets
        self._groups: dict[str, GroupValue | None] = {}
        self._consumer_groups: dict[str, ConsumerGroup] = {}

    def begin(self) -> None:
        self._groups, self._consumer_groups = {}, {}

    def read(self, partition: int, batch: Batch) -> None:
        transaction = TransactionKey(partition, batch.header.producer_id)
        if batch.is_control:
            # A control batch that the cleaner has emptied has no transaction left to end.
            if (marker := marker_of(batch.bytes)) is not None:
                self._offsets.end_transaction(transaction, marker[0] == COMMIT)
            return
        for record in batch.records():
            entry = decode(record.key, record.value)
            if entry is None:
                continue
            key, value = entry
            if isinstance(key, OffsetKey):
                assert value is None or isinstance(value, OffsetValue)
                if batch.is_transactional and value is not None:
                    self._offsets.pend(transaction, key, value)
                else:
                    self._offsets.apply(key, value)
            elif isinstance(key, GroupKey):
                assert value is None or isinstance(value, GroupValue)
                self._groups[key.group] = value
            else:
                self._consumer_group(key.group).replay(key, value)

    def _consumer_group(self, name: str) -> ConsumerGroup:
        if name not in self._consumer_groups:
            self._consumer_groups[name] = ConsumerGroup(name, MemberMemory())
        return self._consumer_groups[name]

    def end(self, end: Partition) -> None:
        self._manager.load(end.partition, self._groups, self._consumer_groups)
        self._consumer_groups = {}

    def fail(self, partition: int) -> None:
        self._manager.fail(partition)
