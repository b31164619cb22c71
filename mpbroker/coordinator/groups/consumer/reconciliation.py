"""Computes the next step of a member towards its target assignment. (Kafka: CurrentAssignmentBuilder.)

    STABLE ──────────────► UNREVOKED_PARTITIONS    the client has to give up partitions
       │ ▲                          │
       │ └──────────────────────────┤              it has given them up; its target is free
       ▼                            ▼
    UNRELEASED_PARTITIONS ◄─────────┘              other members still have partitions of its target

A member gets the epoch of the target when it has given up all partitions that it has to. It gets a partition
of another member only after that member has given it up: `ConsumerGroup.owners` decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

from mpbroker.coordinator.groups.consumer.group import ConsumerGroup, Member
from mpbroker.coordinator.groups.consumer.records import (
    Assignment,
    CurrentAssignment,
    EpochAssignment,
    MemberState,
)
from mpbroker.protocol.errors import ApiError, ErrorCode

Owned = Mapping[bytes, Set[int]]
"""The partitions that the client says it has, by topic id."""


class CurrentAssignmentBuilder(NamedTuple):
    """Builds the next assignment of a member.

    `topics`: the ids of subscribed topics. `owned`: the partitions that the client says it has, None if it
    does not say.
    """

    group: ConsumerGroup
    member: Member
    target_epoch: int
    target: Assignment
    topics: Set[bytes]
    owned: Owned | None

    def build(self, *, subscription_changed: bool = False) -> CurrentAssignment:
        """Return the member's next assignment. Raises ApiError if the member must be fenced."""
        current = self.member.current
        match current.state:
            case MemberState.STABLE if current.epoch == self.target_epoch:
                return self._without_unsubscribed() if subscription_changed else current
            case MemberState.UNREVOKED_PARTITIONS if self._owns_any(current.revoking):
                return self._without_unsubscribed() if subscription_changed else current
            case MemberState.UNKNOWN:
                if self.owned is None or self.owned:
                    raise ApiError(
                        ErrorCode.FENCED_MEMBER_EPOCH,
                        "The consumer group member is in a unknown state. The member must abandon all its "
                        "partitions and rejoin.",
                    )
                return self._next(self.target_epoch)
        return self._next(current.epoch)

    def _owns_any(self, partitions: EpochAssignment) -> bool:
        """Return whether the client has one of the partitions; True if it does not say what it has."""
        if self.owned is None:
            return True
        return any(
            not partitions[topic_id].keys().isdisjoint(owned)
            for topic_id, owned in self.owned.items()
            if topic_id in partitions
        )

    def _without_unsubscribed(self) -> CurrentAssignment:
        """Return the assignment without topics to which the member does not subscribe any more."""
        current = self.member.current
        kept = {topic_id: epochs for topic_id, epochs in current.assigned.items() if topic_id in self.topics}
        if len(kept) == len(current.assigned):
            return current
        dropped = {topic: epochs for topic, epochs in current.assigned.items() if topic not in kept}
        revoking = _union(current.revoking, dropped)
        if self._owns_any(revoking):
            state = MemberState.UNREVOKED_PARTITIONS
            return CurrentAssignment(current.epoch, current.epoch, state, kept, revoking)
        return current._replace(previous_epoch=current.epoch, assigned=kept)

    def _next(self, epoch: int) -> CurrentAssignment:
        """Return the next assignment on the way to the target."""
        current, member_id = self.member.current, self.member.member_id
        target = {topic: wanted for topic, wanted in self.target.items() if topic in self.topics}
        kept: dict[bytes, Mapping[int, int]] = {}
        revoking: dict[bytes, Mapping[int, int]] = {}
        for topic_id, epochs in current.assigned.items():
            wanted = target.get(topic_id, frozenset())
            keeps = {partition: at for partition, at in epochs.items() if partition in wanted}
            if keeps:
                kept[topic_id] = keeps
            if len(keeps) < len(epochs):
                revoking[topic_id] = {
                    partition: at for partition, at in epochs.items() if partition not in wanted
                }
        if revoking and self._owns_any(revoking):
            return CurrentAssignment(epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
        is_held_up = False
        for topic_id, wanted in target.items():
            has: Mapping[int, int] = kept.get(topic_id, {})
            free: dict[int, int] = {}
            for partition in wanted:
                if partition in has:
                    continue
                if self.group.is_owned_by_other(topic_id, partition, member_id):
                    is_held_up = True
                else:
                    free[partition] = self.target_epoch
            if free:
                kept[topic_id] = {**has, **free}
        state = MemberState.UNRELEASED_PARTITIONS if is_held_up else MemberState.STABLE
        return CurrentAssignment(self.target_epoch, current.epoch, state, kept)


def _union(some: EpochAssignment, others: EpochAssignment) -> EpochAssignment:
    return {topic: {**some.get(topic, {}), **others.get(topic, {})} for topic in {**some, **others}}
