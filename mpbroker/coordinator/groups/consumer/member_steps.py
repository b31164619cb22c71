"""The steps of a member's request, in Kafka's order. Each sees what the steps before it have changed.

(Kafka: GroupMetadataManager.consumerGroupHeartbeat, classicGroupJoinToConsumerGroup.) A step that raises
ApiError leaves changes that the caller undoes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from mpbroker.coordinator.groups.consumer.changes import Changes
from mpbroker.coordinator.groups.consumer.group import NO_METADATA, size_of
from mpbroker.coordinator.groups.consumer.member_request import MemberRequest
from mpbroker.coordinator.groups.consumer.members import ConsumerGroupMembers
from mpbroker.coordinator.groups.consumer.pattern_subscriptions import PatternSubscriptions
from mpbroker.coordinator.groups.consumer.reconciliation import CurrentAssignmentBuilder
from mpbroker.coordinator.groups.consumer.records import (
    CurrentKey,
    MemberKey,
    MemberMetadata,
    PartitionMetadataKey,
)
from mpbroker.coordinator.groups.consumer.target_assignments import TargetAssignments
from mpbroker.coordinator.groups.consumer.topic_metadata import TopicMetadata
from mpbroker.coordinator.groups.group_counts import GroupCounts

log = logging.getLogger("mpbroker.coordinator.groups")


@dataclass(eq=False)
class MemberSteps:
    """Runs the steps: subscribe, assign (or refresh), reconcile.

    `_check_memory(group_id, more_bytes)` raises ApiError if members would take too much memory.
    """

    _check_memory: Callable[[str, int], None]
    _members: ConsumerGroupMembers
    _patterns: PatternSubscriptions
    _targets: TargetAssignments
    _topics: TopicMetadata
    _counts: GroupCounts

    def subscribe(self, request: MemberRequest, metadata: MemberMetadata) -> None:
        """Store what the member says about itself. Begin an epoch if its subscription has changed.

        Raises ApiError if its pattern is invalid, or members would take too much memory.
        """
        known = request.member.metadata
        if metadata != known:
            more_bytes = size_of(metadata) - (0 if known is NO_METADATA else size_of(known))
            self._check_memory(request.group.group_id, more_bytes)
            request.changes.put(MemberKey(request.group.group_id, request.member.member_id), metadata)
            request.read_member()
        if metadata.topics != request.before.metadata.topics:
            request.bumps = request.subscription_changed = True
        self._patterns.update(request)
        self._update_epoch(request.changes, bumps=request.bumps)

    def assign(self, request: MemberRequest) -> None:
        """Compute the target if it is due, and bring the member a step nearer to it. Raises ApiError."""
        self._targets.update(request.changes)
        self.reconcile(request)

    def refresh(self, changes: Changes) -> None:
        """Begin an epoch if the topics have changed, and compute the target if it is due. Raises ApiError."""
        self._update_epoch(changes, bumps=False)
        self._targets.update(changes)

    def _update_epoch(self, changes: Changes, *, bumps: bool) -> None:
        """Begin an epoch if the subscriptions, or the topics subscribed to, have changed."""
        group = changes.group
        if not (bumps or group.must_check_metadata):
            return
        metadata_hash = self._topics.hash_of(group)
        if bumps or metadata_hash != group.metadata_hash:
            changes.begin_epoch(metadata_hash)
            self._counts.rebalances += 1
            log.info(
                "group %.255s: epoch %d: subscriptions or topics have changed", group.group_id, group.epoch
            )
        changes.put(PartitionMetadataKey(group.group_id), None)
        group.must_check_metadata = False
        changes.or_else(partial(setattr, group, "must_check_metadata", True))

    def reconcile(self, request: MemberRequest) -> None:
        """Bring the member a step nearer to its target. Raises ApiError if it must be fenced."""
        group, member = request.group, request.member
        if not request.subscription_changed and member.is_reconciled_to(group.target.epoch):
            return
        target = group.targets.get(member.member_id, {})
        topics = self._topics.named({**target, **member.current.assigned}, group.topics_of(member))
        builder = CurrentAssignmentBuilder(group, member, group.target.epoch, target, topics, request.owned)
        current = builder.build(subscription_changed=request.subscription_changed)
        if current != member.current:
            request.changes.or_else(partial(self._members.follow_revocation, group, member))
            request.changes.put(CurrentKey(group.group_id, member.member_id), current)
            request.read_member()
            self._members.follow_revocation(group, request.member)
