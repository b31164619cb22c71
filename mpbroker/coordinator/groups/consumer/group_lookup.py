"""The consumer group of a request: found, created, or made from a classic group."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.groups.consumer.changes import Changes
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.groups.consumer.upgrade import Upgrade
from mpbroker.coordinator.groups.group_manager import GroupMetadataManager
from mpbroker.coordinator.groups.member_memory import MEMBER_BYTES, NAME_BYTES
from mpbroker.protocol.errors import ApiError, ErrorCode

log = logging.getLogger("mpbroker.coordinator.groups")


@dataclass(eq=False)
class GroupLookup:
    _config: BrokerConfig
    _manager: GroupMetadataManager
    _upgrade: Upgrade

    def group_for(self, group_id: str, *, creates: bool) -> Changes:
        """Return the group, with the changes that made it if it is new. Raises ApiError.

        With `creates`, a missing group is created, and a classic group becomes a consumer group.
        """
        self._manager.partitions.check_loaded(group_id)
        group = self._manager.find(group_id)
        if isinstance(group, ConsumerGroup):
            return Changes(group)
        if not creates:
            what = "not found" if group is None else "is not a consumer group"
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id:.255s} {what}.")
        if group is not None:
            return self._upgrade.convert(group)
        changes = Changes(ConsumerGroup(group_id, self._manager.memory))
        changes.or_else(partial(self._manager.remove, changes.group))
        self._manager.add(changes.group)
        return changes

    def check_room(
        self, group: ConsumerGroup, member_id: str, topics: Collection[str], more_bytes: int = 0
    ) -> None:
        """Raise ApiError if the group, or the memory for all members, has no room for a new member.

        `more_bytes`: what the member takes besides its topics.
        """
        if member_id in group.members:
            return
        most = self._config.group_consumer_max_size
        if len(group.members) >= most:
            text = f"The consumer group has reached its maximum capacity of {most} members."
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
        more_bytes += MEMBER_BYTES + sum(NAME_BYTES + len(name) for name in topics)
        most = self._config.group_max_members_bytes
        if self._manager.memory.used_bytes + more_bytes > most:
            text = f"The members of all groups would take more than group.max.members.bytes={most}."
            log.warning("group %.255s: a member is refused: %s", group.group_id, text)
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
