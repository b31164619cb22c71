"""The target assignment of a group: computed by an assignor, at most once in the assignment interval.

(Kafka: GroupMetadataManager.maybeUpdateTargetAssignment, TargetAssignmentBuilder.)

An assignor runs in slices between heartbeats. Little work is done within the heartbeat that causes it. The
result is written in pieces, each durable by itself. The epoch of the target comes last: until it is written,
the target counts as the former epoch's, and after a crash it is computed again. Members may meanwhile
have targets that overlap. That is harmless, because a member never gets a partition that another one has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.resource_config import GroupSettings
from mpbroker.coordinator.groups.consumer.assignors.assignors import ASSIGNORS
from mpbroker.coordinator.groups.consumer.assignors.group_spec import (
    GroupSpec,
    PartitionAssignorError,
    Subscriber,
)
from mpbroker.coordinator.groups.consumer.changes import Changes, Writer, pieces
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.groups.consumer.members import ASSIGNMENT_JOB
from mpbroker.coordinator.groups.consumer.records import (
    NO_PARTITIONS,
    Assignment,
    TargetEpoch,
    TargetKey,
    TargetMemberKey,
)
from mpbroker.coordinator.groups.consumer.topic_metadata import TopicMetadata
from mpbroker.coordinator.runtime.background import Background
from mpbroker.coordinator.runtime.timers import Clock
from mpbroker.protocol.errors import ApiError, ErrorCode

# Members that are read in one slice.
MEMBERS_AT_ONCE: Final = 200
# Estimates of the bytes that targets take.
TARGET_BYTES: Final = 100
TOPIC_BYTES: Final = 20
PARTITION_BYTES: Final = 4

Targets: TypeAlias = dict[str, Assignment]

log = logging.getLogger("mpbroker.coordinator.groups")


@dataclass(eq=False)
class TargetAssignments:
    _config: BrokerConfig
    _settings: Callable[[str], GroupSettings]
    _clock: Clock
    _background: Background
    _topics: TopicMetadata
    _writer: Writer

    def update(self, changes: Changes) -> None:
        """Compute the target of the group's epoch, if it is due. Raises ApiError if the assignor fails.

        The target may be written later than the other changes of the request.
        """
        group = changes.group
        if group.target.epoch >= group.epoch or group.is_assigning or not self._is_due(group):
            return
        epoch, is_first_slice = group.epoch, True

        def computed(targets: Targets) -> None:
            group.is_assigning = False
            if is_first_slice and len(list(pieces(targets, _size_of))) <= 1:
                self._put_members(changes, targets)
                self._put_epoch(changes, epoch)
            else:
                self._write(group, epoch, targets)

        group.is_assigning = True
        try:
            self._background.start(ASSIGNMENT_JOB, group.group_id, self._compute(group, epoch), computed)
        except Exception as error:
            group.is_assigning = False
            if not isinstance(error, PartitionAssignorError):
                raise
            text = f"Failed to compute a new target assignment for epoch {epoch}: {error}"
            log.error("group %.255s: %s", group.group_id, text)
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, text) from error
        is_first_slice = False
        if group.is_assigning:
            changes.or_else(partial(self._stop, group))

    def _stop(self, group: ConsumerGroup) -> None:
        """Stop the computation of a target, because the change that began its epoch is undone."""
        self._background.stop(ASSIGNMENT_JOB, group.group_id)
        group.is_assigning = False

    def _is_due(self, group: ConsumerGroup) -> bool:
        """Return whether the assignment interval is over. (Kafka: canComputeNextTargetAssignment.)"""
        computed_ms = group.target.computed_ms
        interval_ms = self._settings(group.group_id).assignment_interval_ms
        # The wall clock may have gone back.
        return not computed_ms or not 0 <= self._clock.wall_ms() - computed_ms < interval_ms

    def _compute(self, group: ConsumerGroup, epoch: int) -> Generator[None, None, Targets]:
        """Return the targets that change, by member id. (The targets of removed members are gone already.)"""
        name = group.preferred_assignor(self._config.consumer_assignors[0])
        members = list(group.members.values())
        # Topics may be created and deleted between the slices.
        topics = self._topics.subscribed(group)
        subscribers: dict[str, Subscriber] = {}
        ids: dict[frozenset[str], frozenset[bytes]] = {}
        for count, member in enumerate(members, 1):
            names = group.topics_of(member)
            if names not in ids:
                few, many = (names, topics) if len(names) < len(topics) else (topics, names)
                ids[names] = frozenset(topics[name][0] for name in few if name in many)
            assigned = group.targets.get(member.member_id, NO_PARTITIONS)
            subscribers[member.member_id] = Subscriber(member.metadata.instance_id, ids[names], assigned)
            if count % MEMBERS_AT_ONCE == 0:
                yield
        targets = yield from ASSIGNORS[name](GroupSpec(subscribers, dict(topics.values())))
        log.info("group %.255s: the %s assignor computed the target of epoch %d", group.group_id, name, epoch)
        return {
            member_id: target
            for member_id, target in targets.items()
            if target is not subscribers[member_id].assigned or member_id not in group.targets
        }

    def _put_epoch(self, changes: Changes, epoch: int) -> None:
        changes.put(TargetKey(changes.group.group_id), TargetEpoch(epoch, self._clock.wall_ms()))

    def _put_members(self, changes: Changes, targets: Targets) -> None:
        group = changes.group
        for member_id, target in targets.items():
            if member_id in group.members:
                changes.put(TargetMemberKey(group.group_id, member_id), target)

    def _write(self, group: ConsumerGroup, epoch: int, targets: Targets) -> None:
        """Write the targets in pieces between other work."""
        refused: list[ErrorCode] = []

        def written(error: ErrorCode) -> None:
            if error:
                refused.append(error)

        def writes() -> Generator[None, None, None]:
            for piece in pieces(targets, _size_of):
                if refused:
                    return
                changes = Changes(group)
                self._put_members(changes, piece)
                self._writer.write(changes, written)
                yield

        def done(_: None) -> None:
            group.is_assigning = False
            if refused:
                log.warning(
                    "group %.255s: the target of epoch %d was not written: %s. It is computed again",
                    group.group_id,
                    epoch,
                    refused[0].name,
                )
                return
            changes = Changes(group)
            self._put_epoch(changes, epoch)
            self._writer.write(changes, lambda _error: None)

        group.is_assigning = True
        # The request's own changes were written before.
        self._background.put_off(ASSIGNMENT_JOB, group.group_id, writes(), done)


def _size_of(_member_id: str, target: Assignment) -> int:
    return TARGET_BYTES + sum(TOPIC_BYTES + PARTITION_BYTES * len(one) for one in target.values())
