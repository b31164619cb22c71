"""A group against a model: clients that follow the protocol, and a log and a clock that do as they like.

What must hold whatever happens: nobody is answered twice; a generation has exactly one leader, who is told of
all its members, and all of them have the same; generations only grow; what was committed is never lost; who
goes on asking ends up with an assignment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from mpbroker.coordinator.groups.classic.group import GroupState
from mpbroker.coordinator.groups.member_memory import MEMBER_BYTES
from mpbroker.coordinator.groups.records import OffsetKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    HeartbeatRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupResponse,
)
from tests.support.forms import rounds
from tests.support.group_rig import GroupRig, code_of

REJOIN = {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
RESET = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID}
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
REFUSED = ErrorCode.KAFKA_STORAGE_ERROR


@dataclass(eq=False)
class Client:
    """A consumer as clients write it: one request at a time, and the answer says what it does next."""

    name: str
    instance: str | None
    version: int
    member_id: str = ""
    generation: int = -1
    members: list[str] = field(default_factory=list)
    leads: bool = False
    waiter: int | None = None
    does: str = "join"
    assignment: bytes | None = None

    def ask(self, rig: GroupRig) -> None:
        assert self.waiter is None
        if self.does == "join":
            self.assignment = None
            self.waiter = rig.join(
                self.member_id, instance=self.instance, version=self.version, client=self.name
            )
        elif self.does == "sync":
            shares = {m: f"{m}@{self.generation}".encode() for m in self.members} if self.leads else None
            self.waiter = rig.sync(self.member_id, self.generation, shares, group_instance_id=self.instance)
        else:
            request = HeartbeatRequest("g", self.generation, self.member_id, self.instance)
            self.waiter = rig.ask(request, 4)

    def hear(self, answer: Any) -> None:
        """The answer to what it asked."""
        self.waiter = None
        error = code_of(answer)
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif error is LOADING:
            pass
        elif error in RESET:
            self.member_id, self.generation, self.does = "", -1, "join"
        elif error in REJOIN:
            self.does = "join"
        else:
            assert error is ErrorCode.NONE, error
            self._go_on(answer)

    def _go_on(self, answer: Any) -> None:
        if isinstance(answer, JoinGroupResponse):
            if answer.member_id == self.member_id:
                assert answer.generation_id >= self.generation, "a generation went back"
            self.member_id, self.generation = answer.member_id, answer.generation_id
            self.leads = answer.leader == answer.member_id and not answer.skip_assignment
            self.members = [member.member_id for member in answer.members]
            assert self.leads <= (answer.member_id in self.members)
            self.does = "sync"
        elif isinstance(answer, SyncGroupResponse):
            self.assignment = answer.assignment
            self.does = "heartbeat"


class GroupModel(RuleBasedStateMachine):
    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.rig = GroupRig()
        self.all: list[Client] = []
        self.leaders: dict[int, str] = {}
        self.committed: dict[int, int] = {}
        # Of transactions that have not ended, by producer and partition.
        self.open: dict[int, dict[int, int]] = {}
        self.count = 0

    # --- what clients do

    @initialize(target=clients)
    def first(self) -> Client:
        return self.start(None, 9)

    @rule(
        target=clients, instance=st.sampled_from([None, None, "x", "y"]), version=st.sampled_from([3, 5, 9])
    )
    def start(self, instance: str | None, version: int) -> Client:
        self.count += 1
        client = Client(f"c{self.count}", instance, version)
        self.all.append(client)
        return client

    @rule(client=clients)
    def go_on(self, client: Client) -> None:
        """Send the client's next request unless one is under way, and let it hear an answer."""
        if client.waiter is None:
            client.ask(self.rig)
        self.listen(client)

    def listen(self, client: Client) -> None:
        if client.waiter is None or client.waiter not in self.rig.answers:
            return
        answer = self.rig.answers[client.waiter]
        if isinstance(answer, JoinGroupResponse) and not answer.error_code and answer.members:
            known = self.leaders.setdefault(answer.generation_id, answer.leader)
            # Only a static member that came back has another id in the same generation.
            assert known == answer.leader or client.instance is not None, "a generation has two leaders"
        client.hear(answer)

    @rule(client=clients)
    def connection_breaks(self, client: Client) -> None:
        """Break the connection: the client never hears the answer, and asks again."""
        if client.waiter is not None:
            self.rig.coordinator.abandon(client.waiter)
            assert client.waiter in self.rig.answers or client.does == "heartbeat"
            client.waiter = None

    @rule(client=consumes(clients), politely=st.booleans())
    def ends(self, client: Client, politely: bool) -> None:
        if client.waiter is not None:
            self.rig.coordinator.abandon(client.waiter)
        if politely and client.member_id:
            identity = LeaveGroupRequest.MemberIdentity(client.member_id, client.instance)
            self.rig.ask(LeaveGroupRequest("g", members=[identity]), 5)
        self.all.remove(client)

    @rule(client=clients, partition=st.integers(0, 3))
    def commits(self, client: Client, partition: int) -> None:
        if client.assignment is None:
            return
        offset = max(self.committed.get(partition, 0), *self.pending.get(partition, [0]), 0) + 1
        waiter = self.rig.commit(
            offset,
            client.member_id,
            client.generation,
            partition=partition,
            group_instance_id=client.instance,
        )
        self.rig.settle()
        answer: Any = self.rig.answers[waiter]
        if not isinstance(answer, ErrorCode) and not answer.topics[0].partitions[0].error_code:
            self.committed[partition] = offset

    @rule(partition=st.integers(0, 3), producer=st.integers(7, 9))
    def commits_in_a_transaction(self, partition: int, producer: int) -> None:
        """Commit a larger offset than before, so that the later record has the larger one."""
        offset = max(self.committed.get(partition, 0), *self.pending.get(partition, [0]), 0) + 1
        waiter = self.rig.commit_in_transaction(offset, (producer, 0), partition=partition)
        self.rig.settle()
        answer: Any = self.rig.answers[waiter]
        if not isinstance(answer, ErrorCode) and not answer.topics[0].partitions[0].error_code:
            self.open.setdefault(producer, {})[partition] = offset

    @rule(producer=st.integers(7, 9), is_commit=st.booleans())
    def a_transaction_ends(self, producer: int, is_commit: bool) -> None:
        outcome = self.rig.end(is_commit, (producer, 0))
        self.rig.settle()
        assert outcome == [ErrorCode.NONE]
        for partition, offset in self.open.pop(producer, {}).items():
            if is_commit:
                self.committed[partition] = max(offset, self.committed.get(partition, 0))

    @property
    def pending(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for offsets in self.open.values():
            for partition, offset in offsets.items():
                found.setdefault(partition, [0]).append(offset)
        return found

    # --- what happens around them

    @rule(refused=st.booleans())
    def log_writes(self, refused: bool) -> None:
        self.rig.append_round(REFUSED if refused else ErrorCode.NONE)

    @rule(delay_ms=st.sampled_from([1, 500, 3000, 9000, 30_000]))
    def time_goes_by(self, delay_ms: int) -> None:
        self.rig.later(delay_ms)

    @rule()
    def coordinator_dies(self) -> None:
        """Its successor knows the log. Whoever waited is told, or finds out."""
        before = self.rig
        self.rig = before.restarted()
        self.rig.now_ms = before.now_ms
        self.rig.numbers = before.numbers
        for client in self.all:
            if client.waiter is not None:
                client.waiter, client.does = None, "join" if client.does != "heartbeat" else "heartbeat"

    @rule()
    def log_process_dies(self) -> None:
        """Whatever was under way is unknown; the coordinator reads its log again."""
        self.rig.reload()

    # --- what must hold

    @invariant()
    def all_memory_of_members_is_counted(self) -> None:
        manager = self.rig.coordinator.manager
        used_bytes = 0
        for group in manager.groups.values():
            used_bytes += sum(member.size + len(group.group_id) for member in group.members.values())
            ids = group.pending_joins
            used_bytes += sum(MEMBER_BYTES + len(group.group_id) + len(member_id) for member_id in ids)
        assert manager.memory.used_bytes == used_bytes

    @invariant()
    def the_group_is_in_order(self) -> None:
        group = self.rig.coordinator.manager.groups.get("g")
        if group is None:
            return
        assert (group.leader in group.members) == bool(group.members)
        assert set(group.static_members.values()) <= set(group.members)
        assert group.pending_syncs <= set(group.members)
        if group.state is GroupState.EMPTY:
            assert not group.members
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            assert group.members
            assert all(any(n == group.protocol for n, _ in m.protocols) for m in group.members.values())
        waiting = [m for m in group.members.values() if m.awaits_join or m.awaits_sync]
        assert len(waiting) == self.rig.coordinator.rebalances.waiting

    @invariant()
    def nothing_committed_is_lost(self) -> None:
        offsets = self.rig.coordinator.offsets.of("g")
        for partition, offset in self.committed.items():
            assert offsets["t", partition].offset >= offset
        for partition in range(4):
            is_pending = self.rig.coordinator.offsets.is_pending(OffsetKey("g", "t", partition))
            assert is_pending == (partition in self.pending)

    @precondition(lambda self: self.all)
    @rule()
    def everybody_goes_on_and_gets_an_assignment(self) -> None:
        for _ in range(400):
            for client in self.all:
                self.listen(client)
                if client.waiter is None:
                    client.ask(self.rig)
                self.listen(client)
            self.rig.settle()
            self.rig.later(400)
            instances = [c.instance for c in self.all if c.instance]
            if len(instances) > len(set(instances)):
                # Two of one instance fence each other for ever, as they should.
                return
            if self._all_agree():
                return
        raise AssertionError([(c.name, c.does, c.member_id, c.generation) for c in self.all])

    def _all_agree(self) -> bool:
        group = self.rig.coordinator.manager.groups.get("g")
        if group is None or group.state is not GroupState.STABLE:
            return False
        if set(group.members) != {client.member_id for client in self.all}:
            return False
        if any(c.assignment is None or c.generation != group.generation for c in self.all):
            return False
        for client in self.all:
            assert client.assignment == group.members[client.member_id].assignment
        return True


TestGroupModel = GroupModel.TestCase
TestGroupModel.settings = settings(max_examples=rounds(100), stateful_step_count=40, deadline=None)
