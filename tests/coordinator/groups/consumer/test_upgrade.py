from __future__ import annotations

from typing import Any

import pytest

from mpbroker.coordinator.groups.classic.group import Group
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.groups.consumer.members import JOIN, SESSION
from mpbroker.coordinator.groups.consumer.records import (
    CurrentKey,
    EpochKey,
    MemberKey,
    TargetKey,
    TargetMemberKey,
)
from mpbroker.coordinator.groups.records import GroupKey, decode
from mpbroker.protocol.consumer_protocol import encode_assignment
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    SyncGroupRequest,
)
from mpbroker.records.iterate import iterate_batches
from tests.support.consumer_group_rig import Consumer, described
from tests.support.group_rig import SESSION_MS, GroupRig, code_of
from tests.support.mixed_group_rig import NewClient, OldClient, run

REFUSED = ErrorCode.KAFKA_STORAGE_ERROR


@pytest.fixture
def rig() -> GroupRig:
    return GroupRig(group_initial_rebalance_delay_ms=0)


def stable(rig: GroupRig, count: int = 2, **how: Any) -> list[OldClient]:
    """A stable classic group whose members have all partitions."""
    clients = [OldClient(rig, f"o{n}", **how) for n in range(count)]
    run(rig, clients)
    return clients


def refused(rig: GroupRig) -> tuple[ErrorCode, str]:
    """Let a client join by the consumer protocol. Return the error and its text."""
    answer = Consumer(rig, "n").beat()
    return code_of(answer), answer.error_message or ""


def batches(rig: GroupRig) -> list[list[Any]]:
    """The keys of the group's records, by batch."""
    log = rig.log[rig.coordinator.partitions.partition_for("g")]
    found = [
        [decode(record.key, record.value) for record in batch.records()] for batch in iterate_batches(log)
    ]
    return [[entry[0] for entry in entries if entry is not None] for entries in found]


def test_a_classic_group_becomes_a_consumer_group_in_one_batch(rig: GroupRig) -> None:
    a, b = stable(rig)
    generation = a.generation
    new = NewClient(rig, "n")
    new.step()
    rig.settle()
    kinds = [type(key) for key in batches(rig)[-1]]
    converted = [GroupKey, MemberKey, MemberKey, EpochKey, TargetMemberKey, TargetMemberKey, TargetKey]
    # Then the client that has caused it joins.
    joined = [MemberKey, EpochKey]
    assert kinds[:11] == [*converted, CurrentKey, CurrentKey, *joined]
    group = described(rig)
    assert group.group_epoch == generation + 1
    found = {one.member_id: one for one in group.members}
    for client in (a, b):
        member = found[client.member_id]
        assert (member.member_type, member.member_epoch) == (0, generation)
        assert member.subscribed_topic_names == ["t"]
        assigned = {(one.topic_id, p) for one in member.assignment.topic_partitions for p in one.partitions}
        assert assigned == client.owned
    assert found["n"].member_type == 1
    run(rig, [a, b, new])
    assert [len(client.owned) for client in (a, b, new)].count(0) == 0


def test_an_empty_classic_group_is_replaced_whatever_the_policy(rig: GroupRig) -> None:
    rig = GroupRig(group_initial_rebalance_delay_ms=0, group_consumer_migration_policy="disabled")
    (client,) = stable(rig, 1)
    client.leave()
    assert refused(rig)[0] is ErrorCode.NONE
    assert isinstance(rig.coordinator.manager.find("g"), ConsumerGroup)


@pytest.mark.parametrize("policy", ["bidirectional", "UPGRADE", "downgrade", "disabled"])
@pytest.mark.parametrize("most", [2, 1])
@pytest.mark.parametrize(
    ("assignor", "has_user_data"), [("own", False), ("own", True), ("cooperative-sticky", True)]
)
def test_when_a_group_may_become_a_consumer_group(
    policy: str, most: int, assignor: str, has_user_data: bool
) -> None:
    rig = GroupRig(
        group_initial_rebalance_delay_ms=0,
        group_consumer_migration_policy=policy,
        group_consumer_max_size=most,
    )
    ids, generation = joined(rig, 2, protocols=(assignor,))
    data = encode_assignment(0, {"t": [0]})
    shares = {ids[0]: data[:-4] + b"\0\0\0\1u" if has_user_data else data}
    assigned(rig, ids, generation, shares)
    error, text = refused(rig)
    group = rig.coordinator.manager.find("g")
    if policy.lower() not in ("bidirectional", "upgrade"):
        assert text.endswith("because online upgrade is disabled.")
    elif most == 1:
        assert text.endswith("because the group size exceeds the consumer group maximum size.")
    elif has_user_data and assignor == "own":
        assert "because an unsupported custom assignor is in use. Please refer" in text
    else:
        # There is no room for the client that would be its member.
        assert error is ErrorCode.GROUP_MAX_SIZE_REACHED
    if error is not ErrorCode.GROUP_MAX_SIZE_REACHED:
        assert error is ErrorCode.GROUP_ID_NOT_FOUND
        assert text.startswith("Cannot upgrade classic group g to consumer group because ")
    assert isinstance(group, Group)
    # The group goes on as if nothing had happened.
    assert [rig.heartbeat(member_id, generation) for member_id in ids] == [ErrorCode.NONE] * 2
    assert rig.state == "Stable"
    rig.later(SESSION_MS + 1)
    assert rig.state == "Empty"


def joined(rig: GroupRig, count: int, **how: Any) -> tuple[list[str], int]:
    """Members that have joined and wait for assignments, the leader first, and their generation."""
    members = [rig.new_member(**how) for _ in range(count)]
    rig.until_answered(members[0][1])
    # The others join while the first rebalance is over: all join again.
    waiters = [rig.join(member_id, **how) for member_id, _ in members]
    rig.until_answered(*waiters)
    answers = [rig.joined(waiter) for waiter in waiters]
    leader = answers[0].leader
    return sorted((one.member_id for one in answers), key=lambda name: name != leader), answers[
        0
    ].generation_id


def assigned(rig: GroupRig, ids: list[str], generation: int, shares: dict[str, bytes]) -> None:
    waiters = [rig.sync(member_id, generation) for member_id in ids[1:]]
    waiters.append(rig.sync(ids[0], generation, shares))
    rig.settle()
    for waiter in waiters:
        rig.synced(waiter)


@pytest.mark.parametrize(
    ("share", "why"),
    [
        (b"not an assignment", "the embedded consumer protocol is malformed."),
        (encode_assignment(0, {"t": [0]}), "its assignor gives a partition to several members."),
    ],
)
def test_assignments_that_cannot_be_kept(rig: GroupRig, share: bytes, why: str) -> None:
    ids, generation = joined(rig, 2)
    assigned(rig, ids, generation, dict.fromkeys(ids, share))
    error, text = refused(rig)
    assert error is ErrorCode.GROUP_ID_NOT_FOUND
    assert text.endswith(why)
    assert rig.state == "Stable"


def test_a_group_of_another_protocol_type_stays(rig: GroupRig) -> None:
    ids, _ = joined(rig, 1)
    group = rig.coordinator.manager.find("g")
    assert isinstance(group, Group)
    group.protocol_type = "connect"
    error, text = refused(rig)
    assert error is ErrorCode.GROUP_ID_NOT_FOUND
    assert text.endswith("because the group does not use the consumer embedded protocol.")
    assert ids[0] in group.members


def described_ids(rig: GroupRig) -> list[str]:
    return [one.member_id for one in described(rig).members]


def test_a_client_without_an_id_that_waits_is_not_taken_along() -> None:
    rig = GroupRig()
    waiter = rig.join(version=3)
    Consumer(rig, "n").beat()
    assert code_of(rig.answers[waiter]) is ErrorCode.REBALANCE_IN_PROGRESS
    assert described_ids(rig) == ["n"]


@pytest.mark.parametrize("state", ["Stable", "PreparingRebalance", "CompletingRebalance", "Empty"])
def test_a_refused_write_leaves_the_classic_group(state: str) -> None:
    rig = GroupRig(group_initial_rebalance_delay_ms=0)
    clients = stable(rig)
    if state != "Stable":
        clients[0].does = "join"
        clients[0].protocols, clients[0].topics = ("range",), ("t", "u")
        clients[0].step()
    if state == "CompletingRebalance":
        clients[1].does = "join"
        clients[1].step()
    if state == "Empty":
        for client in clients:
            client.waiter = None
            client.leave()
    assert rig.state == state
    memory = rig.coordinator.manager.memory.used_bytes
    waiter = rig.ask(Consumer(rig, "n").request(), 1)
    assert isinstance(rig.coordinator.manager.find("g"), ConsumerGroup)
    for client in clients:
        rig.ask(HeartbeatRequest("g", client.generation, client.member_id))
    rig.append_round(REFUSED)
    assert code_of(rig.answers[waiter]) is ErrorCode.NOT_COORDINATOR
    assert rig.coordinator.timers.count(JOIN) == 0
    assert isinstance(rig.coordinator.manager.find("g"), Group)
    assert rig.coordinator.manager.memory.used_bytes == memory
    # The answers to those that waited are gone: they join again.
    assert rig.state == state.replace("Completing", "Preparing")
    if state == "Empty":
        return
    for client in clients:
        client.topics = ("t",)
    run(rig, clients)
    assert rig.state == "Stable"
    # Their sessions are watched.
    rig.later(70_000)
    assert rig.state == "Empty"


def test_partitions_whose_assignment_a_rebalance_took_away_keep_their_owner(rig: GroupRig) -> None:
    """Its leader failed between the two phases: the group has no assignments, but clients have partitions."""
    a, b = stable(rig, 2, is_cooperative=True)
    for _ in range(2):
        for client in (a, b):
            client.does = "join"
            client.step()
        rig.later(1)
        for client in (a, b):
            client.step()
    before = [set(a.owned), set(b.owned)]
    group = rig.coordinator.manager.find("g")
    assert isinstance(group, Group)
    for member in group.members.values():
        group.assign(member, b"")
    Consumer(rig, "n").beat()
    after = []
    for client in (a, b):
        (member,) = [one for one in described(rig).members if one.member_id == client.member_id]
        after.append(
            {(one.topic_id, p) for one in member.assignment.topic_partitions for p in one.partitions}
        )
    assert after == before


def test_a_classic_write_under_way_does_not_come_back(rig: GroupRig) -> None:
    """The leader's assignment becomes durable together with the upgrade: clients were told to join again."""
    ids, generation = joined(rig, 2)
    syncs = [
        rig.sync(ids[1], generation),
        rig.sync(ids[0], generation, {ids[0]: encode_assignment(0, {"t": [0, 1, 2, 3]})}),
    ]
    heartbeat = rig.ask(Consumer(rig, "n").request(), 1)
    assert [code_of(rig.answers[sync]) for sync in syncs] == [ErrorCode.REBALANCE_IN_PROGRESS] * 2
    rig.settle()
    answer = rig.answers[heartbeat]
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    assert not answer.error_code
    before = described(rig)
    assert {one.member_id for one in before.members} == {*ids, "n"}
    assert code_of(rig.now(SyncGroupRequest("g", generation, ids[0]))) is ErrorCode.REBALANCE_IN_PROGRESS
    rig.reload()
    assert described(rig) == before


@pytest.mark.parametrize("outcome", [ErrorCode.NONE, REFUSED])
def test_the_session_of_a_classic_member_goes_on(rig: GroupRig, outcome: ErrorCode) -> None:
    """Neither the conversion nor its undoing lengthens it. What is heard of the member in between does."""
    a, b = stable(rig)
    for client in (a, b):
        assert not rig.heartbeat(client.member_id, client.generation)
    rig.later(SESSION_MS - 1)
    rig.ask(Consumer(rig, "n").request(), 1)
    rig.ask(HeartbeatRequest("g", a.generation, a.member_id))
    assert len(members(rig)) == 3
    rig.append_round(outcome)
    assert len(members(rig)) == (2 if outcome else 3)
    rig.later(1)
    assert members(rig) - {"n"} == {a.member_id}
    # No timer is left of a client that has not become a member.
    assert rig.coordinator.timers.count(SESSION) == len(members(rig))


def members(rig: GroupRig) -> set[str]:
    return set(rig.coordinator.manager.groups["g"].members)
