"""JoinGroup: adds clients to a group, gives them member ids, and starts rebalances.

(Kafka: GroupMetadataManager.classicGroupJoinToClassicGroup; KIP-345 static members, KIP-394 member ids,
KIP-814 static leaders that keep their assignment.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.groups.classic.group import Group, GroupState, Member, Protocols, size_of
from mpbroker.coordinator.groups.classic.rebalances import (
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    Rebalances,
    refused_join,
)
from mpbroker.coordinator.groups.group_manager import GroupMetadataManager
from mpbroker.coordinator.groups.member_memory import MEMBER_BYTES
from mpbroker.coordinator.groups.offsets import Offsets
from mpbroker.coordinator.groups.records import Entry
from mpbroker.coordinator.runtime.requests import RequestContext, Waiter, response_error
from mpbroker.coordinator.runtime.write_queue import WriteQueue
from mpbroker.protocol.consumer_protocol import NO_MEMBER
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import JoinGroupRequest, Message
from mpbroker.protocol.numbers import FIRST_VERSION_WITH_REQUIRED_ID

FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT: Final = 9
REASON_LENGTH_MAX: Final = 255
# A member id is a string of the protocol, which has a limit.
MEMBER_NAME_LENGTH_MAX: Final = 1024

log = logging.getLogger("mpbroker.coordinator.groups")


@dataclass(frozen=True)
class Join:
    """A JoinGroup request with its context."""

    context: RequestContext
    request: JoinGroupRequest

    @property
    def protocols(self) -> Protocols:
        """Return the request's protocols. Of protocols with the same name, return only the first."""
        found: dict[str, bytes] = {}
        for one in self.request.protocols:
            found.setdefault(one.name, one.metadata)
        return tuple(found.items())

    @property
    def rebalance_timeout_ms(self) -> int:
        """The rebalance timeout; in version 0, which lacks that field, the session timeout."""
        asked = self.request.rebalance_timeout_ms
        return self.request.session_timeout_ms if asked < 0 else asked

    def new_member_id(self, random_part: str) -> str:
        """Return a member id for a client that has none yet."""
        instance_id = self.request.group_instance_id
        name = self.context.client_id if instance_id is None else instance_id
        return f"{name[:MEMBER_NAME_LENGTH_MAX]}-{random_part}"

    @property
    def reason(self) -> str:
        return (self.request.reason or "not provided")[:REASON_LENGTH_MAX]


@dataclass(eq=False)
class JoinGroup:
    """Serves JoinGroup requests. `_new_id` returns the random part of a member id."""

    _config: BrokerConfig
    _queue: WriteQueue[Entry]
    _manager: GroupMetadataManager
    _offsets: Offsets
    _rebalances: Rebalances
    _new_id: Callable[[], str]
    _answer: Callable[[Waiter, Message], None]

    def join(self, context: RequestContext, request: JoinGroupRequest) -> None:
        """Serve a request. The answer is sent at once or when the join phase ends. Raises ApiError."""
        group, join = self._group_for(request), Join(context, request)
        if group.state is GroupState.DEAD:
            self._refuse(join, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif not self._has_room(group, request.member_id) or not self._has_memory(group, join):
            self._turn_away(group, join)
        elif not group.supports(request.protocol_type, [p.name for p in request.protocols]):
            self._refuse(join, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif request.member_id != NO_MEMBER:
            self._join_with_id(group, join)
        elif request.group_instance_id in group.static_members:
            self._replace(group, join, group.members[group.static_members[request.group_instance_id]])
        else:
            self._join_without_id(group, join)
        never_used = group.generation == 0 and not group.members and not group.pending_joins
        if never_used and group.state is GroupState.EMPTY and not self._offsets.has_any(group.group_id):
            self._manager.remove(group)

    def _group_for(self, request: JoinGroupRequest) -> Group:
        """Return the request's group; create it if the client has no member id yet. Raises ApiError."""
        self._manager.partitions.check_loaded(request.group_id)
        group = self._manager.find(request.group_id)
        if group is None:
            if request.member_id != NO_MEMBER:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            group = self._manager.new_group(request.group_id)
            self._manager.add(group)
        assert isinstance(group, Group), "requests to consumer groups are served elsewhere"
        return group

    def _refuse(self, join: Join, error: ErrorCode) -> None:
        self._answer(join.context.waiter, refused_join(join.request.member_id, error))

    def _turn_away(self, group: Group, join: Join) -> None:
        member = group.members.get(join.request.member_id)
        if member is not None:
            self._rebalances.remove(group, member)
        else:
            self._rebalances.expect_no_more(group, join.request.member_id)
            group.remove(join.request.member_id)
        self._answer(join.context.waiter, refused_join(NO_MEMBER, ErrorCode.GROUP_MAX_SIZE_REACHED))

    def _has_room(self, group: Group, member_id: str) -> bool:
        """Return whether the group has room for the member. In a rebalance, only rejoined members count."""
        most = self._config.group_max_size
        member = group.members.get(member_id)
        if group.state is GroupState.EMPTY:
            return True
        if group.state is GroupState.PREPARING_REBALANCE:
            is_counted = member is not None and member.awaits_join is not None
            return is_counted or group.awaiting_join < most
        return member is not None or len(group.members) < most

    def _has_memory(self, group: Group, join: Join) -> bool:
        """Return whether the member fits into the memory bound. A rejoin that adds no bytes always fits."""
        instance_id = join.request.group_instance_id
        member_id = group.static_members.get(instance_id or "", join.request.member_id)
        known = group.members.get(member_id)
        more = size_of(join.protocols)
        if known is not None:
            more -= size_of(known.protocols)
        elif member_id not in group.pending_joins:
            more += MEMBER_BYTES
        most = self._config.group_max_members_bytes
        if more <= 0 or self._manager.memory.used_bytes + more <= most:
            return True
        log.warning(
            "group %.255s: a member is refused: the members of all groups would take more than "
            "group.max.members.bytes=%d",
            group.group_id,
            most,
        )
        return False

    # --- without a member id

    def _join_without_id(self, group: Group, join: Join) -> None:
        member_id = join.new_member_id(self._new_id())
        if join.request.group_instance_id is not None:
            self._add(group, join, member_id)
        elif join.context.version < FIRST_VERSION_WITH_REQUIRED_ID:
            self._add(group, join, member_id, knows_its_id=False)
        else:
            group.expect(member_id)
            self._rebalances.expect(group, member_id, join.request.session_timeout_ms)
            self._answer(join.context.waiter, refused_join(member_id, ErrorCode.MEMBER_ID_REQUIRED))

    def _add(self, group: Group, join: Join, member_id: str, *, knows_its_id: bool = True) -> None:
        request = join.request
        member = Member(
            member_id,
            request.group_instance_id,
            join.context.client_id,
            join.context.client_host,
            join.rebalance_timeout_ms,
            request.session_timeout_ms,
            join.protocols,
            is_new=True,
            knows_its_id=knows_its_id,
        )
        if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
            group.member_joined_meanwhile = True
        group.add(member, request.protocol_type)
        self._rebalances.wait_for_join(group, member, join.context.waiter)
        self._rebalances.keep_alive(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalances.rebalance_or_complete(group, f"{member_id} joins: {join.reason}")

    # --- static members that come back

    def _replace(self, group: Group, join: Join, member: Member) -> None:
        """Let a restarted static member replace its old member id, which is fenced."""
        old_id, new_id, old_leader = member.member_id, join.new_member_id(self._new_id()), group.leader
        log.info(
            "group %.255s: instance %s: member %s is replaced by %s",
            group.group_id,
            member.instance_id,
            old_id,
            new_id,
        )
        rebalances, request = self._rebalances, join.request
        rebalances.end_join(member, refused_join(old_id, ErrorCode.FENCED_INSTANCE_ID))
        rebalances.fence_sync(member)
        rebalances.expect_no_more(group, old_id)
        before = member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms
        group.replace_static(member, new_id)
        group.update(member, join.protocols, join.rebalance_timeout_ms, request.session_timeout_ms)
        rebalances.wait_for_join(group, member, join.context.waiter)
        rebalances.keep_alive(group, member)
        if group.state is GroupState.STABLE and group.protocol == group.select_protocol():
            self._store_replaced(group, join, member, old_id, old_leader, before)
        elif group.state is GroupState.PREPARING_REBALANCE:
            rebalances.complete_join_phase_if_due(group)
        else:
            rebalances.prepare(group, f"instance {member.instance_id} rejoins: {join.reason}")

    def _store_replaced(
        self,
        group: Group,
        join: Join,
        member: Member,
        old_id: str,
        old_leader: str | None,
        before: tuple[Protocols, int, int],
    ) -> None:
        """Write the group with the new member id, without a rebalance; if this fails, restore the old id."""
        new_id = member.member_id

        def written(error: ErrorCode) -> None:
            is_replaced = group.members.get(new_id) is not member or member.awaits_join != join.context.waiter
            if is_replaced or group.state is not GroupState.STABLE:
                return
            if error:
                code = response_error(error)
                response = self._rebalances.joined(group, member)
                response.error_code, response.member_id = code, NO_MEMBER
                response.leader, response.members = old_leader or NO_MEMBER, []
                self._rebalances.end_join(member, response)
                self._rebalances.expect_no_more(group, new_id)
                group.replace_static(member, old_id)
                group.update(member, *before)
                self._rebalances.keep_alive(group, member)
                return
            response = self._rebalances.joined(group, member)
            if join.context.version >= FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT:
                response.skip_assignment = group.leader == new_id
            else:
                # The client must not act as leader: it would assign partitions without a rebalance.
                response.leader, response.members = old_leader or NO_MEMBER, []
            self._rebalances.end_join(member, response)

        assignments = {m.member_id: m.assignment for m in group.members.values()}
        self._queue.append(group.group_id, [self._rebalances.entry(group, assignments)], written)

    # --- with a member id

    def _join_with_id(self, group: Group, join: Join) -> None:
        request = join.request
        if request.member_id in group.pending_joins and request.group_instance_id is None:
            self._add(group, join, request.member_id)
            return
        try:
            member = group.check_member(request.member_id, request.group_instance_id)
        except ApiError as error:
            self._refuse(join, error.code)
            return
        changed = member.protocols != join.protocols
        if group.state is GroupState.PREPARING_REBALANCE:
            self._rejoin(group, join, member, "during a rebalance")
        elif group.state is GroupState.EMPTY:
            self._refuse(join, ErrorCode.UNKNOWN_MEMBER_ID)
        elif changed:
            self._rejoin(group, join, member, "with other protocols")
        elif group.state is GroupState.STABLE and group.leader == member.member_id:
            # A leader that joins again wants a rebalance, for instance because a topic has grown.
            self._rejoin(group, join, member, "as leader")
        else:
            # The answer to its join was lost, or nothing has changed.
            response = self._rebalances.joined(group, member)
            if group.state is GroupState.STABLE:
                response.members = []
            self._answer(join.context.waiter, response)

    def _rejoin(self, group: Group, join: Join, member: Member, how: str) -> None:
        request = join.request
        group.update(member, join.protocols, join.rebalance_timeout_ms, request.session_timeout_ms)
        self._rebalances.wait_for_join(group, member, join.context.waiter)
        reason = f"{member.member_id} joins again {how}: {join.reason}"
        self._rebalances.rebalance_or_complete(group, reason)
