"""The keys and values of a consumer group's records, before they are encoded (Kafka: rec/ConsumerGroup*).

    key 3    EpochKey               epoch of the group, hash of the subscribed topics
    key 4    PartitionMetadataKey   of Kafka before 4.1: only deleted
    key 5    MemberKey              what a member has said about itself
    key 6    TargetKey              epoch of the target assignment
    key 7    TargetMemberKey        target assignment of a member
    key 8    CurrentKey             epoch, state and current assignment of a member
    key 16   PatternKey             topics that a regular expression matches

A group is the sum of the last values of its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

from mpbroker.coordinator.runtime.log_records import encode_key, encode_value
from mpbroker.protocol.messages import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    Message,
)

Assignment: TypeAlias = Mapping[bytes, frozenset[int]]
"""Partition numbers by topic id."""
EpochAssignment: TypeAlias = Mapping[bytes, Mapping[int, int]]
"""Epochs by topic id and partition: the member's epoch when it got the partition (KIP-1251)."""


NO_PARTITIONS: Final[Mapping[bytes, Any]] = {}


class EpochKey(NamedTuple):
    group: str


class PartitionMetadataKey(NamedTuple):
    group: str


class MemberKey(NamedTuple):
    group: str
    member_id: str


class TargetKey(NamedTuple):
    group: str


class TargetMemberKey(NamedTuple):
    group: str
    member_id: str


class CurrentKey(NamedTuple):
    group: str
    member_id: str


class PatternKey(NamedTuple):
    group: str
    pattern: str


class GroupEpoch(NamedTuple):
    """The epoch of a group. It grows when subscriptions or subscribed topics change."""

    epoch: int
    metadata_hash: int


class PartitionMetadata(NamedTuple):
    """A record of Kafka before 4.1, whose content is not used. The group's next change deletes it."""


class ClassicMember(NamedTuple):
    """What only a member of the classic protocol has. `protocols`: (name, metadata) of each."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class MemberMetadata(NamedTuple):
    """What a member has said about itself. `classic` is None if it uses the consumer protocol."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    pattern: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMember | None = None


class TargetEpoch(NamedTuple):
    """The group epoch of a target. `computed_ms`: when it was computed, since 1970; 0 if unknown."""

    epoch: int
    computed_ms: int


class MemberState(IntEnum):
    """How far a member has come on the way to its target (Kafka: MemberState)."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


class CurrentAssignment(NamedTuple):
    """A member's epoch, and the partitions that it may use or has to give up."""

    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: EpochAssignment = NO_PARTITIONS
    revoking: EpochAssignment = NO_PARTITIONS

    @property
    def partitions(self) -> Mapping[bytes, Collection[int]]:
        """All partitions of the member, with those that it must give up and has not given up yet."""
        found: dict[bytes, Collection[int]] = {**self.assigned}
        for topic_id, numbers in self.revoking.items():
            found[topic_id] = [*found.get(topic_id, ()), *numbers]
        return found


class ResolvedPattern(NamedTuple):
    """The topics that a pattern matched at `resolved_ms` (since 1970), in `version` of the metadata."""

    topics: frozenset[str]
    version: int
    resolved_ms: int


ConsumerKey: TypeAlias = (
    EpochKey | PartitionMetadataKey | MemberKey | TargetKey | TargetMemberKey | CurrentKey | PatternKey
)
ConsumerValue: TypeAlias = (
    GroupEpoch
    | PartitionMetadata
    | MemberMetadata
    | TargetEpoch
    | dict[bytes, frozenset[int]]
    | CurrentAssignment
    | ResolvedPattern
)


class Kind(NamedTuple):
    """One kind of record: its number, its key and how its value becomes a message and is read from one."""

    number: int
    key: type[ConsumerKey]
    key_message: Callable[..., Message]
    to_message: Callable[[Any], Message]
    from_message: Callable[[Any], Any]


def _member_message(value: MemberMetadata) -> Message:
    classic = None
    if value.classic is not None:
        protocols = [
            ConsumerGroupMemberMetadataValue.ClassicProtocol(*one) for one in value.classic.protocols
        ]
        classic = ConsumerGroupMemberMetadataValue.ClassicMemberMetadata(
            value.classic.session_timeout_ms, protocols
        )
    return ConsumerGroupMemberMetadataValue(
        value.instance_id,
        value.rack_id,
        value.client_id,
        value.client_host,
        sorted(value.topics),
        value.pattern,
        value.rebalance_timeout_ms,
        value.assignor,
        classic,
    )


def _member(found: ConsumerGroupMemberMetadataValue) -> MemberMetadata:
    classic = found.classic_member_metadata
    return MemberMetadata(
        found.instance_id,
        found.rack_id,
        found.client_id,
        found.client_host,
        frozenset(found.subscribed_topic_names),
        found.subscribed_topic_regex or "",
        found.rebalance_timeout_ms,
        found.server_assignor,
        None
        if classic is None
        else ClassicMember(
            classic.session_timeout_ms, tuple((one.name, one.metadata) for one in classic.supported_protocols)
        ),
    )


def _target_message(value: Assignment) -> Message:
    part = ConsumerGroupTargetAssignmentMemberValue.TopicPartition
    return ConsumerGroupTargetAssignmentMemberValue(
        [part(topic_id, sorted(partitions)) for topic_id, partitions in sorted(value.items())]
    )


def _target(found: ConsumerGroupTargetAssignmentMemberValue) -> Assignment:
    return {one.topic_id: frozenset(one.partitions) for one in found.topic_partitions}


def _current_message(value: CurrentAssignment) -> Message:
    def parts(
        assignment: EpochAssignment,
    ) -> list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]:
        return [
            ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions(
                topic_id, list(epochs), list(epochs.values())
            )
            for topic_id, epochs in assignment.items()
        ]

    return ConsumerGroupCurrentMemberAssignmentValue(
        value.epoch, value.previous_epoch, value.state, parts(value.assigned), parts(value.revoking)
    )


def _current(found: ConsumerGroupCurrentMemberAssignmentValue) -> CurrentAssignment:
    def epochs(parts: list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]) -> EpochAssignment:
        # Records of Kafka before 4.3 have no assignment epochs.
        return {
            one.topic_id: dict(
                zip(
                    one.partitions,
                    one.assignment_epochs or [found.member_epoch] * len(one.partitions),
                    strict=True,
                )
            )
            for one in parts
        }

    known = found.state in MemberState._value2member_map_
    return CurrentAssignment(
        found.member_epoch,
        found.previous_member_epoch,
        MemberState(found.state) if known else MemberState.UNKNOWN,
        epochs(found.assigned_partitions),
        epochs(found.partitions_pending_revocation),
    )


def _pattern_message(value: ResolvedPattern) -> Message:
    return ConsumerGroupRegularExpressionValue(sorted(value.topics), value.version, value.resolved_ms)


def _pattern(found: ConsumerGroupRegularExpressionValue) -> ResolvedPattern:
    return ResolvedPattern(frozenset(found.topics), found.version, found.timestamp)


def _unwritten(_value: PartitionMetadata) -> Message:
    raise AssertionError("records with key 4 are only deleted")


KINDS: Final = (
    Kind(
        3,
        EpochKey,
        ConsumerGroupMetadataKey,
        lambda value: ConsumerGroupMetadataValue(*value),
        lambda found: GroupEpoch(found.epoch, found.metadata_hash),
    ),
    Kind(
        4,
        PartitionMetadataKey,
        ConsumerGroupPartitionMetadataKey,
        _unwritten,
        lambda _found: PartitionMetadata(),
    ),
    Kind(5, MemberKey, ConsumerGroupMemberMetadataKey, _member_message, _member),
    Kind(
        6,
        TargetKey,
        ConsumerGroupTargetAssignmentMetadataKey,
        lambda value: ConsumerGroupTargetAssignmentMetadataValue(*value),
        lambda found: TargetEpoch(found.assignment_epoch, found.assignment_timestamp),
    ),
    Kind(7, TargetMemberKey, ConsumerGroupTargetAssignmentMemberKey, _target_message, _target),
    Kind(8, CurrentKey, ConsumerGroupCurrentMemberAssignmentKey, _current_message, _current),
    Kind(16, PatternKey, ConsumerGroupRegularExpressionKey, _pattern_message, _pattern),
)
KIND_OF_KEY: Final[Mapping[type, Kind]] = {kind.key: kind for kind in KINDS}
KIND_OF_NUMBER: Final = {kind.number: kind for kind in KINDS}
VALUE_VERSION: Final = 0


def encode(key: ConsumerKey, value: Any) -> tuple[bytes, bytes | None]:
    """Return the encoded key and value of a record. The value of a tombstone is None."""
    kind = KIND_OF_KEY[type(key)]
    name = encode_key(kind.number, kind.key_message(*key))
    return name, None if value is None else encode_value(kind.number, VALUE_VERSION, kind.to_message(value))
