"""Clients of both protocols in one group, for a group coordinator without I/O (`GroupRig`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mpbroker.protocol.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tests.support.consumer_group_rig import HEARTBEAT_VERSION, Consumer
from tests.support.group_rig import JOIN_VERSION, REBALANCE_MS, SESSION_MS, GroupRig, code_of

# A topic's id and the number of a partition.
Place = tuple[bytes, int]
LOST = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID}


class Client(Protocol):
    member_id: str
    owned: set[Place]

    def step(self) -> None:
        """Send the next request, or hear the answer to the last one."""


@dataclass(eq=False)
class NewClient(Consumer):
    """A client of the consumer protocol that hears its answers later."""

    waiter: int | None = None
    leave_version: int = HEARTBEAT_VERSION

    def step(self) -> None:
        if self.waiter is None:
            self.waiter = self.rig.ask(self.request(), HEARTBEAT_VERSION)
        if self.waiter in self.rig.answers:
            answer: Any = self.rig.answers[self.waiter]
            self.waiter = None
            self.take(answer)

    def lose(self) -> None:
        """Never hear the answer to the last request."""
        self.waiter, self.is_full = None, True

    def farewell(self) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest("g", self.member_id, -1, self.instance)


def subscription(version: int, topics: Sequence[str], owned: dict[str, list[int]], generation: int) -> bytes:
    """A subscription as clients of this version write it."""
    names = b"".join(len(name.encode()).to_bytes(2) + name.encode() for name in topics)
    data = version.to_bytes(2) + len(topics).to_bytes(4) + names + b"\xff\xff\xff\xff"
    if version >= 1:
        # Without its version and user data, an assignment has the form of what is owned.
        data += encode_assignment(0, owned)[2:-4]
    if version >= 2:
        data += generation.to_bytes(4, signed=True)
    return data + (b"\xff\xff" if version >= 3 else b"")


@dataclass(eq=False)
class OldClient:
    """A client of the classic protocol. If it is cooperative, it keeps its partitions in a rebalance."""

    rig: GroupRig
    name: str
    is_cooperative: bool = False
    instance: str | None = None
    topics: tuple[str, ...] = ("t",)
    protocols: tuple[str, ...] = ()
    version: int = 3
    join_version: int = JOIN_VERSION
    session_ms: int = SESSION_MS
    member_id: str = ""
    generation: int = -1
    owned: set[Place] = field(default_factory=set)
    does: str = "join"
    waiter: int | None = None
    leave_version: int = 5
    shares: dict[str, bytes] = field(default_factory=dict)
    protocol: str | None = None
    joins: int = 0

    def step(self) -> None:
        if self.waiter is None:
            self.waiter = self._ask()
        if self.waiter in self.rig.answers:
            answer = self.rig.answers[self.waiter]
            self.waiter = None
            self._hear(answer)

    # --- what it asks

    def _ask(self) -> int:
        if self.does == "join":
            return self.join()
        if self.does == "sync":
            shares = [SyncGroupRequest.SyncGroupRequestAssignment(*share) for share in self.shares.items()]
            request = SyncGroupRequest(
                "g", self.generation, self.member_id, self.instance, "consumer", self.protocol, shares
            )
            return self.rig.ask(request, 5, self.name)
        return self.rig.ask(HeartbeatRequest("g", self.generation, self.member_id, self.instance), 4)

    def join(self) -> int:
        self.joins += 1
        if not self.is_cooperative:
            self.owned = set()
        names = self.protocols or (("cooperative-sticky",) if self.is_cooperative else ("range",))
        owned = self.by_name(self.owned)
        metadata = subscription(self.version, self.topics, owned, self.generation)
        request = JoinGroupRequest(
            "g",
            self.session_ms,
            REBALANCE_MS,
            self.member_id,
            self.instance,
            "consumer",
            [JoinGroupRequest.JoinGroupRequestProtocol(name, metadata) for name in names],
        )
        return self.rig.ask(request, self.join_version, self.name)

    def lose(self) -> None:
        """Never hear the answer to the last request, and join again unless it was a heartbeat."""
        self.does = "join" if self.waiter is not None and self.does != "heartbeat" else self.does
        self.waiter = None

    def farewell(self) -> LeaveGroupRequest:
        identity = LeaveGroupRequest.MemberIdentity(self.member_id, self.instance)
        return LeaveGroupRequest("g", members=[identity])

    def leave(self) -> None:
        answer = self.rig.now(self.farewell(), 5)
        assert [one.error_code for one in answer.members] == [0]

    def by_name(self, places: set[Place]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for topic_id, number in sorted(places):
            found.setdefault(self.rig.name_of(topic_id) or "", []).append(number)
        return found

    # --- what it hears

    def _hear(self, answer: Any) -> None:
        error = code_of(answer)
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif error in LOST:
            self.owned, self.generation, self.does = set(), -1, "join"
            if error is not ErrorCode.ILLEGAL_GENERATION:
                self.member_id = ""
        elif error:
            self.does = "join" if self.does != "heartbeat" or error is REBALANCE else self.does
        elif isinstance(answer, JoinGroupResponse):
            self.member_id, self.generation = answer.member_id, answer.generation_id
            self.protocol, self.does = answer.protocol_name, "sync"
            leads = answer.leader == answer.member_id and bool(answer.members)
            self.shares = self.lead(answer) if leads else {}
        elif isinstance(answer, SyncGroupResponse):
            self._take(answer.assignment)

    def _take(self, assignment: bytes) -> None:
        parts = decode_assignment(assignment)[0] if assignment else {}
        assigned = {(id_of(self.rig, topic), number) for topic, found in parts.items() for number in found}
        revokes = bool(self.owned - assigned)
        self.owned = assigned
        # A cooperative client joins again when it has given up partitions, so that others get them.
        self.does = "join" if self.is_cooperative and revokes else "heartbeat"

    def lead(self, answer: JoinGroupResponse) -> dict[str, bytes]:
        """Divide the partitions. Of cooperative members, none gets what another one has to give up first."""
        wanted = {one.member_id: decode_subscription(one.metadata) for one in answer.members}
        places = [(topic, number) for topic in self.topics for number in range(self.rig.partitions_of(topic))]
        owners = {
            (topic, number): member_id
            for member_id, found in wanted.items()
            for topic, numbers in found.owned.items()
            for number in numbers
        }
        quota = -(-len(places) // len(wanted))
        shares: dict[str, list[tuple[str, int]]] = {member_id: [] for member_id in wanted}
        rest = []
        for place in places:
            owner = owners.get(place)
            if owner is not None and len(shares[owner]) < quota:
                shares[owner].append(place)
            else:
                rest.append(place)
        for place in rest:
            least = min(shares, key=lambda member_id: len(shares[member_id]))
            if place not in owners or not self.is_cooperative:
                shares[least].append(place)
        return {
            member_id: encode_assignment(
                0, {topic: [n for name, n in share if name == topic] for topic in dict(share)}
            )
            for member_id, share in shares.items()
        }


REBALANCE = ErrorCode.REBALANCE_IN_PROGRESS


def id_of(rig: GroupRig, topic: str) -> bytes:
    found = rig.id_of(topic)
    assert found is not None
    return found


def check_single_owners(rig: GroupRig, clients: Sequence[Client]) -> None:
    """A client that has been removed and has not heard of it does not count."""
    group = rig.coordinator.manager.find("g")
    members = {} if group is None else group.members
    counts = Counter(place for client in clients if client.member_id in members for place in client.owned)
    assert not [place for place, count in counts.items() if count > 1], "a partition has two owners"


def run(
    rig: GroupRig, clients: Sequence[Client], *, until: Callable[[], bool] | None = None, rounds: int = 200
) -> None:
    """Let the clients go on until each partition has an owner and nothing changes, or as `until` says."""
    everything = {(id_of(rig, "t"), number) for number in range(rig.partitions_of("t"))}
    quiet = 0
    for _ in range(rounds):
        before = [set(client.owned) for client in clients]
        for client in clients:
            client.step()
            rig.settle()
            check_single_owners(rig, clients)
        rig.later(700)
        if until is not None:
            if until():
                return
            continue
        is_same = before == [client.owned for client in clients]
        has_all = everything <= set().union(*(client.owned for client in clients))
        quiet = quiet + 1 if is_same and has_all and all(map(_is_settled, clients)) else 0
        if quiet == 4:
            return
    raise AssertionError([(client, sorted(client.owned)) for client in clients])


def _is_settled(client: Client) -> bool:
    return not isinstance(client, OldClient) or client.does == "heartbeat"
