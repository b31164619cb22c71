"""Clients of the consumer protocol for a group coordinator without I/O (`GroupRig`)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.support.group_rig import GroupRig

HEARTBEAT_VERSION = 1
REBALANCE_TIMEOUT_MS = 60_000
# After these a client gives up all partitions and joins again.
FENCED = (
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
)
OWNED = ConsumerGroupHeartbeatRequest.TopicPartitions


def owned_parts(owned: Collection[tuple[bytes, int]]) -> list[OWNED]:
    topics: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(owned):
        topics.setdefault(topic_id, []).append(partition)
    return [OWNED(*one) for one in topics.items()]


@dataclass(eq=False)
class Consumer:
    """A client as Kafka's: it says what has changed, and all of it after an error.

    `owned`: the partitions that it uses. `assigned`: those that it was told to use. A lazy client catches up
    later. `reported`: what it said last that it owned. `is_full`: the next request says all. `resubscribes`:
    it names the topics.
    """

    rig: GroupRig
    member_id: str
    topics: tuple[str, ...] | None = ("t",)
    group: str = "g"
    instance: str | None = None
    pattern: str | None = None
    assignor: str | None = None
    client: str = "c"
    epoch: int = 0
    owned: set[tuple[bytes, int]] = field(default_factory=set)
    assigned: set[tuple[bytes, int]] = field(default_factory=set)
    reported: set[tuple[bytes, int]] = field(default_factory=set)
    is_full: bool = False
    is_lazy: bool = False
    resubscribes: bool = False

    def request(self, **how: Any) -> ConsumerGroupHeartbeatRequest:
        """The next heartbeat: all there is to say at the first, later what is owned if that has changed."""
        request = ConsumerGroupHeartbeatRequest(self.group, self.member_id, self.epoch, topic_partitions=None)
        is_full = self.is_full or self.epoch == 0
        if is_full:
            request.rebalance_timeout_ms = REBALANCE_TIMEOUT_MS
            request.server_assignor = self.assignor
        if is_full or self.resubscribes:
            request.subscribed_topic_names = None if self.topics is None else list(self.topics)
            request.subscribed_topic_regex = self.pattern
        if is_full or self.owned != self.reported:
            request.topic_partitions = owned_parts(self.owned)
            self.reported = set(self.owned)
        if self.instance is not None:
            request.instance_id = self.instance
        for name, value in how.items():
            setattr(request, name, value)
        return request

    def beat(self, **how: Any) -> ConsumerGroupHeartbeatResponse:
        """Send a heartbeat and do as the answer says."""
        answer: ConsumerGroupHeartbeatResponse = self.rig.now(self.request(**how), HEARTBEAT_VERSION)
        self.take(answer)
        return answer

    def take(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        code = error_of(answer)
        if code in FENCED:
            self.epoch = 0
            self.owned, self.assigned = set(), set()
        self.is_full = bool(code)
        if code:
            return
        self.epoch = answer.member_epoch
        self.resubscribes = False
        if answer.assignment is not None:
            self.assigned = {
                (one.topic_id, partition)
                for one in answer.assignment.topic_partitions
                for partition in one.partitions
            }
            if not self.is_lazy:
                self.catch_up()

    def catch_up(self) -> None:
        """Use the assigned partitions, and give up all others."""
        self.owned = set(self.assigned)

    def leave(self, epoch: int = -1) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(self.group, self.member_id, epoch, self.instance)
        answer: ConsumerGroupHeartbeatResponse = self.rig.now(request, HEARTBEAT_VERSION)
        return answer

    @property
    def partitions(self) -> list[int]:
        """The numbers of the owned partitions."""
        return sorted(partition for _, partition in self.owned)


def settle(rig: GroupRig, *consumers: Consumer, rounds: int = 20) -> None:
    """Let time go by, with heartbeats of all consumers, until none changes any more."""
    quiet = 0
    for _ in range(rounds):
        before = [(one.epoch, set(one.owned)) for one in consumers]
        for one in consumers:
            assert not one.beat().error_code
        rig.later(1_100)
        quiet = quiet + 1 if before == [(one.epoch, one.owned) for one in consumers] else 0
        if quiet == 2:
            return
    raise AssertionError("the consumers do not come to rest")


def settled(rig: GroupRig, member_id: str, *others: Consumer, **how: Any) -> Consumer:
    """Return a consumer that has joined, and has come to rest together with the others."""
    one = Consumer(rig, member_id, **how)
    settle(rig, *others, one)
    return one


def described(rig: GroupRig, group: str = "g") -> ConsumerGroupDescribeResponse.DescribedGroup:
    answer: ConsumerGroupDescribeResponse = rig.now(ConsumerGroupDescribeRequest([group]), 1)
    (found,) = answer.groups
    return found


def error_of(answer: ConsumerGroupHeartbeatResponse) -> ErrorCode:
    return ErrorCode(answer.error_code)
