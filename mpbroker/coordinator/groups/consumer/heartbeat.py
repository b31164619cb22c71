"""ConsumerGroupHeartbeat: a member joins, says what it wants and has, learns what it gets, or leaves.

(Kafka: GroupMetadataManager.consumerGroupHeartbeat; KIP-848.) A heartbeat is a sequence of steps, in Kafka's
order. Each step sees what the steps before it have changed. If one raises ApiError, all is undone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.resource_config import GroupSettings
from mpbroker.coordinator.groups.classic.group import shown
from mpbroker.coordinator.groups.consumer.changes import Changes, Writer
from mpbroker.coordinator.groups.consumer.group import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroup,
    Member,
)
from mpbroker.coordinator.groups.consumer.group_lookup import GroupLookup
from mpbroker.coordinator.groups.consumer.members import ConsumerGroupMembers
from mpbroker.coordinator.groups.consumer.pattern_subscriptions import PatternSubscriptions
from mpbroker.coordinator.groups.consumer.reconciliation import Owned, Step
from mpbroker.coordinator.groups.consumer.records import (
    CurrentKey,
    EpochAssignment,
    EpochKey,
    GroupEpoch,
    MemberKey,
    MemberMetadata,
    PartitionMetadataKey,
)
from mpbroker.coordinator.groups.consumer.target_assignments import TargetAssignments
from mpbroker.coordinator.groups.consumer.topic_metadata import TopicMetadata
from mpbroker.coordinator.runtime.requests import Answers, RequestContext, response_error
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

FIRST_VERSION_WITH_CLIENT_MEMBER_ID: Final = 1
UNCHANGED: Final = -1

log = logging.getLogger("mpbroker.coordinator.groups")


@dataclass(eq=False)
class Heartbeat:
    """A heartbeat on its way through the steps.

    `member`: as the steps have left it. `before`: as it was when the heartbeat came. `bumps`: the epoch of
    the group must grow. `subscription_changed`: the member named other topics or another pattern.
    """

    context: RequestContext
    request: ConsumerGroupHeartbeatRequest
    changes: Changes
    member: Member
    before: Member
    bumps: bool = False
    subscription_changed: bool = False
    owned: Owned | None = field(init=False)

    def __post_init__(self) -> None:
        parts = self.request.topic_partitions
        self.owned = None if parts is None else {one.topic_id: set(one.partitions) for one in parts}

    @property
    def group(self) -> ConsumerGroup:
        return self.changes.group

    def read_member(self) -> None:
        """Look at the member again, after its records have changed."""
        self.member = self.group.members[self.member.member_id]


@dataclass(eq=False)
class ConsumerGroupHeartbeat:
    """Serves heartbeats. `_new_id` returns a member id."""

    _config: BrokerConfig
    _settings: Callable[[str], GroupSettings]
    _lookup: GroupLookup
    _members: ConsumerGroupMembers
    _patterns: PatternSubscriptions
    _targets: TargetAssignments
    _topics: TopicMetadata
    _writer: Writer
    _answers: Answers
    _new_id: Callable[[], str]

    def heartbeat(
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse | None:
        """Serve a heartbeat. The answer is sent when all that it says is durable."""
        changes = None
        try:
            check_request(request, context.version, self._config.consumer_assignors)
            changes = self._lookup.group_for(request.group_id, creates=request.member_epoch == JOIN_EPOCH)
            if request.member_epoch < JOIN_EPOCH:
                response = self._members.leave(changes, request)
            else:
                response = self._serve(context, request, changes)
        except ApiError as error:
            if changes is not None:
                changes.undo()
            return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
        except Exception:
            if changes is not None:
                changes.undo()
            raise
        if not changes.entries and not changes.group.unwritten:
            return response
        self._writer.write(changes, partial(self._answer, context, response), context.waiter)
        return None

    def _answer(
        self, context: RequestContext, response: ConsumerGroupHeartbeatResponse, error: ErrorCode
    ) -> None:
        if error:
            code = response_error(error)
            response = ConsumerGroupHeartbeatResponse(error_code=code, error_message=code.message)
        self._answers.answer(context.waiter, response)

    def _serve(
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest, changes: Changes
    ) -> ConsumerGroupHeartbeatResponse:
        self._check_room(changes.group, request)
        member = self._find_member(changes, request)
        beat = Heartbeat(context, request, changes, member, member)
        self._update_metadata(beat)
        self._patterns.update(beat)
        self._update_epoch(beat)
        self._targets.update(changes)
        self._reconcile(beat)
        self._members.keep_alive(request.group_id, beat.member.member_id)
        return self._response(beat)

    # --- the steps

    def _check_room(self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest) -> None:
        """Raise ApiError if the group, or the memory for all members, has no room for a new member."""
        if request.member_id in group.members:
            return
        most = self._config.group_consumer_max_size
        if len(group.members) >= most:
            text = f"The consumer group has reached its maximum capacity of {most} members."
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
        self._lookup.check_memory(group.group_id, request.subscribed_topic_names or ())

    def _find_member(self, changes: Changes, request: ConsumerGroupHeartbeatRequest) -> Member:
        """Return the member, a new one if it joins. Raises ApiError if it is unknown or fenced."""
        group, joins = changes.group, request.member_epoch == JOIN_EPOCH
        member_id, instance_id = request.member_id or self._new_id(), request.instance_id
        if joins and (instance_id is None or instance_id not in group.static_members):
            log.info("group %.255s: %s joins by the consumer protocol", group.group_id, shown([member_id]))
            return group.members.get(member_id) or Member(member_id)
        if instance_id is None:
            member = group.member(member_id)
        elif not joins:
            member = group.check_instance(member_id, instance_id)
        else:
            old = group.members[group.static_members[instance_id]]
            if not old.is_classic and old.epoch != STATIC_LEAVE_EPOCH:
                raise ApiError(
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"Static member {member_id:.255s} with instance id {instance_id:.255s} cannot join the "
                    f"group because the instance id is owned by {old.member_id:.255s} member.",
                )
            return self._members.replace(changes, old, member_id)
        check_epoch(member, request)
        return member

    def _update_metadata(self, beat: Heartbeat) -> None:
        """Keep what the member says about itself."""
        metadata = told(beat.member.metadata, beat.context, beat.request)
        if metadata != beat.member.metadata:
            beat.changes.put(MemberKey(beat.group.group_id, beat.member.member_id), metadata)
            beat.read_member()
        if metadata.topics != beat.before.metadata.topics:
            beat.bumps = beat.subscription_changed = True

    def _update_epoch(self, beat: Heartbeat) -> None:
        """Begin an epoch if the subscriptions, or the topics subscribed to, have changed."""
        group = beat.group
        if not (beat.bumps or group.must_check_metadata):
            return
        metadata_hash = self._topics.hash_of(group.subscribed_topics)
        if beat.bumps or metadata_hash != group.metadata_hash:
            beat.changes.put(EpochKey(group.group_id), GroupEpoch(group.epoch + 1, metadata_hash))
            log.info("group %.255s: epoch %d", group.group_id, group.epoch)
        beat.changes.put(PartitionMetadataKey(group.group_id), None)
        group.must_check_metadata = False
        beat.changes.or_else(partial(setattr, group, "must_check_metadata", True))

    def _reconcile(self, beat: Heartbeat) -> None:
        """Bring the member a step nearer to its target. Raises ApiError if it must be fenced."""
        group, member = beat.group, beat.member
        if not beat.subscription_changed and member.is_reconciled_to(group.target.epoch):
            return
        target = group.targets.get(member.member_id, {})
        topics = self._topics.ids_of(group.topics_of(member))
        step = Step(group, member, group.target.epoch, target, topics, beat.owned)
        current = step.reconciled(subscription_changed=beat.subscription_changed)
        if current != member.current:
            beat.changes.put(CurrentKey(group.group_id, member.member_id), current)
            beat.read_member()
            if not beat.member.is_classic:
                self._members.follow_revocation(group, beat.member)

    def _response(self, beat: Heartbeat) -> ConsumerGroupHeartbeatResponse:
        """Return the response. It has the assignment if the client asked for all, or if it has changed."""
        request, current = beat.request, beat.member.current
        has_topics = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        is_full = request.rebalance_timeout_ms != UNCHANGED and has_topics and beat.owned is not None
        response = ConsumerGroupHeartbeatResponse(
            member_id=beat.member.member_id,
            member_epoch=current.epoch,
            heartbeat_interval_ms=self._settings(request.group_id).heartbeat_interval_ms,
        )
        is_changed = current.assigned != beat.before.current.assigned
        if request.member_epoch == JOIN_EPOCH or is_full or is_changed:
            response.assignment = assignment_of(current.assigned)
        return response


def check_request(request: ConsumerGroupHeartbeatRequest, version: int, assignors: tuple[str, ...]) -> None:
    """Raise ApiError if a field of the request is invalid. (Kafka: GroupCoordinatorService.)"""
    epoch = request.member_epoch
    named_by_client = version >= FIRST_VERSION_WITH_CLIENT_MEMBER_ID or epoch > JOIN_EPOCH or epoch == -1
    if named_by_client and not request.member_id.strip():
        raise _invalid("MemberId can't be empty.")
    for name, text in (
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if text is not None and not text.strip():
            raise _invalid(f"{name} can't be empty.")
    if epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == UNCHANGED:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise _invalid(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
            )
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor:.255s} is not supported. Supported assignors: "
            f"{', '.join(assignors)}.",
        )


def _invalid(text: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, text)


def check_epoch(member: Member, request: ConsumerGroupHeartbeatRequest) -> None:
    """Raise ApiError unless the client's epoch is the member's.

    The former epoch is accepted if the client has no partition that is not assigned to it: the response with
    the new epoch may have been lost.
    """
    asked, epoch = request.member_epoch, member.epoch
    if asked in (JOIN_EPOCH, epoch):
        return
    if asked > epoch:
        how = "greater"
    elif asked == member.current.previous_epoch and _has_only(request, member.current.assigned):
        return
    else:
        how = "smaller"
    raise ApiError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {how} member epoch ({asked}) than the one known by the group "
        f"coordinator ({epoch}). The member must abandon all its partitions and rejoin.",
    )


def _has_only(request: ConsumerGroupHeartbeatRequest, assigned: EpochAssignment) -> bool:
    if request.topic_partitions is None:
        return False
    return all(
        part.topic_id in assigned and assigned[part.topic_id].keys() >= set(part.partitions)
        for part in request.topic_partitions
    )


def told(
    known: MemberMetadata, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> MemberMetadata:
    """Return what is known of a member after a heartbeat, whose null fields change nothing."""
    names, timeout_ms = request.subscribed_topic_names, request.rebalance_timeout_ms
    return MemberMetadata(
        known.instance_id if request.instance_id is None else request.instance_id,
        known.rack_id if request.rack_id is None else request.rack_id,
        context.client_id,
        context.client_host,
        known.topics if names is None else frozenset(names),
        known.pattern if request.subscribed_topic_regex is None else request.subscribed_topic_regex,
        known.rebalance_timeout_ms if timeout_ms == UNCHANGED else timeout_ms,
        known.assignor if request.server_assignor is None else request.server_assignor,
    )


def assignment_of(assigned: Mapping[bytes, Mapping[int, int]]) -> ConsumerGroupHeartbeatResponse.Assignment:
    part = ConsumerGroupHeartbeatResponse.TopicPartitions
    return ConsumerGroupHeartbeatResponse.Assignment(
        [part(topic_id, sorted(partitions)) for topic_id, partitions in assigned.items()]
    )
