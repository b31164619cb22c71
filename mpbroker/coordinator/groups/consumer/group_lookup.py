"""Finds the consumer group of a request, creates it, or converts a classic group into it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.groups.consumer.changes import Changes
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.groups.consumer.members import ConsumerGroupMembers
from mpbroker.coordinator.groups.consumer.upgrade import Upgrade
from mpbroker.coordinator.groups.group_manager import GroupMetadataManager
from mpbroker.protocol.errors import ApiError, ErrorCode

log = logging.getLogger("mpbroker.coordinator.groups")


@dataclass(eq=False)
class GroupLookup:
    _config: BrokerConfig
    _manager: GroupMetadataManager
    _upgrade: Upgrade
    _members: ConsumerGroupMembers

    def group_for(self, group_id: str, *, creates: bool) -> Changes:
        """Return an object for changes of the group, with the group's creation if it is new. Raises ApiError.

        With `creates`, a missing group is created, and a classic group becomes a consumer group.
        """
        if not creates:
            return Changes(self._manager.consumer_group(group_id))
        self._manager.partitions.check_loaded(group_id)
        group = self._manager.find(group_id)
        if isinstance(group, ConsumerGroup):
            return Changes(group)
        if group is not None:
            return self._upgrade.convert(group)
        changes = Changes(ConsumerGroup(group_id, self._manager.memory))
        changes.or_else(partial(self._manager.remove, changes.group))
        changes.or_else(partial(self._members.stop_jobs, changes.group))
        self._manager.add(changes.group)
        return changes

    def find(self, group_id: str) -> ConsumerGroup | None:
        """Return a consumer group that was read; None if there is none."""
        return self._manager.find_consumer(group_id)

    def find_loaded(self, group_id: str) -> ConsumerGroup | None:
        """Return a consumer group, None if there is none. Raises ApiError if its partition is not loaded."""
        group = self._manager.find_consumer(group_id)
        if group is not None:
            self._manager.partitions.check_loaded(group_id)
        return group

    def check_room(self, group: ConsumerGroup, member_id: str) -> None:
        """Raise ApiError if the group has no room for a new member."""
        most = self._config.group_consumer_max_size
        if member_id not in group.members and len(group.members) >= most:
            text = f"The consumer group has reached its maximum capacity of {most} members."
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)

    def check_memory(self, group_id: str, more_bytes: int) -> None:
        """Raise ApiError if the members of all groups would take too much memory with some more bytes."""
        most = self._config.group_max_members_bytes
        if more_bytes > 0 and self._manager.memory.used_bytes + more_bytes > most:
            text = f"The members of all groups would take more than group.max.members.bytes={most}."
            log.warning("group %.255s: a member is refused: %s", group_id, text)
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
