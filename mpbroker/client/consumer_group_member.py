"""A member of a consumer group of the consumer protocol (KIP-848; Kafka: ConsumerHeartbeatRequestManager).

The coordinator assigns the partitions. As in the classic protocol, the program calls `must_rejoin` between
its reads and `join` after it has committed, and members do not read while partitions move to or from them.
"""

from __future__ import annotations

import uuid
from typing import Any

from mpbroker.client.backoff import monotonic_ms
from mpbroker.client.cluster import Cluster
from mpbroker.client.errors import ApiFailed
from mpbroker.client.group_member import REBALANCE_TIMEOUT_MS, AnyMember
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.topic_names import TopicPartition

JOIN_EPOCH, LEAVE_EPOCH = 0, -1
# How long a member that waits for partitions of others rests between two heartbeats.
REST_MS = 200

# The coordinator has removed the member. It must give up its partitions and join again.
_FENCED = (
    *(ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND),
    ErrorCode.ILLEGAL_GENERATION,
)


class ConsumerGroupMember(AnyMember):
    """A member that subscribes to one topic. Methods raise Cluster's errors."""

    def __init__(self, cluster: Cluster, group: str, topic: str, patience_ms: float) -> None:
        super().__init__(cluster, group, topic, patience_ms)
        self._member_id = str(uuid.uuid4())
        self._generation = JOIN_EPOCH
        self._target: list[TopicPartition] = []
        self._topic_id = m.ZERO_UUID

    def join(self) -> list[TopicPartition]:
        """Join, or give up and take partitions, until this member has all that the group assigns to it."""
        (topic,) = self._cluster.refresh([self._topic]).topics
        self._topic_id = topic.topic_id
        self._must_rejoin = False
        while True:
            self.assigned = self._target
            self._beat()
            if self.assigned == self._target and self._has_all():
                self._must_rejoin = False
                return self.assigned
            self._cluster.rest(REST_MS)

    def must_rejoin(self) -> bool:
        """Send a heartbeat if one is due; return whether the assignment has changed."""
        if not self._must_rejoin and monotonic_ms() >= self._heartbeat_due_ms:
            self._beat()
            self._must_rejoin |= self.assigned != self._target
        return self._must_rejoin

    def leave(self) -> None:
        """Leave the group, so that other members get this member's partitions at once."""
        if self._generation != JOIN_EPOCH:
            self._ask(m.ConsumerGroupHeartbeatRequest(self._group, self._member_id, LEAVE_EPOCH))
            self._generation = JOIN_EPOCH

    def _beat(self) -> None:
        """Send a heartbeat with all fields, and take the new epoch and assignment."""
        owned = m.ConsumerGroupHeartbeatRequest.TopicPartitions
        numbers = [number for _, number in self.assigned]
        is_new = self._generation == JOIN_EPOCH
        request = m.ConsumerGroupHeartbeatRequest(
            self._group,
            self._member_id,
            self._generation,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            subscribed_topic_names=[self._topic],
            topic_partitions=[owned(self._topic_id, numbers)] if numbers and not is_new else [],
        )
        response: m.ConsumerGroupHeartbeatResponse = self._patiently(request)
        if response.error_code and not (response.error_code in _FENCED and not is_new):
            raise ApiFailed(f"group {self._group}", response.error_code, response.error_message)
        self._noted(response.error_code)
        if response.error_code:
            return
        self._generation = response.member_epoch
        self._heartbeat_due_ms = monotonic_ms() + response.heartbeat_interval_ms
        if response.assignment is not None:
            self._target = self._places(response.assignment.topic_partitions)

    def _has_all(self) -> bool:
        """Return whether the group's target assignment gives this member no other partitions."""
        response = self._patiently(m.ConsumerGroupDescribeRequest([self._group]))
        (group,) = response.groups
        self._noted(group.error_code)
        wanted = [
            self._places(member.target_assignment.topic_partitions)
            for member in group.members
            if member.member_id == self._member_id
        ]
        return wanted == [self._target] and group.group_epoch == group.assignment_epoch

    def _places(self, topics: list[Any]) -> list[TopicPartition]:
        mine = [topic for topic in topics if topic.topic_id == self._topic_id]
        return sorted((self._topic, number) for topic in mine for number in topic.partitions)

    def _noted(self, code: int) -> None:
        if code in _FENCED:
            self._generation, self._target, self._must_rejoin = JOIN_EPOCH, [], True
        elif code == ErrorCode.STALE_MEMBER_EPOCH:
            self._must_rejoin = True
        else:
            self._check(code)
