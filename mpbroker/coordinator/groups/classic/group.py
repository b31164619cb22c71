"""A group of the classic protocol: its members, their protocols and waiting requests. No clock, no I/O.

(Kafka: ClassicGroup, ClassicGroupMember, ClassicGroupState.)

    Empty ──► PreparingRebalance ──► CompletingRebalance ──► Stable
      ▲              │  ▲                   │                  │
      └──────────────┘  └───────────────────┴──────────────────┘        Dead: about to be deleted
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from mpbroker.coordinator.groups.log_text import shown
from mpbroker.coordinator.groups.member_memory import MEMBER_BYTES, NAME_BYTES, MemberMemory
from mpbroker.coordinator.groups.records import GroupValue, MemberValue
from mpbroker.coordinator.runtime.requests import Waiter
from mpbroker.protocol.consumer_protocol import CONSUMER_PROTOCOL, decode_topics
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import JoinGroupResponse
from mpbroker.protocol.wire import MalformedMessage

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""Name and metadata of each protocol that a member supports, in its order of preference."""

# Topics of a member's subscription that are read, and of all members together. If there are more, the group
# counts as subscribed to every topic: none of its offsets expires or is deleted by mistake.
SUBSCRIPTION_MAX: Final = 10_000
SUBSCRIBED_MAX: Final = 100_000

log = logging.getLogger("mpbroker.coordinator.groups")


class GroupState(Enum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


REBALANCES_FROM: Final = (GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE)


@dataclass(eq=False)
class Member:
    """A member of a group.

    `is_new`: no join phase has been completed since the client joined the group.
    `knows_its_id`: the client had received its member id before it joined (KIP-394).
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    knows_its_id: bool = True
    awaits_join: Waiter | None = None
    awaits_sync: Waiter | None = None
    # Charged to the memory of its group.
    charged_bytes: int = 0

    @property
    def size(self) -> int:
        """Return an estimate of the memory that the member takes, in bytes."""
        names = len(self.member_id) + len(self.instance_id or "") + len(self.client_id)
        return MEMBER_BYTES + names + len(self.assignment) + size_of(self.protocols)

    @property
    def is_alive_without_heartbeats(self) -> bool:
        """True if the session must not expire: the member is not new, and its join or sync is waiting."""
        return not self.is_new and (self.awaits_join is not None or self.awaits_sync is not None)

    def metadata(self, protocol: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise ValueError(f"member {self.member_id} does not support protocol {protocol}")


@dataclass(eq=False)
class Group:
    """A group. `state_ms`: when its state changed (milliseconds since 1970), None if unknown.

    `static_members`: member ids by instance id.
    `pending_joins`: member ids that clients received with MEMBER_ID_REQUIRED and have not used to join yet.
    `pending_syncs`: ids of members that have not sent SyncGroup in this generation yet.
    `failed_writes`: how many writes of assignments have failed since the last success.
    `subscribed`: the topics of all members, None if their subscriptions cannot be read.
    """

    group_id: str
    state: GroupState = GroupState.EMPTY
    previous_state: GroupState = GroupState.DEAD
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    state_ms: int | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    pending_joins: set[str] = field(default_factory=set)
    pending_syncs: set[str] = field(default_factory=set)
    member_joined_meanwhile: bool = False
    failed_writes: int = 0
    subscribed: frozenset[str] | None = None
    memory: MemberMemory = field(default_factory=MemberMemory)
    _supported: Counter[str] = field(default_factory=Counter)

    @classmethod
    def from_record(cls, group_id: str, value: GroupValue, memory: MemberMemory) -> Group:
        """Make a group from its last record. The group is Stable if it has members, else Empty."""
        group = cls(
            group_id,
            state=GroupState.STABLE if value.members else GroupState.EMPTY,
            generation=value.generation,
            protocol_type=value.protocol_type or None,
            protocol=value.protocol,
            leader=value.leader,
            state_ms=None if value.state_ms < 0 else value.state_ms,
            memory=memory,
        )
        for m in value.members:
            member = Member(
                m.member_id,
                m.instance_id,
                m.client_id,
                m.client_host,
                m.rebalance_timeout_ms,
                m.session_timeout_ms,
                ((value.protocol or "", m.subscription),),
                m.assignment,
            )
            group.add(member, value.protocol_type)
        group.subscribed = group.subscribed_topics()
        return group

    def to_record(self, assignments: dict[str, bytes], state_ms: int) -> GroupValue:
        """Return the value of the group's record for this generation. `assignments` is by member id."""
        return GroupValue(
            self.protocol_type or "",
            self.generation,
            self.protocol,
            self.leader,
            state_ms,
            tuple(
                MemberValue(
                    m.member_id,
                    m.instance_id,
                    m.client_id,
                    m.client_host,
                    m.rebalance_timeout_ms,
                    m.session_timeout_ms,
                    m.metadata(self.protocol),
                    assignments.get(m.member_id, b""),
                )
                for m in self.members.values()
            ),
        )

    # --- members

    def add(self, member: Member, protocol_type: str) -> None:
        if member.instance_id is not None:
            assert member.instance_id not in self.static_members
            self.static_members[member.instance_id] = member.member_id
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._supported.update(name for name, _ in member.protocols)
        self._expect_no_more(member.member_id)
        self._charge(member)

    def expect(self, member_id: str) -> None:
        """Note that a client has received this member id and has not joined with it yet."""
        self.pending_joins.add(member_id)
        self.memory.charge(self._pending_size(member_id))

    def _expect_no_more(self, member_id: str) -> None:
        if member_id in self.pending_joins:
            self.pending_joins.discard(member_id)
            self.memory.charge(-self._pending_size(member_id))

    def _pending_size(self, member_id: str) -> int:
        return MEMBER_BYTES + len(self.group_id) + len(member_id)

    def expect_no_joins(self) -> None:
        for member_id in list(self.pending_joins):
            self._expect_no_more(member_id)

    def assign(self, member: Member, assignment: bytes) -> None:
        member.assignment = assignment
        self._charge(member)

    def _charge(self, member: Member) -> None:
        size = member.size + len(self.group_id)
        self.memory.charge(size - member.charged_bytes)
        member.charged_bytes = size

    def charge_members(self) -> None:
        """Charge the members' memory again, after `forget_members`."""
        for member in self.members.values():
            self._charge(member)

    def forget_members(self) -> None:
        """Stop charging the members' memory, since the group is dropped."""
        for member in self.members.values():
            self.memory.charge(-member.charged_bytes)
            member.charged_bytes = 0

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending id. If the leader is removed, another member becomes leader."""
        member = self.members.pop(member_id, None)
        if member is not None:
            assert (member.awaits_join, member.awaits_sync) == (None, None)
            self._remove_protocols(member)
            self.memory.charge(-member.charged_bytes)
            if member.instance_id is not None:
                del self.static_members[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self._expect_no_more(member_id)
        self.pending_syncs.discard(member_id)

    def update(
        self, member: Member, protocols: Protocols, rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        self._remove_protocols(member)
        member.protocols = protocols
        self._supported.update(name for name, _ in protocols)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        self._charge(member)

    def replace_static(self, member: Member, new_id: str) -> None:
        """Give a static member a new member id. Clients that use the old member id are fenced."""
        assert member.instance_id is not None
        assert (member.awaits_join, member.awaits_sync) == (None, None)
        self.members = {
            (new_id if key == member.member_id else key): value for key, value in self.members.items()
        }
        if self.leader == member.member_id:
            self.leader = new_id
        self.pending_syncs.discard(member.member_id)
        self.static_members[member.instance_id] = new_id
        member.member_id = new_id

    def _remove_protocols(self, member: Member) -> None:
        self._supported.subtract(name for name, _ in member.protocols)
        self._supported = +self._supported

    def check_member(self, member_id: str, instance_id: str | None) -> Member:
        """Return the member as `member` does, and log the error if the client is fenced. Raises ApiError."""
        try:
            return self.member(member_id, instance_id)
        except ApiError as error:
            if error.code is ErrorCode.FENCED_INSTANCE_ID:
                group_id, names = self.group_id, shown([member_id, instance_id or ""])
                log.info("group %.255s: a member and instance are fenced: %s", group_id, names)
            raise

    def member(self, member_id: str, instance_id: str | None) -> Member:
        """Return the member with that id. Raises ApiError if it is unknown or the client is fenced."""
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            if known != member_id:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    @property
    def awaiting_join(self) -> int:
        return sum(member.awaits_join is not None for member in self.members.values())

    @property
    def all_have_joined(self) -> bool:
        return not self.pending_joins and all(m.awaits_join is not None for m in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def elect_leader_who_joined(self) -> bool:
        """Replace a leader that did not rejoin by a member that did. Return False if no member rejoined."""
        if self.leader is None:
            return False
        if self.members[self.leader].awaits_join is not None:
            return True
        joined = next((m.member_id for m in self.members.values() if m.awaits_join is not None), None)
        if joined is None:
            return False
        log.info("group %.255s: leader %s did not rejoin, %s leads", self.group_id, self.leader, joined)
        self.leader = joined
        return True

    # --- protocols

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Return whether a client can join: all members must support one of its protocols `names`."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        count = len(self.members)
        return self.protocol_type == protocol_type and any(self._supported[name] == count for name in names)

    def select_protocol(self) -> str:
        """Return the protocol with most votes. A member votes for its first protocol that all support."""
        count = len(self.members)
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(name for name, _ in member.protocols if self._supported[name] == count)] += 1
        return max(votes, key=lambda name: votes[name])

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics that members subscribe to; None if they cannot be read or are too many."""
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        if not self.members:
            return frozenset()
        if self.protocol is None:
            return None
        topics: set[str] = set()
        read = 0
        try:
            for member in self.members.values():
                named = decode_topics(member.metadata(self.protocol), SUBSCRIPTION_MAX)
                read += len(named)
                if read > SUBSCRIBED_MAX:
                    raise MalformedMessage(f"the members name more than {SUBSCRIBED_MAX} topics")
                topics.update(named)
        except MalformedMessage as error:
            log.info("group %.255s: a subscription cannot be read: %s", self.group_id, error)
            return None
        return frozenset(topics)

    def is_subscribed_to(self, topic: str) -> bool:
        if self.subscribed is None:
            return self.protocol_type == CONSUMER_PROTOCOL
        return topic in self.subscribed

    # --- states

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    def enter(self, state: GroupState, now_ms: int) -> None:
        """Change the group's state. `now_ms` is milliseconds since 1970."""
        self.previous_state, self.state, self.state_ms = self.state, state, now_ms

    @property
    def can_rebalance(self) -> bool:
        return self.state in REBALANCES_FROM

    def next_generation(self, now_ms: int) -> None:
        """Begin the next generation, at the end of the join phase."""
        self.generation += 1
        self.protocol = self.select_protocol() if self.members else None
        self.subscribed = self.subscribed_topics()
        self.enter(GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY, now_ms)
        self.pending_syncs.clear()

    def for_leader(self) -> list[JoinGroupResponse.JoinGroupResponseMember]:
        """Return the members for the leader's JoinGroup response."""
        return [
            JoinGroupResponse.JoinGroupResponseMember(m.member_id, m.instance_id, m.metadata(self.protocol))
            for m in self.members.values()
        ]


def size_of(protocols: Protocols) -> int:
    """Estimate the bytes of a member's protocols, and of topic names decoded from the selected protocol."""
    names = max((names_in(metadata) for _, metadata in protocols), default=0)
    return NAME_BYTES * names + sum(NAME_BYTES + len(name) + len(metadata) for name, metadata in protocols)


def names_in(subscription: bytes) -> int:
    """Return an upper bound of the number of topics that `decode_topics` finds in a subscription."""
    count = int.from_bytes(subscription[2:6], signed=True)
    return min(count, len(subscription) // 2) if 0 < count <= SUBSCRIPTION_MAX else 0
