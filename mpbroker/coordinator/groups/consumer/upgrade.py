"""Turns a classic group into a consumer group when a client joins it by the consumer protocol.

(Kafka: GroupMetadataManager.validateOnlineUpgrade, convertToConsumerGroup, ConsumerGroup.fromClassicGroup.)
The members of the classic group stay, with the partitions that they have.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.groups.classic.group import Group, GroupState
from mpbroker.coordinator.groups.classic.group import Member as ClassicGroupMember
from mpbroker.coordinator.groups.classic.rebalances import Rebalances
from mpbroker.coordinator.groups.consumer.changes import Changes
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.groups.consumer.members import ConsumerGroupMembers
from mpbroker.coordinator.groups.consumer.records import (
    Assignment,
    ClassicMember,
    CurrentAssignment,
    CurrentKey,
    EpochKey,
    GroupEpoch,
    MemberKey,
    MemberMetadata,
    TargetEpoch,
    TargetKey,
    TargetMemberKey,
)
from mpbroker.coordinator.groups.consumer.topic_metadata import TopicMetadata
from mpbroker.coordinator.groups.group_manager import GroupMetadataManager
from mpbroker.coordinator.groups.records import GroupKey
from mpbroker.protocol.consumer_protocol import (
    CONSUMER_PROTOCOL,
    Subscription,
    decode_assignment,
    decode_subscription,
)
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.wire import MalformedMessage

# The assignors that clients bring. librdkafka's cooperative-sticky repeats in an assignment what the member
# has said itself, and no client reads that. (Kafka refuses such a group.)
CLIENTS_ASSIGNORS: Final = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})

# An estimate of a member's records, without its protocols and its assignment.
RECORDS_BYTES: Final = 250

log = logging.getLogger("mpbroker.coordinator.groups")


class _Converted(NamedTuple):
    metadata: MemberMetadata
    assigned: Assignment


@dataclass(eq=False)
class Upgrade:
    _config: BrokerConfig
    _manager: GroupMetadataManager
    _rebalances: Rebalances
    _members: ConsumerGroupMembers
    _topics: TopicMetadata

    def convert(self, group: Group) -> Changes:
        """Return a consumer group that takes the place of a classic one. Raises ApiError.

        Undoing the changes restores the classic group.
        """
        if group.state is GroupState.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        members: Mapping[str, _Converted] | None = None
        if not group.is_empty:
            self._check(group)
            members = self._convert_members(group)
            if len(group.members) == self._config.group_consumer_max_size:
                text = f"The consumer group has reached its maximum capacity of {len(members)} members."
                raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
        changes = Changes(ConsumerGroup(group.group_id, self._manager.memory))
        self._replace(group, changes, members or {})
        if members is not None:
            self._put(changes, group.generation, members)
        log.info(
            "group %.255s: the classic group becomes a consumer group with %d member(s)",
            group.group_id,
            len(changes.group.members),
        )
        return changes

    def _check(self, group: Group) -> None:
        """Raise ApiError if the group must stay a classic one while it has members."""
        if not self._config.is_upgrade_enabled:
            raise _refusal(group, "online upgrade is disabled")
        if group.protocol_type != CONSUMER_PROTOCOL:
            raise _refusal(group, "the group does not use the consumer embedded protocol")
        if len(group.members) > self._config.group_consumer_max_size:
            raise _refusal(group, "the group size exceeds the consumer group maximum size")
        size = sum(RECORDS_BYTES + 3 * len(one.assignment) + _size_of(one) for one in group.members.values())
        if size > self._config.message_max_bytes:
            raise _refusal(group, "its records would take more than message.max.bytes")

    def _replace(self, group: Group, changes: Changes, kept: Container[str]) -> None:
        """Replace the classic group by the consumer group. Clients whose requests wait are told to rejoin."""
        changes.or_else(self._rebalances.replace(group, ErrorCode.REBALANCE_IN_PROGRESS, kept))
        changes.or_else(partial(self._manager.groups.__setitem__, group.group_id, group))
        changes.or_else(partial(self._members.stop_jobs, changes.group))
        self._manager.groups[group.group_id] = changes.group
        changes.write(GroupKey(group.group_id), None)

    def _put(self, changes: Changes, generation: int, members: Mapping[str, _Converted]) -> None:
        """Write the members, in Kafka's order. Their epoch is the generation of the classic group."""
        group, group_id = changes.group, changes.group.group_id
        for member_id, member in members.items():
            changes.put(MemberKey(group_id, member_id), member.metadata)
        metadata_hash = self._topics.hash_of(group)
        changes.put(EpochKey(group_id), GroupEpoch(generation, metadata_hash))
        for member_id, member in members.items():
            changes.put(TargetMemberKey(group_id, member_id), member.assigned)
        changes.put(TargetKey(group_id), TargetEpoch(generation, 0))
        for member_id, member in members.items():
            assigned = {topic: dict.fromkeys(parts, generation) for topic, parts in member.assigned.items()}
            current = CurrentAssignment(generation, generation, assigned=assigned)
            changes.put(CurrentKey(group_id, member_id), current)
            self._members.take_over(group_id, group.members[member_id])
            # The classic group takes the session back.
            changes.or_else(partial(self._members.end_waits, group_id, member_id))

    # --- the members of the classic group

    def _convert_members(self, group: Group) -> Mapping[str, _Converted]:
        """Return the group's members, converted, without those that cannot return. Raises ApiError."""
        members = [member for member in group.members.values() if _can_return(member)]
        try:
            subscriptions = {member.member_id: _subscription_of(member, group.protocol) for member in members}
            assignments = self._assignments(group, members, subscriptions)
        except MalformedMessage as error:
            raise _refusal(group, "the embedded consumer protocol is malformed") from error
        return {
            member.member_id: _Converted(
                _metadata_of(member, subscriptions[member.member_id]), assignments[member.member_id]
            )
            for member in members
        }

    def _assignments(
        self, group: Group, members: Iterable[ClassicGroupMember], subscriptions: Mapping[str, Subscription]
    ) -> dict[str, Assignment]:
        """Return the members' partitions. Raises ApiError, or MalformedMessage.

        During a rebalance a member has no assignment, while its client still has partitions. The member then
        gets the partitions that its client named in the last JoinGroup, except those of other members.
        (Kafka gives the member none, so that partitions may have two owners.)
        """
        found: dict[str, Assignment] = {}
        taken: set[tuple[bytes, int]] = set()
        for member in members:
            if not member.assignment:
                continue
            parts, user_data_bytes = decode_assignment(member.assignment)
            if user_data_bytes and group.protocol not in CLIENTS_ASSIGNORS:
                raise _refusal(
                    group,
                    "an unsupported custom assignor is in use. Please refer to the documentation or switch "
                    "to a default assignor before re-attempting the upgrade",
                )
            assigned = self._topics.by_id(parts)
            pairs = {(topic_id, number) for topic_id, numbers in assigned.items() for number in numbers}
            if not taken.isdisjoint(pairs):
                raise _refusal(group, "its assignor gives a partition to several members")
            taken |= pairs
            found[member.member_id] = assigned
        for member_id, subscription in subscriptions.items():
            if member_id not in found:
                owned = self._topics.by_id(subscription.owned)
                found[member_id] = {
                    topic_id: free
                    for topic_id, numbers in owned.items()
                    if (free := frozenset(number for number in numbers if (topic_id, number) not in taken))
                }
                taken.update(
                    (topic_id, number) for topic_id, free in found[member_id].items() for number in free
                )
        return found


def _size_of(member: ClassicGroupMember) -> int:
    return sum(len(name) + len(metadata) for name, metadata in member.protocols)


def _refusal(group: Group, why: str) -> ApiError:
    text = f"Cannot upgrade classic group {group.group_id:.255s} to consumer group because {why}."
    log.info("group %.255s: it stays a classic group, because %s", group.group_id, why)
    return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, text)


def _can_return(member: ClassicGroupMember) -> bool:
    """Return whether the client can rejoin as this member: it knows its member id or has an instance id."""
    return member.knows_its_id or not member.is_new or member.instance_id is not None


def _subscription_of(member: ClassicGroupMember, protocol: str | None) -> Subscription:
    """Return what the member subscribes to: by the group's protocol, else by the first that it supports.

    Raises MalformedMessage.
    """
    protocols = dict(member.protocols)
    _, first = member.protocols[0]
    return decode_subscription(protocols.get(protocol or "", first))


def _metadata_of(member: ClassicGroupMember, subscription: Subscription) -> MemberMetadata:
    return MemberMetadata(
        member.instance_id,
        subscription.rack_id,
        member.client_id,
        member.client_host,
        subscription.topics,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMember(member.session_timeout_ms, member.protocols),
    )
