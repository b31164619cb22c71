"""A member of a consumer group of the classic protocol (Kafka: ConsumerCoordinator, AbstractCoordinator).

The member has no thread of its own. Between its reads the program calls `must_rejoin`, which sends a
heartbeat if one is due. Members do not read during a rebalance. The assignor is RangeAssignor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from mpbroker.client.backoff import monotonic_ms
from mpbroker.client.cluster import Cluster, CoordinatorType
from mpbroker.client.committed_offsets import commit_request, fetch_request, fetched_offsets, of_group
from mpbroker.client.errors import ApiFailed, ClientError
from mpbroker.client.range_assignor import RANGE, assign_ranges, assigned_partitions, subscribed_topics
from mpbroker.protocol import messages as m
from mpbroker.protocol.consumer_protocol import CONSUMER_PROTOCOL, encode_assignment, encode_subscription
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.topic_names import TopicPartition

# Defaults of Kafka's consumer (session.timeout.ms, heartbeat.interval.ms, max.poll.interval.ms).
SESSION_TIMEOUT_MS = 45_000
HEARTBEAT_MS = 3_000
REBALANCE_TIMEOUT_MS = 300_000
# A join is answered when all members have come, or their time is over.
JOIN_PATIENCE_MS = REBALANCE_TIMEOUT_MS + 5_000

# The member has another generation to join.
_REBALANCED = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)
# The coordinator has removed the member.
_FORGOTTEN = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)


class AnyMember(ABC):
    """The base of members of both protocols: finds the coordinator, retries, commits and fetches offsets.

    `patience_ms` limits retries.
    """

    def __init__(self, cluster: Cluster, group: str, topic: str, patience_ms: float) -> None:
        self.assigned: list[TopicPartition] = []
        self._cluster = cluster
        self._group = group
        self._topic = topic
        self._member_id = ""
        self._generation = -1
        self._heartbeat_due_ms = 0.0
        self._must_rejoin = True
        self._patience_ms = patience_ms
        # The first error since the last assignment with which the coordinator refused one, and when that was.
        self._refused: tuple[ApiFailed, float] | None = None
        self._coordinator: int | None = None

    @abstractmethod
    def join(self) -> list[TopicPartition]:
        """Join the group, or its next generation; return this member's partitions."""

    @abstractmethod
    def must_rejoin(self) -> bool:
        """Send a heartbeat if one is due; return whether the program must call `join`."""

    @abstractmethod
    def leave(self) -> None:
        """Leave the group."""

    @abstractmethod
    def _noted(self, code: int) -> None:
        """Take the error code of a heartbeat or a commit. Raises ApiFailed unless it is about membership."""

    def committed(self) -> dict[TopicPartition, int]:
        """Return the committed offsets of this member's partitions."""
        request = fetch_request(self._group, self.assigned, require_stable=True)
        return fetched_offsets(of_group(self._patiently(request)))

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets. A commit that a rebalance refuses is no error: `must_rejoin` then returns True."""
        if offsets:
            self._patiently(commit_request(self._group, offsets, self._generation, self._member_id))

    def _check(self, code: int) -> None:
        if code:
            raise ApiFailed(f"group {self._group}", code)

    def _patiently(self, request: m.Message, timeout_ms: float | None = None) -> Any:
        """Send a request; retry after temporary errors. Error codes about the membership are not raised."""
        return self._cluster.patiently(lambda: self._ask(request, timeout_ms), timeout_ms=self._patience_ms)

    def _ask(self, request: m.Message, timeout_ms: float | None = None) -> Any:
        """Send a request to the coordinator; look the coordinator up again after a temporary error."""
        if self._coordinator is None:
            self._coordinator = self._cluster.coordinator(CoordinatorType.GROUP, self._group)
        try:
            response = self._cluster.ask(self._coordinator, request, timeout_ms)
        except ClientError:
            self._coordinator = None
            raise
        for code in _codes(response):
            error = ApiFailed(f"group {self._group}", code)
            if error.retriable and error.code not in _REBALANCED:
                self._coordinator = None
                if isinstance(request, m.SyncGroupRequest):
                    self._refused = self._refused or (error, monotonic_ms())
                raise error
            if isinstance(response, m.OffsetCommitResponse):
                self._noted(code)
            elif isinstance(response, m.OffsetFetchResponse):
                raise error
        return response


class GroupMember(AnyMember):
    """A member that subscribes to one topic. Methods raise Cluster's errors."""

    def join(self) -> list[TopicPartition]:
        """Join the group's next generation; wait for this member's assigned partitions and return them."""
        while True:
            try:
                joined = self._joined()
                self.assigned = self._synced(joined)
            except ApiFailed as error:
                if error.code is ErrorCode.MEMBER_ID_REQUIRED or error.code in _REBALANCED:
                    self._check_refused()
                    continue
                if error.code in _FORGOTTEN:
                    self._member_id = ""
                    continue
                raise
            self._must_rejoin, self._refused = False, None
            self._heartbeat_due_ms = monotonic_ms() + HEARTBEAT_MS
            return self.assigned

    def _check_refused(self) -> None:
        """Raise the coordinator's error if SyncGroup requests have been refused for `patience_ms`."""
        if self._refused is not None and monotonic_ms() >= self._refused[1] + self._patience_ms:
            raise self._refused[0]

    def must_rejoin(self) -> bool:
        """Send a heartbeat if one is due; return whether the group is being rebalanced."""
        if monotonic_ms() < self._heartbeat_due_ms or self._must_rejoin:
            return self._must_rejoin
        request = m.HeartbeatRequest(self._group, self._generation, self._member_id)
        response: m.HeartbeatResponse = self._patiently(request)
        self._heartbeat_due_ms = monotonic_ms() + HEARTBEAT_MS
        self._noted(response.error_code)
        return self._must_rejoin

    def leave(self) -> None:
        """Leave the group, so that other members need not wait until this member's session expires."""
        if self._member_id:
            member = m.LeaveGroupRequest.MemberIdentity(self._member_id)
            self._ask(m.LeaveGroupRequest(self._group, self._member_id, [member]))
            self._member_id = ""

    def _joined(self) -> m.JoinGroupResponse:
        protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(RANGE, encode_subscription([self._topic]))
        request = m.JoinGroupRequest(
            self._group,
            SESSION_TIMEOUT_MS,
            REBALANCE_TIMEOUT_MS,
            self._member_id,
            protocol_type=CONSUMER_PROTOCOL,
            protocols=[protocol],
        )
        joined: m.JoinGroupResponse = self._patiently(request, JOIN_PATIENCE_MS)
        if joined.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self._member_id = joined.member_id
        self._generation = joined.generation_id
        self._check(joined.error_code)
        return joined

    def _synced(self, joined: m.JoinGroupResponse) -> list[TopicPartition]:
        assignments = []
        if joined.leader == self._member_id:
            one = m.SyncGroupRequest.SyncGroupRequestAssignment
            assignments = [
                one(member, encode_assignment(0, parts)) for member, parts in self._assigned(joined).items()
            ]
        request = m.SyncGroupRequest(
            self._group,
            self._generation,
            self._member_id,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        synced: m.SyncGroupResponse = self._patiently(request, JOIN_PATIENCE_MS)
        self._check(synced.error_code)
        return assigned_partitions(synced.assignment)

    def _assigned(self, joined: m.JoinGroupResponse) -> dict[str, dict[str, range]]:
        """Assign partitions to all members (the leader's task); return the partitions by member id."""
        wanted = {member.member_id: subscribed_topics(member.metadata) for member in joined.members}
        metadata = self._cluster.refresh(sorted({topic for topics in wanted.values() for topic in topics}))
        counts = {topic.name or "": len(topic.partitions) for topic in metadata.topics}
        return assign_ranges(wanted, counts)

    def _noted(self, code: int) -> None:
        if code in _FORGOTTEN:
            self._member_id = ""
        if code in _REBALANCED or code in _FORGOTTEN:
            self._must_rejoin = True
        else:
            self._check(code)


def _codes(response: Any) -> list[int]:
    """Return the error codes in a response to a group request, without zeros."""
    if isinstance(response, m.OffsetCommitResponse):
        return [part.error_code for topic in response.topics for part in topic.partitions if part.error_code]
    if isinstance(response, m.OffsetFetchResponse):
        group = of_group(response)
        codes = [group.error_code, *(part.error_code for topic in group.topics for part in topic.partitions)]
        return [code for code in codes if code]
    if isinstance(response, m.ConsumerGroupDescribeResponse):
        return [group.error_code for group in response.groups if group.error_code]
    return [response.error_code] if response.error_code else []


def quietly_leave(member: AnyMember) -> None:
    """Leave a group at the end of a program. Ignore a ClientError, for example if the broker is down."""
    try:
        member.leave()
    except ClientError:
        # The coordinator misses it when its session is over.
        return
