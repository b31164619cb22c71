"""SyncGroup, Heartbeat and LeaveGroup: the requests of a group's members.

(Kafka: GroupMetadataManager.classicGroupSync, classicGroupHeartbeat, classicGroupLeave.)
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.groups.classic.group import Group, GroupState
from mpbroker.coordinator.groups.classic.rebalances import Rebalances
from mpbroker.coordinator.groups.group_manager import GroupMetadataManager
from mpbroker.coordinator.groups.log_text import shown
from mpbroker.coordinator.runtime.requests import RequestContext
from mpbroker.protocol.consumer_protocol import NO_MEMBER
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

log = logging.getLogger("mpbroker.coordinator.groups")


@dataclass(eq=False)
class Members:
    _config: BrokerConfig
    _manager: GroupMetadataManager
    _rebalances: Rebalances

    def sync(self, context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse | None:
        """Return the member's assignment, None if the answer is sent later. Raises ApiError."""
        group = self._manager.live(request.group_id)
        if group.state is GroupState.EMPTY:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        for asked, ours in (
            (request.protocol_type, group.protocol_type),
            (request.protocol_name, group.protocol),
        ):
            if asked is not None and ours is not None and asked != ours:
                raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        # Only the assignments of members are kept.
        assignments = {a.member_id: a.assignment for a in request.assignments if a.member_id in group.members}
        is_leader = group.leader == member.member_id
        if is_leader and group.state is GroupState.COMPLETING_REBALANCE:
            self._check_memory(group, assignments)
        self._rebalances.synced(group, member.member_id)
        if group.state is GroupState.STABLE:
            return SyncGroupResponse(
                protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
            )
        self._rebalances.wait_for_sync(group, member, context.waiter)
        if is_leader:
            self._rebalances.store_assignment(group, assignments)
        return None

    def _check_memory(self, group: Group, assignments: dict[str, bytes]) -> None:
        """Raise ApiError if the members would take more than group.max.members.bytes with the assignments."""
        most = self._config.group_max_members_bytes
        more = sum(map(len, assignments.values()))
        more -= sum(len(member.assignment) for member in group.members.values())
        if more > 0 and self._manager.memory.used_bytes + more > most:
            log.warning(
                "group %.255s: its assignment is refused: the members of all groups would take more than "
                "group.max.members.bytes=%d",
                group.group_id,
                most,
            )
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED)

    def heartbeat(self, _context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        """Extend the member's session. Raises ApiError, for instance to make the member rejoin."""
        try:
            group = self._manager.live(request.group_id)
        except ApiError as error:
            if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                # The member cannot be known yet, but it is alive.
                return HeartbeatResponse()
            raise
        member = group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        self._rebalances.keep_alive(group, member)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        return HeartbeatResponse()

    def leave(self, _context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """Remove members. The response has an error per member. Raises ApiError if the request fails."""
        # Each once: a request may name the same member very often.
        asked = list({(m.member_id, m.group_instance_id): m for m in request.members}.values())
        results = [LeaveGroupResponse.MemberResponse(m.member_id, m.group_instance_id) for m in asked]
        try:
            group = self._manager.live(request.group_id)
        except ApiError as error:
            if error.code is not ErrorCode.UNKNOWN_MEMBER_ID:
                raise
            for result in results:
                result.error_code = ErrorCode.UNKNOWN_MEMBER_ID
            return LeaveGroupResponse(members=results)
        for identity, result in zip(asked, results, strict=True):
            try:
                self._leave_one(group, identity)
            except ApiError as error:
                result.error_code = error.code
        left = [r.member_id or f"instance {r.group_instance_id}" for r in results if not r.error_code]
        if not left:
            return LeaveGroupResponse(members=results)
        # One line: a request may remove very many members.
        names, reason = shown(left), shown([asked[0].reason or "not provided"])
        log.info("group %.255s: %s left (%s)", group.group_id, names, reason)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._rebalances.rebalance_or_complete(group, f"{names} left")
        else:
            self._rebalances.complete_join_phase_if_due(group)
        return LeaveGroupResponse(members=results)

    def _leave_one(self, group: Group, identity: LeaveGroupRequest.MemberIdentity) -> None:
        """Remove a member, which may be named by its instance id alone. Raises ApiError if it is unknown."""
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if member_id == NO_MEMBER and instance_id is not None:
            member_id = group.static_members.get(instance_id, NO_MEMBER)
        if member_id in group.pending_joins:
            self._rebalances.expect_no_more(group, member_id)
            group.remove(member_id)
            return
        self._rebalances.remove(group, group.member(member_id, instance_id))
