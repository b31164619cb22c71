"""The requests of the classic protocol, which both kinds of groups serve. (Kafka: GroupMetadataManager.)"""

from __future__ import annotations

from dataclasses import dataclass

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.groups.classic.join_group import JoinGroup
from mpbroker.coordinator.groups.classic.members import Members
from mpbroker.coordinator.groups.consumer.classic_requests import ClassicRequests
from mpbroker.coordinator.groups.consumer.downgrade import Downgrade
from mpbroker.coordinator.groups.group_manager import GroupMetadataManager
from mpbroker.coordinator.runtime.requests import RequestContext
from mpbroker.protocol.consumer_protocol import NO_MEMBER
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    Message,
    SyncGroupRequest,
)


@dataclass(eq=False)
class ClassicProtocol:
    """Passes each request to the code for its group's protocol. A missing group counts as a classic one."""

    _config: BrokerConfig
    _manager: GroupMetadataManager
    _join: JoinGroup
    _classic: Members
    _consumer: ClassicRequests
    _downgrade: Downgrade

    def join(self, context: RequestContext, request: JoinGroupRequest) -> Message | None:
        """Serve a JoinGroup. An empty consumer group becomes a classic one. Raises ApiError."""
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        shortest_ms = self._config.group_min_session_timeout_ms
        longest_ms = self._config.group_max_session_timeout_ms
        if not shortest_ms <= request.session_timeout_ms <= longest_ms:
            raise ApiError(ErrorCode.INVALID_SESSION_TIMEOUT)
        group = self._manager.find_consumer(request.group_id)
        if group is not None:
            if not group.is_empty:
                return self._consumer.join(group, context, request)
            if request.member_id != NO_MEMBER:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            self._downgrade.replace_empty(group)
        self._join.join(context, request)
        return None

    def sync(self, context: RequestContext, request: SyncGroupRequest) -> Message | None:
        group = self._manager.find_consumer(request.group_id)
        if group is not None:
            return self._consumer.sync(group, context, request)
        return self._classic.sync(context, request)

    def heartbeat(self, context: RequestContext, request: HeartbeatRequest) -> Message | None:
        group = self._manager.find_consumer(request.group_id)
        if group is not None:
            return self._consumer.heartbeat(group, context, request)
        return self._classic.heartbeat(context, request)

    def leave(self, context: RequestContext, request: LeaveGroupRequest) -> Message | None:
        group = self._manager.find_consumer(request.group_id)
        if group is not None:
            return self._consumer.leave(group, context, request)
        return self._classic.leave(context, request)
