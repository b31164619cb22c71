"""Rebalances of a group: the join phase, the sync phase, and the events that end each phase.

(Kafka: GroupMetadataManager.prepareRebalance, completeClassicGroupJoin, expireClassicGroupMemberHeartbeat,
expirePendingSync.) A waiting request is answered exactly once: at the end of the phase, when its member is
removed, or when a later request of the member replaces it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.groups.classic.group import Group, GroupState, Member
from mpbroker.coordinator.groups.log_text import shown
from mpbroker.coordinator.groups.records import Entry, GroupKey
from mpbroker.coordinator.runtime.requests import Waiter, response_error
from mpbroker.coordinator.runtime.timers import Clock, Timers
from mpbroker.coordinator.runtime.write_queue import WriteQueue
from mpbroker.protocol.consumer_protocol import NO_MEMBER
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import JoinGroupResponse, Message, SyncGroupResponse

# A new member cannot send heartbeats; one that waits for longer than this is asked to come again.
NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60_000
# How long the next generation waits after an assignment that could not be written. Clients join again at
# once, and a full disk refuses each assignment. The wait doubles with each failure.
WRITE_RETRY_MS: Final = 1_000
WRITE_RETRY_MAX_MS: Final = 5_000

log = logging.getLogger("mpbroker.coordinator.groups")


def refused_join(member_id: str, error: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error, member_id=member_id)


@dataclass(eq=False)
class Rebalances:
    """The rebalances of all groups. `_answer(waiter, response)` answers a request that waited."""

    _config: BrokerConfig
    _timers: Timers
    _clock: Clock
    _queue: WriteQueue[Entry]
    _answer: Callable[[Waiter, Message], None]
    _waiting: dict[Waiter, tuple[Group, Member]] = field(default_factory=dict, init=False)

    # --- waiting requests

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def waiters(self) -> list[Waiter]:
        """Return the JoinGroup and SyncGroup requests that wait for other members."""
        return list(self._waiting)

    def wait_for_join(self, group: Group, member: Member, waiter: Waiter) -> None:
        self.end_join(member, refused_join(member.member_id, ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaits_join = waiter
        self._waiting[waiter] = group, member

    def wait_for_sync(self, group: Group, member: Member, waiter: Waiter) -> None:
        self.end_sync(member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        member.awaits_sync = waiter
        self._waiting[waiter] = group, member

    def end_join(self, member: Member, response: JoinGroupResponse) -> bool:
        waiter, member.awaits_join = member.awaits_join, None
        return self._end(waiter, response)

    def end_sync(self, member: Member, response: SyncGroupResponse) -> bool:
        waiter, member.awaits_sync = member.awaits_sync, None
        return self._end(waiter, response)

    def fence_sync(self, member: Member) -> None:
        """Answer the waiting SyncGroup of a static member that another client has replaced."""
        self.end_sync(member, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))

    def _end(self, waiter: Waiter | None, response: Message) -> bool:
        if waiter is None:
            return False
        del self._waiting[waiter]
        self._answer(waiter, response)
        return True

    def abandon(self, waiter: Waiter) -> None:
        """End the wait of a request whose connection is closed. The member may return within its session.

        A client that does not know its member id cannot return. Its member is removed at once, so that other
        members do not wait. (Kafka keeps such members for five minutes.)
        """
        found = self._waiting.get(waiter)
        if found is None:
            return
        group, member = found
        if member.awaits_sync == waiter:
            self.end_sync(member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
            self.keep_alive(group, member)
        elif member.knows_its_id or member.instance_id is not None or not member.is_new:
            self.end_join(member, refused_join(member.member_id, ErrorCode.REBALANCE_IN_PROGRESS))
            self.keep_alive(group, member)
        else:
            self.remove_and_update(group, member, f"the connection of {member.member_id} is closed")

    def withdraw(self, waiter: Waiter) -> None:
        """Stop the wait of a request without answering it: the caller answers it with an error."""
        found = self._waiting.pop(waiter, None)
        if found is None:
            return
        group, member = found
        if member.awaits_join == waiter:
            member.awaits_join = None
        if member.awaits_sync == waiter:
            member.awaits_sync = None
        if group.members.get(member.member_id) is member:
            self.keep_alive(group, member)

    def end_waits(self, group: Group, error: ErrorCode) -> None:
        """Answer all waiting requests of the group with a retriable error. Restart the join timeout."""
        patience_ms = 0
        if group.state is GroupState.PREPARING_REBALANCE:
            self._end_join_after(group)
            patience_ms = group.rebalance_timeout_ms
        for member in group.members.values():
            join_ended = self.end_join(member, refused_join(member.member_id, error))
            if self.end_sync(member, SyncGroupResponse(error_code=error)) or join_ended:
                self.keep_alive(group, member, patience_ms + member.session_timeout_ms)

    def end_group(self, group: Group, error: ErrorCode, kept: Container[str] = ()) -> None:
        """Answer all waiting requests of a dropped group with an error, and cancel its timers.

        The sessions of the members `kept` go on, unless a request of theirs has waited.
        """
        for member in group.members.values():
            has_waited = self.end_join(member, refused_join(member.member_id, error))
            has_waited |= self.end_sync(member, SyncGroupResponse(error_code=error))
            if has_waited or member.member_id not in kept:
                self.expect_no_more(group, member.member_id)
        for member_id in group.pending_joins:
            self.expect_no_more(group, member_id)
        for kind in ("join", "sync", "hold"):
            self._timers.cancel((kind, group.group_id))

    def replace(self, group: Group, error: ErrorCode, kept: Container[str]) -> Callable[[], None]:
        """Make a group Dead, since another one replaces it. Return a function that restores the group.

        `kept`: the members that the other group has, too; it takes over their sessions. The function begins a
        new rebalance if one was under way.
        """
        state = group.state
        self.end_group(group, error, kept)
        group.expect_no_joins()
        group.forget_members()
        group.enter(GroupState.DEAD, self._clock.wall_ms())
        return partial(self._resume, group, state)

    def _resume(self, group: Group, state: GroupState) -> None:
        group.charge_members()
        self.take_over(group)
        is_empty = state is GroupState.EMPTY
        group.enter(GroupState.EMPTY if is_empty else GroupState.STABLE, self._clock.wall_ms())
        if state in (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE):
            self.prepare(group, "its conversion was not written")

    # --- sessions

    def keep_alive(self, group: Group, member: Member, timeout_ms: int | None = None) -> None:
        """Restart the member's session. `timeout_ms` replaces its session timeout if given."""
        patience_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        self.expect(group, member.member_id, patience_ms)

    def take_over(self, group: Group) -> None:
        """Continue the sessions that the members have in a consumer group; start those that are missing."""
        for member in group.members.values():
            expire = partial(self._expire_member, group, member.member_id)
            if not self._timers.pass_on(("member", group.group_id, member.member_id), expire):
                self.keep_alive(group, member)

    def expect(self, group: Group, member_id: str, timeout_ms: int) -> None:
        """Set a timer that removes the member or the pending id if its client sends no request in time."""
        self._timers.set(
            ("member", group.group_id, member_id),
            self._clock.monotonic_ms() + timeout_ms,
            partial(self._expire_member, group, member_id),
        )

    def expect_no_more(self, group: Group, member_id: str) -> None:
        self._timers.cancel(("member", group.group_id, member_id))

    def _expire_member(self, group: Group, member_id: str) -> None:
        if member_id in group.pending_joins:
            log.info("group %.255s: %s was given an id and did not join", group.group_id, member_id)
            group.remove(member_id)
            self.complete_join_if_all_are_there(group)
            return
        member = group.members.get(member_id)
        if member is None or member.is_alive_without_heartbeats:
            return
        log.info("group %.255s: the session of %s has expired; it is removed", group.group_id, member_id)
        self.remove_and_update(group, member, f"the session of {member_id} has expired")

    def remove_and_update(self, group: Group, member: Member, reason: str) -> None:
        self.remove(group, member)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.rebalance_or_complete(group, reason)
        else:
            self.complete_join_if_all_are_there(group)

    def remove(self, group: Group, member: Member) -> None:
        """Remove a member. Its waiting requests get UNKNOWN_MEMBER_ID, so that the client rejoins."""
        self.end_join(member, refused_join(NO_MEMBER, ErrorCode.UNKNOWN_MEMBER_ID))
        self.end_sync(member, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        self.expect_no_more(group, member.member_id)
        group.remove(member.member_id)

    # --- the join phase

    def rebalance_or_complete(self, group: Group, reason: str) -> None:
        if group.can_rebalance:
            self.prepare(group, reason)
        else:
            self.complete_join_phase_if_due(group)

    def prepare(self, group: Group, reason: str) -> None:
        """Begin a rebalance. The answers to heartbeats then ask all members to rejoin."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.reset_assignment(group, ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_syncs.clear()
        self._timers.cancel(("sync", group.group_id))
        is_first = group.state is GroupState.EMPTY
        log.info(
            "group %.255s: preparing to rebalance from %s, generation %d (%s)",
            group.group_id,
            group.state.value,
            group.generation,
            reason,
        )
        if is_first:
            delay_ms = self._config.group_initial_rebalance_delay_ms
            self._delay_first_join(group, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
        group.enter(GroupState.PREPARING_REBALANCE, self._clock.wall_ms())
        if not is_first:
            self._end_join_after(group)
            self.complete_join_if_all_are_there(group)

    def _end_join_after(self, group: Group) -> None:
        at = self._clock.monotonic_ms() + group.rebalance_timeout_ms
        self._timers.set(("join", group.group_id), at, partial(self.complete_join, group))

    def _delay_first_join(self, group: Group, delay_ms: int, remaining_ms: int) -> None:
        self._timers.set(
            ("join", group.group_id),
            self._clock.monotonic_ms() + delay_ms,
            partial(self._first_join_delayed, group, delay_ms, remaining_ms),
        )

    def _first_join_delayed(self, group: Group, delay_ms: int, remaining_ms: int) -> None:
        """End the first join phase, or delay its end again if a member has joined and time remains."""
        if not (group.member_joined_meanwhile and remaining_ms):
            self.complete_join(group)
            return
        group.member_joined_meanwhile = False
        next_ms = min(self._config.group_initial_rebalance_delay_ms, remaining_ms)
        self._delay_first_join(group, next_ms, max(remaining_ms - delay_ms, 0))

    def complete_join_if_all_are_there(self, group: Group) -> None:
        is_held = ("hold", group.group_id) in self._timers
        if group.state is GroupState.PREPARING_REBALANCE and group.all_have_joined and not is_held:
            self.complete_join(group)

    def complete_join_phase_if_due(self, group: Group) -> None:
        """Complete the join phase if all members have joined. A first rebalance waits for its full delay."""
        if group.previous_state is not GroupState.EMPTY:
            self.complete_join_if_all_are_there(group)

    def complete_join(self, group: Group) -> None:
        """End the join phase: all members have joined, or time is up. Remove absent dynamic members."""
        if group.state is not GroupState.PREPARING_REBALANCE:
            return
        self._timers.cancel(("join", group.group_id))
        for member in list(group.members.values()):
            if member.awaits_join is None and member.instance_id is None:
                log.info("group %.255s: %s did not rejoin and is removed", group.group_id, member.member_id)
                self.remove(group, member)
        if group.members and not group.elect_leader_who_joined():
            log.info("group %.255s: no member rejoined, waiting until the sessions expire", group.group_id)
            self._end_join_after(group)
            return
        group.member_joined_meanwhile = False
        group.next_generation(self._clock.wall_ms())
        if not group.members:
            log.info("group %.255s: empty in generation %d", group.group_id, group.generation)
            self._write_empty(group)
            return
        log.info(
            "group %.255s: generation %d has %d member(s)",
            group.group_id,
            group.generation,
            len(group.members),
        )
        for member in list(group.members.values()):
            group.pending_syncs.add(member.member_id)
            member.is_new = False
            self.end_join(member, self.joined(group, member))
            self.keep_alive(group, member)
        self._timers.set(
            ("sync", group.group_id),
            self._clock.monotonic_ms() + group.rebalance_timeout_ms,
            partial(self._expire_syncs, group, group.generation),
        )

    def joined(self, group: Group, member: Member) -> JoinGroupResponse:
        """Return the member's JoinGroup response. The leader's response lists all members."""
        return JoinGroupResponse(
            generation_id=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol,
            leader=group.leader or NO_MEMBER,
            member_id=member.member_id,
            members=group.for_leader() if group.leader == member.member_id else [],
        )

    def _write_empty(self, group: Group) -> None:
        """Write the record of a group that is empty now. If this fails, a restart restores its members."""

        def written(error: ErrorCode) -> None:
            if error:
                log.warning("group %.255s: its empty state was not written: %s", group.group_id, error.name)

        self._queue.append(group.group_id, [self.entry(group, {})], written)

    def entry(self, group: Group, assignments: dict[str, bytes]) -> Entry:
        """Return the group's record for this generation. `assignments` is by member id."""
        return GroupKey(group.group_id), group.to_record(assignments, self._clock.wall_ms())

    # --- the sync phase

    def synced(self, group: Group, member_id: str) -> None:
        """Note that the member has sent its SyncGroup."""
        group.pending_syncs.discard(member_id)
        if not group.pending_syncs:
            self._timers.cancel(("sync", group.group_id))

    def store_assignment(self, group: Group, assignments: dict[str, bytes]) -> None:
        """Write the leader's assignments. Apply them when durable, unless the generation has changed."""
        generation = group.generation

        def written(error: ErrorCode) -> None:
            if group.state is not GroupState.COMPLETING_REBALANCE or group.generation != generation:
                return
            if error:
                self._hold_join(group, error)
                self.reset_assignment(group, response_error(error))
                self.rebalance_or_complete(group, f"the assignment was not written: {error.name}")
                return
            group.failed_writes = 0
            self._timers.cancel(("hold", group.group_id))
            for member in group.members.values():
                group.assign(member, assignments.get(member.member_id, b""))
            self._propagate(group)
            group.enter(GroupState.STABLE, self._clock.wall_ms())

        self._queue.append(group.group_id, [self.entry(group, assignments)], written)

    def _hold_join(self, group: Group, error: ErrorCode) -> None:
        """Delay the end of the next join phase, because the assignments could not be written."""
        wait_ms = min(WRITE_RETRY_MS << min(group.failed_writes, 8), WRITE_RETRY_MAX_MS)
        group.failed_writes += 1
        log.warning(
            "group %.255s: its assignment was not written: %s. It is tried again in %g s",
            group.group_id,
            error.name,
            wait_ms / 1000,
        )
        self._timers.set(
            ("hold", group.group_id),
            self._clock.monotonic_ms() + wait_ms,
            partial(self.complete_join_if_all_are_there, group),
        )

    def _propagate(self, group: Group) -> None:
        for member in group.members.values():
            response = SyncGroupResponse(
                protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
            )
            if self.end_sync(member, response):
                self.keep_alive(group, member)

    def reset_assignment(self, group: Group, error: ErrorCode) -> None:
        for member in group.members.values():
            group.assign(member, b"")
            if self.end_sync(member, SyncGroupResponse(error_code=error)):
                self.keep_alive(group, member)

    def _expire_syncs(self, group: Group, generation: int) -> None:
        """Remove members that sent no SyncGroup in this generation, and begin a rebalance."""
        late = [group.members[member_id] for member_id in group.pending_syncs if member_id in group.members]
        if group.generation != generation or not late or not group.can_rebalance:
            return
        for member in late:
            self.remove(group, member)
        names = shown([member.member_id for member in late])
        log.info("group %.255s: no SyncGroup came from %s", group.group_id, names)
        self.prepare(group, f"no SyncGroup came from {names}")
