"""ConsumerGroupHeartbeat: a member joins, says what it wants and has, learns what it gets, or leaves.

(Kafka: GroupMetadataManager.consumerGroupHeartbeat; KIP-848.) If a step raises ApiError, all are undone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.resource_config import GroupSettings
from mpbroker.coordinator.groups.consumer.changes import Changes, Writer
from mpbroker.coordinator.groups.consumer.group import JOIN_EPOCH, LEAVE_EPOCH, ConsumerGroup, Member
from mpbroker.coordinator.groups.consumer.group_lookup import GroupLookup
from mpbroker.coordinator.groups.consumer.member_request import MemberRequest
from mpbroker.coordinator.groups.consumer.member_steps import MemberSteps
from mpbroker.coordinator.groups.consumer.members import ConsumerGroupMembers, who
from mpbroker.coordinator.groups.consumer.reconciliation import Owned
from mpbroker.coordinator.groups.consumer.records import EpochAssignment, MemberMetadata, MemberState
from mpbroker.coordinator.groups.consumer.regular_expressions import compiled
from mpbroker.coordinator.groups.log_text import shown
from mpbroker.coordinator.metadata.state import MetadataState
from mpbroker.coordinator.runtime.host import Host
from mpbroker.coordinator.runtime.repeats import Repeatable
from mpbroker.coordinator.runtime.requests import RequestContext
from mpbroker.protocol.consumer_protocol import STATIC_LEAVE_EPOCH
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    Message,
)

FIRST_VERSION_WITH_CLIENT_MEMBER_ID: Final = 1
UNCHANGED: Final = -1
# The characters that Java's String.trim removes.
BLANK: Final = "".join(map(chr, range(ord(" ") + 1)))

# Errors that clients do not retry, and often do not show.
LOGGED_REFUSALS: Final = (
    *(ErrorCode.INVALID_REGULAR_EXPRESSION, ErrorCode.UNRELEASED_INSTANCE_ID),
    *(ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.UNSUPPORTED_ASSIGNOR),
)

log = logging.getLogger("mpbroker.coordinator.groups")


@dataclass(eq=False, slots=True)
class SettledMember:
    """A member whose heartbeat changed nothing, and what its answer was decided by.

    There is one for each idle member, so it has to be small. (Callable: `Repeatable.again`.)
    """

    served_by: ConsumerGroupHeartbeat
    group: ConsumerGroup
    member: Member
    metadata: MetadataState
    timeout_ms: int

    def __call__(self) -> bool:
        return self.served_by.is_still(self)


@dataclass(eq=False)
class ConsumerGroupHeartbeat:
    """Serves heartbeats. `_new_id` returns a member id."""

    _config: BrokerConfig
    _host: Host
    _settings: Callable[[str], GroupSettings]
    _lookup: GroupLookup
    _members: ConsumerGroupMembers
    _steps: MemberSteps
    _writer: Writer
    _new_id: Callable[[], str]

    def heartbeat(
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest
    ) -> Message | Repeatable | None:
        """Serve a heartbeat. The answer is sent when the state that it reports is durable."""
        try:
            if (unchanged := self._unchanged(context, request)) is not None:
                return unchanged
            check_request(request, context.version, self._config.consumer_assignors)
            joins = request.member_epoch == JOIN_EPOCH
            if joins and request.subscribed_topic_regex:
                compiled(request.subscribed_topic_regex)  # before a classic group is converted
            with self._lookup.group_for(request.group_id, creates=joins) as changes:
                if request.member_epoch < JOIN_EPOCH:
                    response = self._members.leave(changes, request)
                else:
                    response = self._serve(context, request, changes)
        except ApiError as error:
            if error.code in LOGGED_REFUSALS:
                names = shown([context.client_id, context.client_host.removeprefix("/")])
                log.info(
                    "group %.255s: a client cannot join (%s): %s", request.group_id, names, error.message
                )
            return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
        return self._writer.answer(changes, context.waiter, response, _refused)

    def _unchanged(
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest
    ) -> Repeatable | None:
        """Answer a heartbeat for which no step has anything to do; return None for any other.

        Those of idle members are such, and the steps would take twice the time. Raises ApiError.
        """
        if request.member_epoch <= JOIN_EPOCH or brings_news(request):
            return None
        group = self._lookup.find_loaded(request.group_id)
        member = None if group is None else group.members.get(request.member_id)
        if group is None or member is None or member.is_classic or not group.is_settled:
            return None
        known = member.metadata
        if known.client_id != context.client_id or known.client_host != context.client_host:
            return None
        if request.member_epoch != member.epoch or not member.is_reconciled_to(group.target.epoch):
            return None
        if member.member_id in group.unconfirmed:
            return None
        self._members.keep_alive(request.group_id, member)
        timeout_ms = self._members.session_timeout_ms(request.group_id, member)
        settled = SettledMember(self, group, member, self._host.metadata, timeout_ms)
        return Repeatable(self._short_response(request, member), settled)

    def is_still(self, settled: SettledMember) -> bool:
        """Restart the session of a member if nothing has changed since it was answered; return whether."""
        group, member = settled.group, settled.member
        return (
            # The settings of the group are part of it.
            self._host.metadata is settled.metadata
            and self._lookup.find(group.group_id) is group
            and group.members.get(member.member_id) is member
            and group.is_settled
            and group.target.epoch == member.epoch
            and member.member_id not in group.unconfirmed
            and self._members.prolong(group.group_id, member, settled.timeout_ms)
        )

    def _short_response(
        self, request: ConsumerGroupHeartbeatRequest, member: Member
    ) -> ConsumerGroupHeartbeatResponse:
        """Return the response without an assignment."""
        return ConsumerGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self._settings(request.group_id).heartbeat_interval_ms,
        )

    def _serve(
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest, changes: Changes
    ) -> ConsumerGroupHeartbeatResponse:
        group = changes.group
        self._lookup.check_room(group, request.member_id)
        member = self._find_member(changes, request)
        asked = MemberRequest(context, changes, member, member, owned_in(request))
        self._steps.subscribe(asked, metadata_of(member.metadata, context, request))
        self._steps.assign(asked)
        if member.is_classic:
            self._members.end_waits(group.group_id, member.member_id)
        self._members.keep_alive(group.group_id, asked.member)
        if request.member_epoch == JOIN_EPOCH:
            log.info("group %.255s: %s joins by the consumer protocol", group.group_id, who(asked.member))
        return self._response(request, asked)

    def _find_member(self, changes: Changes, request: ConsumerGroupHeartbeatRequest) -> Member:
        """Return the member, a new one if it joins. Raises ApiError if it is unknown or fenced."""
        group, joins = changes.group, request.member_epoch == JOIN_EPOCH
        member_id, instance_id = request.member_id or self._new_id(), request.instance_id
        if joins and (instance_id is None or instance_id not in group.static_members):
            return self._members.find_or_add(changes, member_id)
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

    def _response(
        self, request: ConsumerGroupHeartbeatRequest, asked: MemberRequest
    ) -> ConsumerGroupHeartbeatResponse:
        """Return the response, with the assignment if the client joins, sent all fields, or has to learn it.

        Kafka tells a changed assignment once. librdkafka drops responses that take longer than a heartbeat
        interval, and its next request does not ask again, so neither client nor group would ever get further.
        Here each response has the assignment until the client has said that it has these partitions.
        """
        current, group = asked.member.current, asked.group
        has_topics = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        is_full = request.rebalance_timeout_ms != UNCHANGED and has_topics and asked.owned is not None
        response = self._short_response(request, asked.member)
        if current.assigned != asked.before.current.assigned:
            group.unconfirmed.add(asked.member.member_id)
        elif asked.owned is not None and asked.owned == _partitions(current.assigned):
            group.unconfirmed.discard(asked.member.member_id)
        is_unconfirmed = (
            asked.member.member_id in group.unconfirmed or current.state is MemberState.UNREVOKED_PARTITIONS
        )
        if request.member_epoch == JOIN_EPOCH or is_full or is_unconfirmed:
            response.assignment = assignment_of(current.assigned)
        return response


def _refused(error: ErrorCode) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error, error_message=error.message)


def _partitions(assigned: EpochAssignment) -> Owned:
    return {topic_id: epochs.keys() for topic_id, epochs in assigned.items()}


def brings_news(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Return whether a heartbeat says more than that its member, which has no instance, is alive."""
    return (
        request.topic_partitions is not None
        or request.subscribed_topic_names is not None
        or request.subscribed_topic_regex is not None
        or request.server_assignor is not None
        or request.instance_id is not None
        or request.rack_id is not None
        or request.rebalance_timeout_ms != UNCHANGED
    )


def owned_in(request: ConsumerGroupHeartbeatRequest) -> Owned | None:
    """Return the partitions that the client says it has, by topic id; None if it does not say."""
    if request.topic_partitions is None:
        return None
    owned: dict[bytes, set[int]] = {}
    for one in request.topic_partitions:
        owned.setdefault(one.topic_id, set()).update(one.partitions)
    return owned


def check_request(request: ConsumerGroupHeartbeatRequest, version: int, assignors: tuple[str, ...]) -> None:
    """Raise ApiError if a field of the request is invalid. (Kafka: GroupCoordinatorService.)"""
    epoch = request.member_epoch
    goes_on = epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH
    if (goes_on or version >= FIRST_VERSION_WITH_CLIENT_MEMBER_ID) and not request.member_id.strip(BLANK):
        raise _invalid("MemberId can't be empty.")
    for name, text in (
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if text is not None and not text.strip(BLANK):
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

    The former epoch is accepted if all partitions of the client are assigned to it: the response with the new
    epoch may have been lost.
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


def metadata_of(
    known: MemberMetadata, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> MemberMetadata:
    """Return a member's metadata after a heartbeat. Null fields of the request change nothing."""
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
