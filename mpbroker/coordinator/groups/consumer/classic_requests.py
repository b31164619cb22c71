"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup of a consumer group: members that use the classic protocol.

(Kafka: GroupMetadataManager.classicGroupJoinToConsumerGroup, classicGroupSyncToConsumerGroup,
classicGroupHeartbeatToConsumerGroup, classicGroupLeaveToConsumerGroup.) The generation of such a member is
its epoch, and no client assigns partitions. A member that has to give up partitions, or may take more, is
asked to join again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from mpbroker.coordinator.groups.classic.join_group import Join
from mpbroker.coordinator.groups.classic.rebalances import Rebalances, refused_join
from mpbroker.coordinator.groups.consumer.changes import Changes, Writer
from mpbroker.coordinator.groups.consumer.downgrade import Downgrade
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup, ConsumerGroupState, Member
from mpbroker.coordinator.groups.consumer.group_lookup import GroupLookup
from mpbroker.coordinator.groups.consumer.member_request import MemberRequest
from mpbroker.coordinator.groups.consumer.member_steps import MemberSteps
from mpbroker.coordinator.groups.consumer.members import ConsumerGroupMembers
from mpbroker.coordinator.groups.consumer.records import ClassicMember, MemberMetadata, MemberState
from mpbroker.coordinator.groups.consumer.topic_metadata import TopicMetadata
from mpbroker.coordinator.groups.log_text import shown
from mpbroker.coordinator.runtime.requests import RequestContext
from mpbroker.protocol.consumer_protocol import (
    CONSUMER_PROTOCOL,
    NO_MEMBER,
    Subscription,
    decode_subscription,
    encode_assignment,
    version_of,
)
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    Message,
    SyncGroupRequest,
    SyncGroupResponse,
)
from mpbroker.protocol.numbers import FIRST_VERSION_WITH_REQUIRED_ID
from mpbroker.protocol.wire import MalformedMessage

log = logging.getLogger("mpbroker.coordinator.groups")


@dataclass(eq=False)
class ClassicRequests:
    """Serves JoinGroup, SyncGroup, Heartbeat and LeaveGroup of consumer groups.

    `_new_id` returns the random part of a member id.
    """

    _lookup: GroupLookup
    _members: ConsumerGroupMembers
    _steps: MemberSteps
    _downgrade: Downgrade
    _rebalances: Rebalances
    _topics: TopicMetadata
    _writer: Writer
    _new_id: Callable[[], str]

    # --- JoinGroup

    def join(
        self, group: ConsumerGroup, context: RequestContext, request: JoinGroupRequest
    ) -> Message | None:
        """Serve a JoinGroup. The answer is sent when the state that it reports is durable."""
        try:
            with Changes(group) as changes:
                return self._join(changes, Join(context, request))
        except ApiError as error:
            return refused_join(request.member_id, error.code)

    def _join(self, changes: Changes, join: Join) -> Message | None:
        group, request, instance_id = changes.group, join.request, join.request.group_instance_id
        member_id = request.member_id or join.new_member_id(self._new_id())
        held = group.members.get(group.static_members.get(instance_id or "", member_id))
        subscription = self._check(group, join, member_id if held is None else held.member_id)
        is_unknown = request.member_id == NO_MEMBER
        if is_unknown and instance_id is None and join.context.version >= FIRST_VERSION_WITH_REQUIRED_ID:
            return refused_join(member_id, ErrorCode.MEMBER_ID_REQUIRED)
        downgrades = (
            held is not None
            and not held.is_classic
            and self._downgrade.is_due(group, [held], len(group.members))
        )
        owned = {topic: set(numbers) for topic, numbers in self._topics.by_id(subscription.owned).items()}
        if held is None and owned and not is_unknown:
            # The client has been removed and does not know it. It must give up all first.
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self._find_member(changes, join, member_id)
        asked = MemberRequest(join.context, changes, member, member, owned)
        self._steps.subscribe(asked, _metadata_of(member.metadata, join, subscription))
        if downgrades:
            return self._join_classic_group(asked, join)
        self._steps.assign(asked)
        self._members.keep_alive(group.group_id, asked.member)
        self._members.await_sync(group.group_id, asked.member)
        return self._joined(asked, join.protocols[0][0])

    def _check(self, group: ConsumerGroup, join: Join, member_id: str) -> Subscription:
        """Return what the client subscribes to. Raises ApiError if it cannot join."""
        request, protocols = join.request, join.protocols
        try:
            # All protocols have the same subscription.
            subscription = decode_subscription(protocols[0][1]) if protocols else None
        except MalformedMessage as error:
            log.info("group %.255s: a client cannot join: %s", group.group_id, error)
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR) from error
        self._lookup.check_room(group, member_id)
        if subscription is None or not group.supports(request.protocol_type, dict(protocols)):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        return subscription

    def _find_member(self, changes: Changes, join: Join, member_id: str) -> Member:
        """Return the member, a new one if it joins. Raises ApiError if it is unknown or fenced."""
        group, request, instance_id = changes.group, join.request, join.request.group_instance_id
        if instance_id is not None and request.member_id != NO_MEMBER:
            return group.check_instance(member_id, instance_id)
        held = None if instance_id is None else group.static_member(instance_id)
        if held is not None:
            return self._members.replace(changes, held, member_id)
        log.info("group %.255s: %s joins by the classic protocol", group.group_id, shown([member_id]))
        return self._members.find_or_add(changes, member_id)

    def _join_classic_group(self, asked: MemberRequest, join: Join) -> Message | None:
        """Make the group a classic one: the client replaces the last member of the consumer protocol.

        If a partition has to move, a rebalance begins, and the response waits for its end.
        """
        group, waiter = asked.group, asked.context.waiter
        if group.target.epoch >= group.epoch:
            self._steps.reconcile(asked)
        is_stable = group.state is ConsumerGroupState.STABLE
        epoch, member_id = asked.member.epoch, asked.member.member_id
        self._members.keep_alive(group.group_id, asked.member)
        converted = self._downgrade.convert(asked.changes)
        if is_stable:
            response = self._response(member_id, epoch, converted.protocol or "")
            return self._writer.answer(asked.changes, waiter, response, _refused_join)
        self._rebalances.wait_for_join(converted, converted.members[member_id], waiter)
        self._writer.write(asked.changes, lambda _error: None)
        self._rebalances.prepare(converted, f"it was a consumer group: {join.reason}")
        return None

    def _joined(self, asked: MemberRequest, protocol: str) -> Message | None:
        response = self._response(asked.member.member_id, asked.member.epoch, protocol)
        return self._writer.answer(asked.changes, asked.context.waiter, response, _refused_join)

    def _response(self, member_id: str, generation: int, protocol: str) -> JoinGroupResponse:
        return JoinGroupResponse(
            generation_id=generation,
            protocol_type=CONSUMER_PROTOCOL,
            protocol_name=protocol,
            member_id=member_id,
        )

    # --- SyncGroup and Heartbeat

    def sync(
        self, group: ConsumerGroup, context: RequestContext, request: SyncGroupRequest
    ) -> Message | None:
        """Return the member's assignment, None if the answer is sent later. Raises ApiError."""
        member = self._member(group, request.member_id, request.group_instance_id, request.generation_id)
        classic = member.metadata.classic
        assert classic is not None
        protocol, metadata = classic.protocols[0]
        for asked, ours in ((request.protocol_type, CONSUMER_PROTOCOL), (request.protocol_name, protocol)):
            if asked is not None and asked != ours:
                raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if member.epoch < group.target.epoch and member.current.state is not MemberState.UNREVOKED_PARTITIONS:
            self._members.await_join(group.group_id, member)
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._members.synced(group.group_id, member.member_id)
        self._members.keep_alive(group.group_id, member)
        parts = self._topics.by_name(member.current.assigned)
        response = SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=encode_assignment(version_of(metadata), parts),
        )
        return self._writer.answer(
            Changes(group), context.waiter, response, lambda error: SyncGroupResponse(error_code=error)
        )

    def heartbeat(
        self, group: ConsumerGroup, context: RequestContext, request: HeartbeatRequest
    ) -> Message | None:
        """Extend the member's session, and ask it to join again if its assignment must change.

        If all members use the classic protocol, no ConsumerGroupHeartbeat comes. So this request, too, begins
        epochs and computes targets. (Kafka leaves that to the next JoinGroup.) Raises ApiError.
        """
        member = self._member(group, request.member_id, request.group_instance_id, request.generation_id)
        self._members.keep_alive(group.group_id, member)
        with Changes(group) as changes:
            self._steps.refresh(changes)
        state, response = member.current.state, HeartbeatResponse()
        if (
            member.epoch < group.target.epoch
            or state is MemberState.UNREVOKED_PARTITIONS
            or (state is MemberState.UNRELEASED_PARTITIONS and not group.awaits_release(member))
        ):
            self._members.await_join(group.group_id, member)
            response.error_code = ErrorCode.REBALANCE_IN_PROGRESS
        if not changes.entries:
            return response
        return self._writer.answer(
            changes, context.waiter, response, lambda error: HeartbeatResponse(error_code=error)
        )

    def _member(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> Member:
        """Return the member of a request. Raises ApiError."""
        member = (
            group.member(member_id) if instance_id is None else group.check_instance(member_id, instance_id)
        )
        if not member.is_classic:
            raise ApiError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id:.255s} does not use the classic protocol."
            )
        if generation != member.epoch:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        return member

    # --- LeaveGroup

    def leave(
        self, group: ConsumerGroup, context: RequestContext, request: LeaveGroupRequest
    ) -> Message | None:
        """Remove members, which may use either protocol. The response has an error per member."""
        asked = list({(m.member_id, m.group_instance_id): m for m in request.members}.values())
        results = [LeaveGroupResponse.MemberResponse(m.member_id, m.group_instance_id) for m in asked]
        left: dict[str, Member] = {}
        for identity, result in zip(asked, results, strict=True):
            try:
                member = _leaving(group, identity)
                left[member.member_id] = member
            except ApiError as error:
                result.error_code = error.code
        response = LeaveGroupResponse(members=results)
        if not left:
            return response
        names, reason = shown(list(left)), shown([asked[0].reason or "not provided"])
        log.info("group %.255s: %s left (%s)", group.group_id, names, reason)
        with Changes(group) as changes:
            self._members.remove(changes, list(left.values()))
        return self._writer.answer(
            changes, context.waiter, response, lambda error: LeaveGroupResponse(error_code=error)
        )


def _leaving(group: ConsumerGroup, identity: LeaveGroupRequest.MemberIdentity) -> Member:
    """Return a member, which may be named by its instance id alone. Raises ApiError if it is unknown."""
    member_id, instance_id = identity.member_id, identity.group_instance_id
    if instance_id is None:
        return group.member(member_id)
    if member_id == NO_MEMBER:
        member_id = group.static_members.get(instance_id, NO_MEMBER)
    return group.check_instance(member_id, instance_id)


def _refused_join(error: ErrorCode) -> JoinGroupResponse:
    return refused_join(NO_MEMBER, error)


def _metadata_of(known: MemberMetadata, join: Join, subscription: Subscription) -> MemberMetadata:
    """Return a member's metadata after a JoinGroup. The member has no pattern any more."""
    return MemberMetadata(
        known.instance_id if join.request.group_instance_id is None else join.request.group_instance_id,
        known.rack_id if subscription.rack_id is None else subscription.rack_id,
        join.context.client_id,
        join.context.client_host,
        subscription.topics,
        "",
        join.rebalance_timeout_ms,
        known.assignor,
        ClassicMember(join.request.session_timeout_ms, join.protocols),
    )
