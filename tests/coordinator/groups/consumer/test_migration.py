"""Clients of both protocols in one group: rolled from one to the other, and at random with faults.

What must hold whatever happens: no partition has two owners; memory is what the log says, once all is durable
or undone; the log has the group by one protocol; all clients get their partitions in the end.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from mpbroker.coordinator.groups.classic.group import Group, GroupState
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.groups.consumer.members import SESSION
from mpbroker.protocol.errors import ErrorCode
from tests.support.forms import rounds
from tests.support.group_rig import GroupRig
from tests.support.mixed_group_rig import NewClient, OldClient, check_single_owners, run

REFUSED = ErrorCode.KAFKA_STORAGE_ERROR
SETTINGS: dict[str, Any] = {"group_initial_rebalance_delay_ms": 0}


def kind(rig: GroupRig) -> type:
    return type(rig.coordinator.manager.find("g"))


@pytest.mark.parametrize("is_cooperative", [False, True])
@pytest.mark.parametrize("is_static", [False, True])
def test_clients_are_rolled_to_the_other_protocol_and_back(is_cooperative: bool, is_static: bool) -> None:
    rig = GroupRig(**SETTINGS)
    instances = [f"i{n}" if is_static else None for n in range(3)]
    old = [OldClient(rig, f"o{n}", is_cooperative, instances[n]) for n in range(3)]
    new = [NewClient(rig, f"n{n}", instance=instances[n]) for n in range(3)]
    back = [OldClient(rig, f"b{n}", is_cooperative, instances[n]) for n in range(3)]
    run(rig, old)
    clients: list[OldClient | NewClient] = list(old)
    kinds = []
    for n, successor in [*enumerate(new), *enumerate(back)]:
        if not is_static:
            clients[n].leave()
        elif isinstance(successor, OldClient):
            clients[n].leave(-2)
        clients[n].owned = set()
        clients[n] = successor
        run(rig, clients)
        kinds.append(kind(rig))
    assert kinds == [ConsumerGroup] * 5 + [Group]


class Died(Exception):
    """The coordinator has died."""


class FaultyRig(GroupRig):
    """Its batch with number `fault_at` is refused, or the coordinator dies when that batch is durable."""

    def __init__(self, log: dict[int, bytes] | None, fault_at: int, *, dies: bool) -> None:
        super().__init__(log, **SETTINGS)
        self.fault_at, self.dies, self.batches = fault_at, dies, 0

    def append_round(self, *_args: Any) -> bool:
        self.batches += self.queue.has_work
        if self.batches != self.fault_at or not self.queue.has_work:
            return super().append_round()
        if not self.dies:
            return super().append_round(REFUSED)
        for batch in self.queue.next_round():
            self.log[batch.partition] += batch.batch
        raise Died


def rolled(rig: FaultyRig, is_cooperative: bool) -> FaultyRig:
    """Roll two clients to the other protocol and back. Return the last coordinator."""
    clients: list[OldClient | NewClient] = [OldClient(rig, f"o{n}", is_cooperative) for n in range(2)]
    successors: list[OldClient | NewClient] = [NewClient(rig, f"n{n}") for n in range(2)]
    successors += [OldClient(rig, f"b{n}", is_cooperative) for n in range(2)]

    def until_settled() -> None:
        nonlocal rig
        while True:
            try:
                run(rig, clients)
                break
            except Died:
                before, rig = rig, FaultyRig(rig.log, -1, dies=False)
                rig.now_ms, rig.numbers, rig.ids = before.now_ms, before.numbers, before.ids
                for client in (*clients, *successors):
                    client.rig = rig
                    client.lose()
        found = GroupRig(dict(rig.log), **SETTINGS).coordinator.manager.find("g")
        assert state_of(found) == state_of(rig.coordinator.manager.find("g"))

    until_settled()
    for n, successor in enumerate(successors):
        left, clients[n % 2] = clients[n % 2], successor
        rig.ask(left.farewell(), left.leave_version)
        until_settled()
    return rig


@pytest.mark.parametrize("is_cooperative", [False, True])
@pytest.mark.parametrize("dies", [False, True])
def test_a_roll_survives_a_fault_at_each_write(is_cooperative: bool, dies: bool) -> None:
    writes = rolled(FaultyRig(None, -1, dies=dies), is_cooperative).batches
    assert writes > 15
    for fault_at in range(1, writes + 1):
        rig = rolled(FaultyRig(None, fault_at, dies=dies), is_cooperative)
        assert isinstance(rig.coordinator.manager.find("g"), Group), fault_at


def state_of(group: ConsumerGroup | Group | None) -> Any:
    """What a group's records say of it; of a classic group that is rebalancing, only that it is one."""
    if isinstance(group, ConsumerGroup):
        known = group.members, group.targets, group.patterns, group.owners, group.static_members
        counted = group.subscribers, group.assignor_votes, group.classic_protocols, group.classic_members
        return group.epoch, group.metadata_hash, group.target, known, counted
    if group is None or not group.members:
        return None
    if group.state is not GroupState.STABLE:
        return "rebalancing"
    assignments = {name: (one.instance_id, one.assignment) for name, one in group.members.items()}
    return group.generation, group.protocol, assignments


class Migrations(RuleBasedStateMachine):
    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.rig = GroupRig(**SETTINGS)
        self.all: list[OldClient | NewClient] = []
        self.count = 0

    # --- what clients do

    @rule(target=clients, instance=st.sampled_from([None, None, "x", "y"]), is_cooperative=st.booleans())
    def start_old(self, instance: str | None, is_cooperative: bool) -> OldClient:
        # Both protocols are supported by all, as by clients on their way to the cooperative one.
        client = OldClient(self.rig, self.name(), is_cooperative, instance, protocols=("p",))
        self.all.append(client)
        return client

    @rule(target=clients, instance=st.sampled_from([None, None, "x", "y"]))
    def start_new(self, instance: str | None) -> NewClient:
        client = NewClient(self.rig, self.name(), instance=instance)
        self.all.append(client)
        return client

    def name(self) -> str:
        self.count += 1
        return f"c{self.count}"

    @rule(client=clients)
    def goes_on(self, client: OldClient | NewClient) -> None:
        client.step()

    @rule(times=st.integers(1, 12))
    def all_go_on(self, times: int) -> None:
        for _ in range(times):
            for client in self.all:
                client.step()
                self.rig.settle()
                self.no_partition_has_two_owners()
            self.rig.later(300)

    @rule(client=clients)
    def loses_the_answer(self, client: OldClient | NewClient) -> None:
        if client.waiter is not None:
            self.rig.coordinator.abandon(client.waiter)
            client.lose()

    @rule(client=clients)
    def changes_its_topics(self, client: OldClient | NewClient) -> None:
        if isinstance(client, OldClient):
            client.topics = ("t", "u") if client.topics == ("t",) else ("t",)
            client.does = "join" if client.does == "heartbeat" else client.does

    @rule(client=consumes(clients), politely=st.booleans())
    def ends(self, client: OldClient | NewClient, politely: bool) -> None:
        if client.waiter is not None:
            self.rig.coordinator.abandon(client.waiter)
        self.all.remove(client)
        if politely and client.member_id:
            client.rig.ask(client.farewell(), client.leave_version)

    # --- what happens around them

    @rule(refused=st.booleans())
    def log_writes(self, refused: bool) -> None:
        self.rig.append_round(REFUSED if refused else ErrorCode.NONE)

    @rule(delay_ms=st.sampled_from([1, 500, 3000, 9000, 30_000]))
    def time_goes_by(self, delay_ms: int) -> None:
        self.rig.later(delay_ms)

    @rule()
    def coordinator_dies(self) -> None:
        before = self.rig
        self.rig = before.restarted()
        self.rig.now_ms, self.rig.numbers = before.now_ms, before.numbers
        for client in self.all:
            client.rig = self.rig
            client.lose()

    @rule()
    def log_process_dies(self) -> None:
        self.rig.reload()

    @rule()
    def a_topic_grows(self) -> None:
        self.rig.topics["u"] += 1
        self.rig.coordinator.topics_changed(["u"])

    # --- what must hold

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        check_single_owners(self.rig, self.all)

    @invariant()
    def memory_is_what_the_log_says(self) -> None:
        """Read the log as a successor would, at each boundary of a batch."""
        successor = GroupRig(dict(self.rig.log), **SETTINGS)
        group = self.rig.coordinator.manager.find("g")
        found = successor.coordinator.manager.find("g")
        if not self.rig.queue.is_idle:
            return
        before, after = state_of(group), state_of(found)
        if "rebalancing" in (before, after):
            assert not isinstance(group, ConsumerGroup)
            assert not isinstance(found, ConsumerGroup)
        elif not (isinstance(group, Group) and isinstance(found, Group)):
            assert before == after

    @invariant()
    def memory_of_members_is_counted(self) -> None:
        manager = self.rig.coordinator.manager
        successor = GroupRig(dict(self.rig.log), **SETTINGS).coordinator.manager
        group = manager.find("g")
        if group is None or not (group.members or getattr(group, "pending_joins", None)):
            assert manager.memory.used_bytes == 0
        elif isinstance(group, ConsumerGroup) and self.rig.queue.is_idle:
            assert manager.memory.used_bytes == successor.memory.used_bytes

    @invariant()
    def sessions_are_of_members(self) -> None:
        """A classic member whose request waits may have none."""
        group, sessions = self.rig.coordinator.manager.find("g"), self.rig.coordinator.timers.count(SESSION)
        if isinstance(group, ConsumerGroup):
            assert sessions == len(group.members)
        elif isinstance(group, Group):
            assert sessions <= len(group.members) + len(group.pending_joins)
        else:
            assert sessions == 0

    @precondition(lambda self: self.all)
    @rule()
    def all_go_on_and_get_their_partitions(self) -> None:
        instances = [client.instance for client in self.all if client.instance]
        if len(instances) == len(set(instances)):
            self.rig.later(60_000)
            for client in self.all:
                client.topics = ("t",)
            run(self.rig, self.all)


TestMigrations = Migrations.TestCase
TestMigrations.settings = settings(max_examples=rounds(100), stateful_step_count=40, deadline=None)
