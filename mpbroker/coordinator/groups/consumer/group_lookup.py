"""The consumer group of a request: found, created, or made from a classic group."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.groups.classic.group import Group, GroupState
from mpbroker.coordinator.groups.classic.rebalances import Rebalances
from mpbroker.coordinator.groups.consumer.changes import Changes
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.groups.group_manager import GroupMetadataManager
from mpbroker.coordinator.groups.member_memory import MEMBER_BYTES, NAME_BYTES
from mpbroker.coordinator.groups.records import GroupKey
from mpbroker.protocol.errors import ApiError, ErrorCode

log = logging.getLogger("mpbroker.coordinator.groups")


@dataclass(eq=False)
class GroupLookup:
    _config: BrokerConfig
    _manager: GroupMetadataManager
    _rebalances: Rebalances

    def group_for(self, group_id: str, *, creates: bool) -> Changes:
        """Return the group, with the changes that made it if it is new. Raises ApiError.

        With `creates`, a missing group is created, and an empty classic group is replaced.
        """
        self._manager.partitions.check_loaded(group_id)
        group = self._manager.find(group_id)
        if isinstance(group, ConsumerGroup):
            return Changes(group)
        if not creates:
            what = "not found" if group is None else "is not a consumer group"
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id:.255s} {what}.")
        if group is None:
            changes = Changes(ConsumerGroup(group_id, self._manager.memory))
            changes.or_else(partial(self._manager.remove, changes.group))
        else:
            changes = self._from_classic(group)
        self._manager.groups[group_id] = changes.group
        return changes

    def _from_classic(self, group: Group) -> Changes:
        """Return a consumer group that takes the place of a classic one. Raises ApiError."""
        if group.state is GroupState.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if group.state is not GroupState.EMPTY:
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id:.255s} is not a consumer group."
            )
        changes = Changes(ConsumerGroup(group.group_id, self._manager.memory))
        self._rebalances.end_group(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        group.expect_no_joins()
        changes.delete(GroupKey(group.group_id))
        changes.or_else(partial(self._manager.groups.__setitem__, group.group_id, group))
        log.info("group %.255s: an empty classic group becomes a consumer group", group.group_id)
        return changes

    def check_memory(self, group_id: str, topics: Collection[str]) -> None:
        """Raise ApiError if the members of all groups would take too much memory with one more."""
        more = MEMBER_BYTES + sum(NAME_BYTES + len(name) for name in topics)
        most = self._config.group_max_members_bytes
        if self._manager.memory.used_bytes + more > most:
            text = f"The members of all groups would take more than group.max.members.bytes={most}."
            log.warning("group %.255s: a member is refused: %s", group_id, text)
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
