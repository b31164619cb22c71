"""A group of the consumer protocol: the last values of its records, and what follows from them.

There is no clock and no I/O.

(Kafka: ModernGroup, ConsumerGroup, ConsumerGroupMember; KIP-848.)

    Empty ──► Assigning ──► Reconciling ──► Stable
      ▲           ▲              │             │
      └───────────┴──────────────┴─────────────┘
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final

from msgspec import Struct

from mpbroker.coordinator.groups.consumer.records import (
    NO_PARTITIONS,
    Assignment,
    ClassicMember,
    ConsumerKey,
    CurrentAssignment,
    CurrentKey,
    EpochAssignment,
    EpochKey,
    GroupEpoch,
    MemberKey,
    MemberMetadata,
    MemberState,
    PartitionMetadata,
    PartitionMetadataKey,
    PatternKey,
    ResolvedPattern,
    TargetEpoch,
    TargetKey,
    TargetMemberKey,
)
from mpbroker.coordinator.groups.member_memory import MEMBER_BYTES, NAME_BYTES, MemberMemory
from mpbroker.protocol.consumer_protocol import CONSUMER_PROTOCOL
from mpbroker.protocol.errors import ApiError, ErrorCode

# The epoch with which a member leaves, unless it is static and may return (STATIC_LEAVE_EPOCH).
LEAVE_EPOCH: Final = -1
JOIN_EPOCH: Final = 0
FIRST_EPOCH: Final = 1

NO_METADATA: Final = MemberMetadata()
NOTHING_ASSIGNED: Final = CurrentAssignment()


class ConsumerGroupState(Enum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class Member(Struct, frozen=True):
    """A member of a consumer group, as its two records describe it."""

    member_id: str
    metadata: MemberMetadata = NO_METADATA
    current: CurrentAssignment = NOTHING_ASSIGNED

    @property
    def epoch(self) -> int:
        return self.current.epoch

    @property
    def is_classic(self) -> bool:
        """True if the member uses the classic protocol."""
        return self.metadata.classic is not None

    def is_reconciled_to(self, epoch: int) -> bool:
        """Return whether the member has all partitions of the target with this epoch."""
        return self.current.epoch == epoch and self.current.state is MemberState.STABLE


class ConsumerGroup:
    """A group. Its records change it through `replay`; all other attributes follow from them.

    `targets`: the target assignment by member id. `patterns`: resolved regular expressions by pattern.
    `static_members`: member ids by instance id. `owners`: by topic id and partition, the id of the member
    that has the partition or must still give it up.

    Counters: `subscribers`: members by topic that they name. `pattern_subscribers`: members by pattern.
    `pattern_topics`: resolved patterns by topic. `assignor_votes`: members by assignor that they ask for.
    `classic_protocols`: classic members by protocol that they support.

    Not from records: `must_check_metadata`: the hash of the subscribed topics may have changed, since members
    subscribe to other topics, or topics were created, deleted or enlarged.
    `is_assigning`: a target is being computed. `unwritten`: how many appends are not durable yet.
    `unconfirmed`: ids of members whose assignment has changed and who have not said yet that they have it.
    """

    def __init__(self, group_id: str, memory: MemberMemory) -> None:
        self.group_id = group_id
        self._memory = memory
        self._epoch: GroupEpoch | None = None
        self._target: TargetEpoch | None = None
        # None: it is not known since the last record.
        self._state: ConsumerGroupState | None = None
        self.has_partition_metadata = False
        self.members: dict[str, Member] = {}
        self.targets: dict[str, Assignment] = {}
        self.patterns: dict[str, ResolvedPattern] = {}
        self.static_members: dict[str, str] = {}
        self.owners: dict[bytes, dict[int, str]] = {}
        self.subscribers: Counter[str] = Counter()
        self.pattern_subscribers: Counter[str] = Counter()
        self.pattern_topics: Counter[str] = Counter()
        self.assignor_votes: Counter[str] = Counter()
        self.classic_protocols: Counter[str] = Counter()
        self.classic_members = 0
        self.must_check_metadata = True
        self.is_assigning = False
        self.unwritten = 0
        self.unconfirmed: set[str] = set()

    # --- what follows from the records

    @property
    def epoch(self) -> int:
        return FIRST_EPOCH if self._epoch is None else self._epoch.epoch

    @property
    def metadata_hash(self) -> int:
        return 0 if self._epoch is None else self._epoch.metadata_hash

    @property
    def target(self) -> TargetEpoch:
        return TargetEpoch(FIRST_EPOCH, 0) if self._target is None else self._target

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state(self) -> ConsumerGroupState:
        """The group's state. After a change, it takes time in proportion to the number of members."""
        if self._state is None:
            self._state = self._find_state()
        return self._state

    def _find_state(self) -> ConsumerGroupState:
        target = self.target.epoch
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > target:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(target) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_settled(self) -> bool:
        """True if a heartbeat that brings no news changes nothing of the group, and waits for no record."""
        has_work = self.unwritten or self.must_check_metadata or self.pattern_subscribers
        return not has_work and self.target.epoch >= self.epoch

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.subscribers or topic in self.pattern_topics

    def topics_of(self, member: Member) -> frozenset[str]:
        """Return the topics that a member subscribes to. A pattern that is not resolved yet matches none."""
        resolved = self.patterns.get(member.metadata.pattern)
        named = member.metadata.topics
        if resolved is None:
            return named
        return named | resolved.topics if named else resolved.topics

    def preferred_assignor(self, default: str) -> str:
        """Return the assignor with most votes; of several with equal votes, the first by name."""
        return min(self.assignor_votes, key=lambda name: (-self.assignor_votes[name], name), default=default)

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Return whether a client can join by the classic protocol.

        All members that use it must support a common protocol in `names`.
        """
        if protocol_type != CONSUMER_PROTOCOL:
            return False
        return any(self.classic_protocols[name] == self.classic_members for name in names)

    def awaits_release(self, member: Member) -> bool:
        """Return whether another member still has a partition of the member's target."""
        return any(
            self.is_owned_by_other(topic_id, partition, member.member_id)
            for topic_id, partitions in self.targets.get(member.member_id, NO_PARTITIONS).items()
            for partition in partitions
        )

    def is_owned_by_other(self, topic_id: bytes, partition: int, member_id: str) -> bool:
        """Return whether another member has the partition, or has still to give it up."""
        return self.owners.get(topic_id, {}).get(partition, member_id) != member_id

    # --- members

    def member(self, member_id: str) -> Member:
        """Return a member. Raises ApiError if it is unknown."""
        found = self.members.get(member_id)
        if found is None:
            raise ApiError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id:.255s} is not a member of group {self.group_id:.255s}.",
            )
        return found

    def static_member(self, instance_id: str) -> Member | None:
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def check_instance(self, member_id: str, instance_id: str) -> Member:
        """Return the member of an instance. Raises ApiError if it is unknown or has another member id."""
        found = self.static_member(instance_id)
        if found is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id:.255s} is unknown.")
        if found.member_id != member_id:
            raise ApiError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id:.255s} with instance id {instance_id:.255s} was fenced by member "
                f"{found.member_id:.255s}.",
            )
        return found

    # --- records

    @property
    def has_records(self) -> bool:
        """True if the log has a record of the group that is no tombstone."""
        if self._epoch is not None or self._target is not None or self.has_partition_metadata:
            return True
        return bool(self.members or self.targets or self.patterns)

    def replay(self, key: ConsumerKey, value: Any) -> Any:
        """Apply a record; `value` is None for a tombstone. Return the former value of the key.

        To undo records, replay their former values in reverse order.
        """
        self._state = None
        match key:
            case EpochKey():
                before, self._epoch = self._epoch, value
                return before
            case TargetKey():
                target, self._target = self._target, value
                return target
            case PartitionMetadataKey():
                had, self.has_partition_metadata = self.has_partition_metadata, value is not None
                return PartitionMetadata() if had else None
            case TargetMemberKey():
                return _put(self.targets, key.member_id, value)
            case PatternKey():
                return self._replay_pattern(key.pattern, value)
            case MemberKey():
                return self._replay_metadata(key.member_id, value)
            case CurrentKey():
                return self._replay_current(key.member_id, value)

    def _replay_pattern(self, pattern: str, value: ResolvedPattern | None) -> ResolvedPattern | None:
        before: ResolvedPattern | None = _put(self.patterns, pattern, value)
        self._count_topics(self.pattern_topics, () if before is None else before.topics, -1)
        self._count_topics(self.pattern_topics, () if value is None else value.topics, 1)
        return before

    def _count_topics(self, counter: Counter[str], names: Iterable[str], sign: int) -> None:
        size = len(counter)
        _count(counter, names, sign)
        if len(counter) != size:
            self.must_check_metadata = True

    def _replay_metadata(self, member_id: str, value: MemberMetadata | None) -> MemberMetadata | None:
        member = self.members.get(member_id) or Member(member_id)
        before = member.metadata
        self._account(member_id, before, -1)
        if value is not None:
            self._account(member_id, value, 1)
        self._set(Member(member_id, NO_METADATA if value is None else value, member.current))
        return None if before is NO_METADATA else before

    def _account(self, member_id: str, metadata: MemberMetadata, sign: int) -> None:
        """Add what a member has said about itself to the counters, or remove it if `sign` is negative."""
        if metadata is NO_METADATA:
            return
        self._count_topics(self.subscribers, metadata.topics, sign)
        if metadata.pattern:
            _count(self.pattern_subscribers, (metadata.pattern,), sign)
        if metadata.assignor:
            _count(self.assignor_votes, (metadata.assignor,), sign)
        if metadata.classic is not None:
            self.classic_members += sign
            _count(self.classic_protocols, (name for name, _ in metadata.classic.protocols), sign)
        if metadata.instance_id is not None:
            if sign > 0:
                self.static_members[metadata.instance_id] = member_id
            elif self.static_members.get(metadata.instance_id) == member_id:
                del self.static_members[metadata.instance_id]
        self._memory.charge(sign * (len(self.group_id) + len(member_id) + size_of(metadata)))

    def _replay_current(self, member_id: str, value: CurrentAssignment | None) -> CurrentAssignment | None:
        member = self.members.get(member_id) or Member(member_id)
        before = member.current
        for assignment in (before.assigned, before.revoking):
            self._release(member_id, assignment)
        after = NOTHING_ASSIGNED if value is None else value
        for assignment in (after.assigned, after.revoking):
            for topic_id, partitions in assignment.items():
                self.owners.setdefault(topic_id, {}).update(dict.fromkeys(partitions, member_id))
        self._set(Member(member_id, member.metadata, after))
        return None if before is NOTHING_ASSIGNED else before

    def _release(self, member_id: str, assignment: EpochAssignment) -> None:
        for topic_id, partitions in assignment.items():
            owners = self.owners.get(topic_id, {})
            for partition in partitions:
                if owners.get(partition) == member_id:
                    del owners[partition]
            if not owners:
                self.owners.pop(topic_id, None)

    def charge_to(self, memory: MemberMemory) -> None:
        """Charge the members' memory to `memory`: what they take now, and later changes."""
        memory.charge(self._memory.used_bytes)
        self._memory = memory

    def _set(self, member: Member) -> None:
        if member.metadata is NO_METADATA and member.current is NOTHING_ASSIGNED:
            self.members.pop(member.member_id, None)
            self.unconfirmed.discard(member.member_id)
        else:
            self.members[member.member_id] = member


def size_of(metadata: MemberMetadata) -> int:
    """Estimate the bytes that a member takes, without its ids and its assignment, which the topics bound."""
    names = NAME_BYTES * len(metadata.topics) + sum(map(len, metadata.topics))
    texts = (
        metadata.client_id,
        metadata.client_host,
        metadata.instance_id,
        metadata.rack_id,
        metadata.pattern,
        metadata.assignor,
    )
    return MEMBER_BYTES + names + sum(map(len, filter(None, texts))) + _size_of_classic(metadata.classic)


def _size_of_classic(classic: ClassicMember | None) -> int:
    protocols = () if classic is None else classic.protocols
    return sum(NAME_BYTES + len(name) + len(metadata) for name, metadata in protocols)


def _put(values: dict[str, Any], key: str, value: Any) -> Any:
    """Set or delete a value. Return the former value, None if there was none."""
    before = values.pop(key, None)
    if value is not None:
        values[key] = value
    return before


def _count(counter: Counter[str], names: Iterable[str], sign: int) -> None:
    """Count each name up or down by one. Remove names whose count becomes zero."""
    if sign > 0:
        counter.update(names)
        return
    for name in names:
        left = counter[name] - 1
        if left:
            counter[name] = left
        else:
            del counter[name]
