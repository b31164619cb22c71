"""The members of consumer groups: their timers, and how they leave, are fenced and replaced.

(Kafka: GroupMetadataManager.consumerGroupLeave, consumerGroupFenceMembers, replaceMember, and the timers.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Final

from mpbroker.config.resource_config import GroupSettings
from mpbroker.coordinator.groups.consumer.changes import Changes, Writer
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup, Member
from mpbroker.coordinator.groups.consumer.records import (
    NO_PARTITIONS,
    CurrentAssignment,
    CurrentKey,
    EpochKey,
    MemberKey,
    PartitionMetadataKey,
    PatternKey,
    TargetKey,
    TargetMemberKey,
)
from mpbroker.coordinator.groups.consumer.topic_metadata import TopicMetadata
from mpbroker.coordinator.groups.log_text import shown
from mpbroker.coordinator.runtime.timers import Clock, Timers
from mpbroker.protocol.consumer_protocol import STATIC_LEAVE_EPOCH
from mpbroker.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

# The computations of a group that run in the background.
ASSIGNMENT_JOB: Final = "assignment"
PATTERN_JOB: Final = "patterns"
# The timers of a member: of its session, and of the time in which it must give up partitions, or join again
# or send SyncGroup by the classic protocol.
SESSION: Final = "member"  # as in classic groups: process.py counts both
REBALANCE: Final = "rebalance"
JOIN: Final = "join of member"
SYNC: Final = "sync of member"
SESSION_EXPIRED: Final = "its session has expired"

log = logging.getLogger("mpbroker.coordinator.groups")


def who(member: Member) -> str:
    """Return a member's id, client, host and instance as a text for the log."""
    told = member.metadata
    names = [told.client_id, told.client_host.removeprefix("/")]
    if told.instance_id is not None:
        names.append(f"instance {told.instance_id}")
    return f"{shown([member.member_id])} ({shown(names)})"


@dataclass(eq=False)
class ConsumerGroupMembers:
    """Sets the members' timers, and removes, fences and replaces members.

    `_find` returns a consumer group by its id, None if there is none. `_downgrades(changes, leaving)` makes
    the group a classic one without these members; it returns False, and changes nothing, if the group stays
    as it is.
    """

    _settings: Callable[[str], GroupSettings]
    _timers: Timers
    _clock: Clock
    _topics: TopicMetadata
    _writer: Writer
    _find: Callable[[str], ConsumerGroup | None]
    _downgrades: Callable[[Changes, Collection[Member]], bool]

    # --- timers

    def keep_alive(self, group_id: str, member: Member) -> None:
        """Restart the member's session."""
        timeout_ms = self.session_timeout_ms(group_id, member)
        self._set(SESSION, group_id, member.member_id, timeout_ms, SESSION_EXPIRED)

    def session_timeout_ms(self, group_id: str, member: Member) -> int:
        classic = member.metadata.classic
        return self._settings(group_id).session_timeout_ms if classic is None else classic.session_timeout_ms

    def prolong(self, group_id: str, member: Member, timeout_ms: int) -> bool:
        """Restart the member's session with this timeout; return False if the member has no session."""
        at_ms = self._clock.monotonic_ms() + timeout_ms
        return self._timers.postpone((SESSION, group_id, member.member_id), at_ms)

    def take_over(self, group_id: str, member: Member) -> None:
        """Continue the session that the member has in a classic group, or start one."""
        expire = partial(self._expire, group_id, member.member_id, SESSION_EXPIRED)
        if not self._timers.pass_on((SESSION, group_id, member.member_id), expire):
            self.keep_alive(group_id, member)

    def await_join(self, group_id: str, member: Member) -> None:
        """Fence a member that uses the classic protocol if it does not join again in time."""
        if (JOIN, group_id, member.member_id) not in self._timers:
            timeout_ms = member.metadata.rebalance_timeout_ms
            self._set(JOIN, group_id, member.member_id, timeout_ms, "it has not joined again in time")

    def await_sync(self, group_id: str, member: Member) -> None:
        """Fence a member that has joined by the classic protocol if it sends no SyncGroup in time."""
        self.end_waits(group_id, member.member_id)
        timeout_ms = member.metadata.rebalance_timeout_ms
        self._set(SYNC, group_id, member.member_id, timeout_ms, "it has sent no SyncGroup in time")

    def end_waits(self, group_id: str, member_id: str) -> None:
        """Cancel the member's timers for a revocation, a join and a sync. Its session's timer goes on."""
        for kind in (REBALANCE, JOIN, SYNC):
            self._timers.cancel((kind, group_id, member_id))

    def synced(self, group_id: str, member_id: str) -> None:
        """Note that the member has sent its SyncGroup."""
        self._timers.cancel((SYNC, group_id, member_id))

    def _set(self, kind: str, group_id: str, member_id: str, timeout_ms: int, why: str) -> None:
        at = self._clock.monotonic_ms() + timeout_ms
        self._timers.set((kind, group_id, member_id), at, partial(self._expire, group_id, member_id, why))

    def follow_revocation(self, group: ConsumerGroup, member: Member) -> None:
        """Fence a member that does not give up partitions within its rebalance timeout.

        Members of the classic protocol have timers for their joins instead.
        """
        name = (REBALANCE, group.group_id, member.member_id)
        if member.is_classic or not member.current.revoking:
            self._timers.cancel(name)
            return

        def expire() -> None:
            found = self._find(group.group_id)
            now = None if found is None else found.members.get(member.member_id)
            if now is not None and now.epoch == member.epoch and now.current.revoking:
                self._expire(group.group_id, member.member_id, "it has not revoked its partitions in time")

        at = self._clock.monotonic_ms() + member.metadata.rebalance_timeout_ms
        self._timers.set(name, at, expire)

    def cancel_timers(self, group_id: str, member_id: str) -> None:
        self._timers.cancel((SESSION, group_id, member_id))
        self.end_waits(group_id, member_id)

    def _expire(self, group_id: str, member_id: str, why: str) -> None:
        group = self._find(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None:
            return
        log.info("group %.255s: %s is removed: %s", group_id, who(member), why)
        with Changes(group) as changes:
            self.remove(changes, [member])
        self._writer.write(changes, lambda _error: None)

    # --- joining and leaving

    def find_or_add(self, changes: Changes, member_id: str) -> Member:
        """Return a member that joins. If it is new, its timers end if the changes are undone."""
        group_id = changes.group.group_id
        if (found := changes.group.members.get(member_id)) is not None:
            return found
        changes.or_else(partial(self.cancel_timers, group_id, member_id))
        return Member(member_id)

    def leave(
        self, changes: Changes, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse:
        """Remove a member, or note that a static member is absent. Raises ApiError if it is unknown."""
        group, member_id, instance_id = changes.group, request.member_id, request.instance_id
        if instance_id is None:
            member = group.member(member_id)
        else:
            member = group.check_instance(member_id, instance_id)
        if instance_id is not None and request.member_epoch == STATIC_LEAVE_EPOCH:
            log.info(
                "group %.255s: %s left for a while, its partitions wait until its session ends",
                group.group_id,
                who(member),
            )
            self._leave_for_a_while(changes, member)
        else:
            log.info("group %.255s: %s left", group.group_id, who(member))
            self.remove(changes, [member])
        return ConsumerGroupHeartbeatResponse(member_id=member_id, member_epoch=request.member_epoch)

    def _leave_for_a_while(self, changes: Changes, member: Member) -> None:
        """Keep an absent static member's partitions for its successor, with 0 as the epoch of each."""
        current = member.current
        assigned = {topic_id: dict.fromkeys(epochs, 0) for topic_id, epochs in current.assigned.items()}
        left = current._replace(epoch=STATIC_LEAVE_EPOCH, assigned=assigned, revoking=NO_PARTITIONS)
        changes.put(CurrentKey(changes.group.group_id, member.member_id), left)

    # --- removal

    def remove(self, changes: Changes, members: Collection[Member]) -> None:
        """Remove members. The group becomes a classic one if only members that use that protocol remain.

        Otherwise the group's epoch grows, so that the next heartbeat assigns the free partitions.
        """
        group = changes.group
        if self._downgrades(changes, members):
            return
        for member in members:
            self._remove_records(changes, member)
            pattern = member.metadata.pattern
            if pattern and not group.pattern_subscribers[pattern]:
                changes.put(PatternKey(group.group_id, pattern), None)
        metadata_hash = self._topics.hash_of(group)
        changes.begin_epoch(metadata_hash)

    def _remove_records(self, changes: Changes, member: Member) -> None:
        group_id, member_id = changes.group.group_id, member.member_id
        changes.put(CurrentKey(group_id, member_id), None)
        changes.put(TargetMemberKey(group_id, member_id), None)
        changes.put(MemberKey(group_id, member_id), None)
        self.cancel_timers(group_id, member_id)
        changes.or_else(partial(self._begin, changes.group, member))

    def _begin(self, group: ConsumerGroup, member: Member) -> None:
        self.take_over(group.group_id, member)
        self.follow_revocation(group, member)

    def replace(self, changes: Changes, old: Member, new_id: str) -> Member:
        """Let a static member that has returned under a new member id take the place of its old one."""
        group, group_id = changes.group, changes.group.group_id
        target = group.targets.get(old.member_id, NO_PARTITIONS)
        self._remove_records(changes, old)
        changes.put(MemberKey(group_id, new_id), old.metadata)
        changes.put(TargetMemberKey(group_id, new_id), target)
        if group.is_assigning:
            # The target that is being computed is the old member's: another one is needed.
            changes.begin_epoch(group.metadata_hash)
        current: CurrentAssignment = old.current._replace(epoch=0, previous_epoch=0)
        changes.put(CurrentKey(group_id, new_id), current)
        changes.or_else(partial(self.cancel_timers, group_id, new_id))
        log.info(
            "group %.255s: instance %s: member %s is replaced by %s",
            group_id,
            shown([old.metadata.instance_id or ""]),
            shown([old.member_id]),
            shown([new_id]),
        )
        return group.members[new_id]

    def delete(self, changes: Changes) -> None:
        """Delete all records of a group, the group's epoch last (Kafka: createGroupTombstoneRecords).

        The members' sessions go on: the caller ends them, or gives them to the group that takes the place.
        """
        group, group_id = changes.group, changes.group.group_id
        self.stop_jobs(group)
        members = list(group.members.values())
        for member in members:
            changes.put(CurrentKey(group_id, member.member_id), None)
        for member_id in list(group.targets):
            changes.put(TargetMemberKey(group_id, member_id), None)
        changes.put(TargetKey(group_id), None)
        for member in members:
            changes.put(MemberKey(group_id, member.member_id), None)
            self.end_waits(group_id, member.member_id)
            changes.or_else(partial(self._begin, group, member))
        for pattern in list(group.patterns):
            changes.put(PatternKey(group_id, pattern), None)
        changes.put(PartitionMetadataKey(group_id), None)
        changes.put(EpochKey(group_id), None)

    # --- sessions of whole groups

    def begin_all(self, group: ConsumerGroup) -> None:
        """Start the sessions of the members of a group that was read from the log."""
        for member in group.members.values():
            self._begin(group, member)

    def drop(self, group: ConsumerGroup) -> None:
        """Cancel the timers of a group that is dropped."""
        self.stop_jobs(group)
        for member_id in group.members:
            self.cancel_timers(group.group_id, member_id)

    def stop_jobs(self, group: ConsumerGroup) -> None:
        """Stop the computations of a group that is dropped or deleted."""
        for kind in (ASSIGNMENT_JOB, PATTERN_JOB):
            self._timers.cancel((kind, group.group_id))
        group.is_assigning = False
