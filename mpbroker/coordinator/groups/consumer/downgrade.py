"""Turns a consumer group into a classic one when its clients use only the classic protocol.

This happens when the last member of the consumer protocol leaves or is replaced, or the group is empty.

(Kafka: GroupMetadataManager.validateOnlineDowngradeWithFencedMembers, convertToClassicGroup,
validateOnlineDowngradeWithReplacedMember, maybeDeleteEmptyConsumerGroup, ClassicGroup.fromConsumerGroup.)
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.groups.classic.group import Group, GroupState
from mpbroker.coordinator.groups.classic.group import Member as ClassicGroupMember
from mpbroker.coordinator.groups.classic.rebalances import Rebalances
from mpbroker.coordinator.groups.consumer.changes import Changes, Writer
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup, Member
from mpbroker.coordinator.groups.consumer.members import ConsumerGroupMembers
from mpbroker.coordinator.groups.consumer.topic_metadata import TopicMetadata
from mpbroker.coordinator.groups.group_manager import GroupMetadataManager
from mpbroker.protocol.consumer_protocol import CONSUMER_PROTOCOL, encode_assignment, version_of
from mpbroker.protocol.errors import ErrorCode

# An estimate of a member's place in the classic group's record, and of its tombstones.
RECORDS_BYTES: Final = 350

log = logging.getLogger("mpbroker.coordinator.groups")


@dataclass(eq=False)
class Downgrade:
    _config: BrokerConfig
    _manager: GroupMetadataManager
    _rebalances: Rebalances
    _members: ConsumerGroupMembers
    _topics: TopicMetadata
    _writer: Writer

    def is_due(self, group: ConsumerGroup, leaving: Collection[Member], remaining: int) -> bool:
        """Return whether only classic members remain, so that the group must become a classic one.

        `leaving`: the members that leave. `remaining`: how many members stay. If the settings forbid the
        change, log that, and return False.
        """
        classic = group.classic_members - sum(member.is_classic for member in leaving)
        if classic < len(group.members) - len(leaving) or remaining <= 0:
            return False
        why = ""
        if not self._config.is_downgrade_enabled:
            why = "the online downgrade is disabled"
        elif remaining > self._config.group_max_size:
            why = "its group size is greater than classic group max size"
        elif sum(_size_of(one) for one in group.members.values()) > self._config.message_max_bytes:
            why = "its record would take more than message.max.bytes"
        if why:
            log.info("group %.255s: it cannot become a classic group, because %s", group.group_id, why)
        return not why

    def without(self, changes: Changes, leaving: Collection[Member]) -> bool:
        """Make the group a classic one without these members, if that is due. Return whether it was."""
        group = changes.group
        if not self.is_due(group, leaving, len(group.members) - len(leaving)):
            return False
        converted = self.convert(changes, leaving)
        self._rebalances.prepare(converted, "it was a consumer group, and members have left it")
        return True

    def convert(self, changes: Changes, leaving: Collection[Member] = ()) -> Group:
        """Return a classic group that replaces the consumer group, without the members `leaving`.

        All other members must use the classic protocol. The state of the classic group is Stable, but the
        caller must begin a rebalance unless all members have the partitions of the target.
        """
        group = changes.group
        left = {member.member_id for member in leaving}
        members = [member for member in group.members.values() if member.member_id not in left]
        converted = self._group_of(group, members)
        self._members.delete(changes)
        for member_id in left:
            self._members.cancel_timers(group.group_id, member_id)
        self._replace(changes, converted)
        assignments = {member_id: member.assignment for member_id, member in converted.members.items()}
        changes.write(*self._rebalances.entry(converted, assignments))
        log.info(
            "group %.255s: the consumer group becomes a classic group with %d member(s)",
            group.group_id,
            len(members),
        )
        return converted

    def replace_empty(self, group: ConsumerGroup) -> None:
        """Replace an empty consumer group by an empty classic group."""
        classic = self._manager.new_group(group.group_id)
        with Changes(group) as changes:
            self._members.delete(changes)
            self._replace(changes, classic)
        log.info("group %.255s: an empty consumer group becomes a classic group", group.group_id)
        self._writer.write(changes, lambda _error: None)

    def _replace(self, changes: Changes, converted: Group) -> None:
        """Replace the consumer group by `converted`, a classic group, which takes over the sessions."""
        group_id = converted.group_id
        self._manager.groups[group_id] = converted
        changes.or_else(partial(self._manager.groups.__setitem__, group_id, changes.group))
        kept, error = frozenset(converted.members), ErrorCode.COORDINATOR_NOT_AVAILABLE
        changes.or_else(partial(self._rebalances.replace, converted, error, kept))
        self._rebalances.take_over(converted)

    def _group_of(self, group: ConsumerGroup, members: Collection[Member]) -> Group:
        """Return a classic group with these members. Its generation is the epoch of the consumer group.

        The members keep their current partitions. (Kafka gives them the partitions of the target, which
        other members may still have.)
        """
        converted = self._manager.new_group(group.group_id)
        for member in members:
            converted.add(_member_of(member), CONSUMER_PROTOCOL)
        converted.generation = group.epoch
        converted.protocol = converted.select_protocol()
        converted.subscribed = converted.subscribed_topics()
        assert converted.state_ms is not None
        converted.enter(GroupState.STABLE, converted.state_ms)
        for member in members:
            became = converted.members[member.member_id]
            version = version_of(became.metadata(converted.protocol))
            parts = self._topics.by_name(member.current.partitions)
            converted.assign(became, encode_assignment(version, parts))
        return converted


def _size_of(member: Member) -> int:
    """Estimate the bytes that a conversion writes for a member."""
    protocols = () if member.metadata.classic is None else member.metadata.classic.protocols
    partitions = sum(map(len, member.current.partitions.values()))
    return RECORDS_BYTES + 8 * partitions + sum(len(name) + len(metadata) for name, metadata in protocols)


def _member_of(member: Member) -> ClassicGroupMember:
    told = member.metadata
    assert told.classic is not None
    return ClassicGroupMember(
        member.member_id,
        told.instance_id,
        told.client_id,
        told.client_host,
        told.rebalance_timeout_ms,
        told.classic.session_timeout_ms,
        told.classic.protocols,
    )
