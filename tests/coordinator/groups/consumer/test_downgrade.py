from __future__ import annotations

from typing import Any

import pytest

from mpbroker.coordinator.groups.classic.group import Group
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.groups.consumer.members import SESSION
from mpbroker.coordinator.groups.consumer.records import (
    CurrentKey,
    EpochKey,
    MemberKey,
    TargetKey,
    TargetMemberKey,
)
from mpbroker.coordinator.groups.records import GroupKey, decode
from mpbroker.protocol.consumer_protocol import decode_assignment, version_of
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import HeartbeatRequest, LeaveGroupRequest
from mpbroker.records.iterate import iterate_batches
from tests.support.consumer_group_rig import described
from tests.support.group_rig import SESSION_MS, GroupRig, code_of
from tests.support.mixed_group_rig import NewClient, OldClient, run

REFUSED = ErrorCode.KAFKA_STORAGE_ERROR
NEW_SESSION_MS = 45_000


def mixed(
    old: int = 2, *, instance: str | None = None, **how: Any
) -> tuple[GroupRig, list[OldClient], NewClient]:
    """A consumer group at rest with a member of the consumer protocol, and classic ones."""
    rig = GroupRig(**{"group_initial_rebalance_delay_ms": 0, **how})
    clients = [OldClient(rig, f"o{n}", is_cooperative=True) for n in range(old)]
    new = NewClient(rig, "n", instance=instance)
    run(rig, [new])
    run(rig, [*clients, new])
    return rig, clients, new


def group_of(rig: GroupRig) -> Group:
    group = rig.coordinator.manager.find("g")
    assert isinstance(group, Group)
    return group


def in_order(rig: GroupRig) -> Any:
    """The description of a consumer group, its members by id."""
    found = described(rig)
    found.members.sort(key=lambda member: member.member_id)
    return found


def is_classic(rig: GroupRig) -> bool:
    return isinstance(rig.coordinator.manager.find("g"), Group)


def test_the_last_other_member_leaves() -> None:
    rig, clients, new = mixed()
    epoch = described(rig).group_epoch
    new.leave()
    group = group_of(rig)
    assert (group.generation, group.protocol_type, rig.state) == (epoch, "consumer", "PreparingRebalance")
    assert group.leader == clients[0].member_id
    for client in clients:
        member = group.members[client.member_id]
        parts, _ = decode_assignment(member.assignment)
        assert {("t", number) for _, number in client.owned} == {("t", n) for n in parts["t"]}
        # As long as that of the client's subscription.
        assert version_of(member.assignment) == client.version
        assert member.session_timeout_ms == SESSION_MS
    run(rig, clients)
    assert rig.state == "Stable"
    rig.later(SESSION_MS * 3)
    assert rig.state == "Empty"


def test_all_records_are_in_one_batch() -> None:
    rig, _, new = mixed(1)
    new.leave()
    *_, last = iterate_batches(rig.log[rig.coordinator.partitions.partition_for("g")])
    entries = [decode(record.key, record.value) for record in last.records()]
    keys = [type(entry[0]) for entry in entries if entry is not None]
    members = [CurrentKey, CurrentKey, TargetMemberKey, TargetMemberKey, TargetKey, MemberKey, MemberKey]
    assert keys == [*members, EpochKey, GroupKey]
    assert [entry[1] is None for entry in entries if entry is not None] == [True] * 8 + [False]
    state = group_of(rig)
    found = rig.restarted().coordinator.manager.find("g")
    assert isinstance(found, Group)
    assert (found.generation, found.members.keys()) == (state.generation, state.members.keys())


def test_members_keep_what_they_have_though_the_target_is_another() -> None:
    rig = GroupRig(group_initial_rebalance_delay_ms=0)
    old, new = OldClient(rig, "o", is_cooperative=True), NewClient(rig, "n")
    run(rig, [old])
    new.step()
    rig.settle()
    assert [len(one.target_assignment.topic_partitions[0].partitions) for one in described(rig).members] == [
        2,
        2,
    ]
    rig.ask(new.farewell(), 1)
    assert decode_assignment(group_of(rig).members[old.member_id].assignment)[0] == {"t": {0, 1, 2, 3}}
    run(rig, [old])


def test_the_last_other_member_is_fenced() -> None:
    rig, clients, new = mixed()
    for _ in range(NEW_SESSION_MS // 2_000 + 1):
        assert not is_classic(rig)
        for client in clients:
            client.step()
        rig.later(2_000)
    assert is_classic(rig)
    new.owned = set()
    run(rig, clients)


def test_the_last_other_member_is_removed_by_an_admin() -> None:
    rig, clients, new = mixed(instance="i")
    identity = LeaveGroupRequest.MemberIdentity("", "i")
    answer = rig.now(LeaveGroupRequest("g", members=[identity]), 5)
    assert [one.error_code for one in answer.members] == [0]
    assert is_classic(rig)
    run(rig, clients)
    new.step()
    new.step()
    assert new.epoch == 0 or not is_classic(rig)


@pytest.mark.parametrize("policy", ["bidirectional", "Downgrade", "upgrade", "disabled"])
@pytest.mark.parametrize("most", [2, 1])
def test_when_a_group_may_become_a_classic_group(policy: str, most: int) -> None:
    rig, clients, new = mixed(group_consumer_migration_policy=policy, group_max_size=most)
    new.leave()
    assert is_classic(rig) is (policy.lower() in ("bidirectional", "downgrade") and most == 2)
    run(rig, clients)


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_static_member_returns_by_the_classic_protocol(is_changed: bool) -> None:
    rig, clients, new = mixed(instance="i")
    epoch = described(rig).group_epoch
    owned = set(new.owned)
    new.leave(-2)
    back = OldClient(rig, "b", is_cooperative=True, instance="i", topics=("t", "u") if is_changed else ("t",))
    waiter = back.join()
    assert is_classic(rig)
    assert waiter not in rig.answers
    rig.settle()
    if is_changed:
        # It waits for the others.
        assert waiter not in rig.answers
        assert rig.state == "PreparingRebalance"
    else:
        answer = rig.joined(waiter)
        assert (answer.generation_id, answer.leader, answer.members) == (epoch, "", [])
        assert rig.state == "Stable"
    back.waiter = waiter
    run(rig, [*clients, back], until=lambda: back.does == "heartbeat")
    assert is_changed or back.owned == owned
    run(rig, [*clients, back])
    assert is_changed or back.generation == epoch
    # Its session is watched.
    rig.later(SESSION_MS * 2)
    assert back.member_id not in group_of(rig).members


def test_silent_members_are_removed_though_there_was_no_rebalance() -> None:
    rig, _, new = mixed(instance="i")
    new.leave(-2)
    back = OldClient(rig, "b", is_cooperative=True, instance="i")
    back.step()
    rig.settle()
    assert rig.state == "Stable"
    rig.later(SESSION_MS)
    assert rig.state == "Empty"


def test_a_member_turns_to_the_classic_protocol_under_its_id() -> None:
    rig, clients, new = mixed()
    back = OldClient(rig, "b", is_cooperative=True, member_id=new.member_id)
    back.step()
    assert is_classic(rig)
    run(rig, [*clients, back])


@pytest.mark.parametrize("is_static", [False, True])
def test_a_refused_write_leaves_the_consumer_group(is_static: bool) -> None:
    rig, clients, new = mixed(instance="i" if is_static else None)
    if is_static:
        new.leave(-2)
    before, memory = in_order(rig), rig.coordinator.manager.memory.used_bytes
    back = OldClient(rig, "b", is_cooperative=True, instance="i", topics=("t", "u"))
    waiter = back.join() if is_static else rig.ask(new.farewell(), 1)
    rig.queue.next_round()
    # What clients do meanwhile is undone, too: they join the classic group, whose leader assigns.
    for client in clients:
        client.does = "join"
        client.waiter = client.join()
    if is_static:
        assert rig.joined(waiter).leader
        for client in clients:
            client.step()
            client.step()
    assert is_classic(rig)
    assert rig.queue.is_idle is False
    rig.queue.finish([REFUSED])
    assert not is_classic(rig)
    assert code_of(rig.answers[waiter]) in (ErrorCode.NOT_COORDINATOR, ErrorCode.NONE)
    assert not rig.append_round()
    assert in_order(rig) == before
    assert rig.coordinator.manager.memory.used_bytes == memory
    assert in_order(GroupRig(dict(rig.log))) == before
    if not is_static:
        run(rig, [*clients, new])
        return
    back.owned = set()
    run(rig, [*clients, back])


@pytest.mark.parametrize("outcome", [ErrorCode.NONE, REFUSED])
def test_the_sessions_of_the_other_members_go_on(outcome: ErrorCode) -> None:
    rig, clients, new = mixed()
    for client in clients:
        assert rig.heartbeat(client.member_id, client.generation) is ErrorCode.NONE
    rig.later(SESSION_MS - 1)
    rig.ask(new.farewell(), 1)
    assert is_classic(rig)
    rig.ask(HeartbeatRequest("g", clients[0].generation, clients[0].member_id))
    rig.join(version=3, protocols=("cooperative-sticky",))
    rig.append_round(outcome)
    assert is_classic(rig) is not bool(outcome)
    rig.later(1)
    members = set(rig.coordinator.manager.groups["g"].members)
    assert (clients[0].member_id in members, clients[1].member_id in members) == (True, False)
    assert (new.member_id in members, len(members)) == (bool(outcome), 2)
    assert rig.coordinator.timers.count(SESSION) == 2


def test_an_empty_consumer_group_becomes_a_classic_one() -> None:
    rig, clients, new = mixed(1)
    clients[0].leave()
    new.leave()
    new.epoch, new.owned = 0, set()
    new.step()
    rig.settle()
    new.leave()
    assert isinstance(rig.coordinator.manager.find("g"), ConsumerGroup)
    stale = OldClient(rig, "s", member_id="stale")
    assert code_of(rig.answers[stale.join()]) is ErrorCode.UNKNOWN_MEMBER_ID
    assert not is_classic(rig)
    back = OldClient(rig, "b")
    back.step()
    assert is_classic(rig)
    assert rig.append_round(REFUSED)
    assert not is_classic(rig)
    assert rig.coordinator.manager.memory.used_bytes == 0
    run(rig, [back])
    assert rig.state == "Stable"
    found = rig.restarted().coordinator.manager.find("g")
    assert isinstance(found, Group)
    assert found.members.keys() == {back.member_id}
