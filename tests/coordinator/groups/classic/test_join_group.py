"""JoinGroup: who may join, and members that keep their place over a restart (KIP-345, KIP-814)."""

from __future__ import annotations

import pytest

from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import JoinGroupRequest
from tests.support.group_rig import REBALANCE_MS, GroupRig, code_of, error_of
from tests.support.services_rig import ServicesRig

DELAY_MS = 3000


def static_group(rig: GroupRig) -> str:
    """A stable group of one static member; -> its member id."""
    waiter = rig.join(instance="one")
    rig.later(3000)
    member_id = rig.joined(waiter).member_id
    assert member_id.startswith("one-")
    sync = rig.sync(member_id, 1, {member_id: b"all"}, group_instance_id="one")
    rig.settle()
    assert rig.synced(sync) == b"all"
    return member_id


def test_only_the_leader_hears_of_all_members(rig: GroupRig) -> None:
    members = [rig.new_member() for _ in range(3)]
    rig.later(REBALANCE_MS)
    answers = [rig.joined(waiter) for _, waiter in members]
    assert len({answer.leader for answer in answers}) == 1
    assert sorted(len(answer.members) for answer in answers) == [0, 0, 3]
    assert next(a for a in answers if a.members).member_id == answers[0].leader


def test_versions_before_4_need_no_member_id(rig: GroupRig) -> None:
    waiter = rig.join(version=3)
    rig.later(DELAY_MS)
    assert rig.joined(waiter).member_id.startswith("c-")


def test_the_protocol_is_one_that_all_support_and_most_like(rig: GroupRig) -> None:
    wishes = [("a", "b", "c"), ("b", "a"), ("b", "c", "a")]
    waiters = [rig.new_member(protocols=protocols)[1] for protocols in wishes]
    rig.later(REBALANCE_MS)
    assert {rig.joined(waiter).protocol_name for waiter in waiters} == {"b"}


def test_a_protocol_that_is_named_twice_is_one_vote(rig: GroupRig) -> None:
    waiters = [rig.new_member(protocols=protocols)[1] for protocols in [("a", "a", "b"), ("b", "b"), ("b",)]]
    rig.later(REBALANCE_MS)
    assert {rig.joined(waiter).protocol_name for waiter in waiters} == {"b"}


def test_a_join_that_fails_after_it_began_to_wait_is_answered_once() -> None:
    rig = ServicesRig()
    coordinator = rig.services.groups.shard

    def broken(*_: object) -> None:
        raise RuntimeError("a fault")

    coordinator.rebalances.rebalance_or_complete, whole = broken, coordinator.rebalances.rebalance_or_complete
    protocols = [JoinGroupRequest.JoinGroupRequestProtocol("range", b"")]
    request = JoinGroupRequest("g", 10_000, 60_000, protocol_type="consumer", protocols=protocols)
    failed = rig.send(request, 3)
    assert rig.heard(failed) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert coordinator.rebalances.waiting == 0
    coordinator.rebalances.rebalance_or_complete = whole
    # Its member counts until its session ends; nobody is answered for it once more.
    for member in list(coordinator.manager.groups["g"].members.values()):
        coordinator.rebalances.remove(coordinator.manager.groups["g"], member)


def test_a_member_without_a_common_protocol_is_refused(rig: GroupRig) -> None:
    rig.stable(1)
    waiter = rig.join(protocols=("roundrobin",))
    assert error_of(rig, waiter) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    empty = rig.join(group="new", protocols=())
    assert error_of(rig, empty) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert "new" not in rig.coordinator.manager.groups


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_ms": 5999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_joins_that_are_refused(rig: GroupRig, how: dict[str, object], error: ErrorCode) -> None:
    assert error_of(rig, rig.join(**how)) is error  # type: ignore[arg-type]


def test_a_full_group_takes_nobody() -> None:
    small = GroupRig(group_max_size=1)
    ids, _ = small.stable(1)
    assert error_of(small, small.join()) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert small.joined(small.join(ids[0])).generation_id == 2


def test_a_follower_that_joins_again_unchanged_gets_the_same_generation(rig: GroupRig) -> None:
    ids, generation = rig.stable(2)
    answer = rig.joined(rig.join(ids[1]))
    assert (answer.generation_id, answer.members) == (generation, [])
    assert rig.state == "Stable"
    changed = rig.join(ids[1], topics=("t", "u"))
    assert changed not in rig.answers
    assert rig.state == "PreparingRebalance"


def test_it_comes_back_without_a_rebalance_and_its_former_self_is_fenced(rig: GroupRig) -> None:
    old = static_group(rig)
    waiter = rig.join(instance="one")
    assert waiter not in rig.answers  # the new id has to be durable
    rig.settle()
    joined = rig.joined(waiter)
    assert (joined.generation_id, joined.skip_assignment, joined.leader) == (1, True, joined.member_id)
    assert len(joined.members) == 1
    assert rig.heartbeat(old, 1, "one") is ErrorCode.FENCED_INSTANCE_ID
    assert rig.heartbeat(joined.member_id, 1, "one") is ErrorCode.NONE
    assert code_of(rig.answers[rig.join(old, instance="one")]) is ErrorCode.FENCED_INSTANCE_ID
    assert rig.synced(rig.sync(joined.member_id, 1, group_instance_id="one")) == b"all"
    assert set(rig.restarted().coordinator.manager.groups["g"].members) == {joined.member_id}


def test_before_version_9_a_leader_is_not_told_that_it_leads(rig: GroupRig) -> None:
    old = static_group(rig)
    waiter = rig.join(instance="one", version=8)
    rig.settle()
    joined = rig.joined(waiter)
    assert (joined.leader, joined.members, joined.skip_assignment) == (old, [], False)


def test_if_its_new_id_cannot_be_written_the_old_one_stays(rig: GroupRig) -> None:
    old = static_group(rig)
    waiter = rig.join(instance="one")
    rig.append_round(ErrorCode.KAFKA_STORAGE_ERROR)
    assert code_of(rig.answers[waiter]) is ErrorCode.NOT_COORDINATOR
    assert rig.heartbeat(old, 1, "one") is ErrorCode.NONE


def test_while_others_join_it_takes_its_place_among_them(rig: GroupRig) -> None:
    first = rig.join(instance="one")
    second = rig.join(instance="one")
    assert code_of(rig.answers[first]) is ErrorCode.FENCED_INSTANCE_ID
    rig.later(6000)
    assert [m.group_instance_id for m in rig.joined(second).members] == ["one"]


def test_while_the_leader_assigns_it_starts_anew(rig: GroupRig) -> None:
    waiter = rig.join(instance="one")
    rig.later(3000)
    old = rig.joined(waiter).member_id
    sync = rig.sync(old, 1, {old: b"all"}, group_instance_id="one")
    again = rig.join(instance="one")
    assert code_of(rig.answers[sync]) is ErrorCode.FENCED_INSTANCE_ID
    assert rig.joined(again).generation_id == 2
    rig.settle()
    assert rig.state == "CompletingRebalance"


def test_other_protocols_start_a_rebalance(rig: GroupRig) -> None:
    static_group(rig)
    waiter = rig.join(instance="one", protocols=("sticky", "range"))
    assert rig.joined(waiter).generation_id == 2
    assert rig.joined(waiter).protocol_name == "sticky"


def test_a_static_member_keeps_its_place_until_its_session_ends(rig: GroupRig) -> None:
    member_id = static_group(rig)
    newcomer, waiter = rig.new_member()
    while waiter not in rig.answers:
        rig.later(5000)
    # It did not rejoin and its session has ended.
    assert set(rig.coordinator.manager.groups["g"].members) == {newcomer}
    assert rig.heartbeat(member_id, 1, "one") is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_operator_removes_it_by_its_instance(rig: GroupRig) -> None:
    static_group(rig)
    assert rig.leave(("", "one"), ("", "two")) == [0, 25]
    assert rig.state == "Empty"
    assert rig.leave(("stranger", "one")) == [25]


def test_what_members_take_is_given_back(rig: GroupRig) -> None:
    """Check that the memory of members is counted back to nothing, whichever way they went."""
    memory = rig.coordinator.manager.memory
    ids, _ = rig.stable(2)
    full = memory.used_bytes
    assert full > 2000
    pending = rig.answers[rig.join()]
    assert memory.used_bytes > full
    rig.join(instance="one", session_ms=6000)
    rig.join(ids[0], topics=("t", "u"))
    rig.leave((pending.member_id, None))  # type: ignore[union-attr]
    rig.later(10 * REBALANCE_MS)
    assert (rig.coordinator.manager.groups, memory.used_bytes) == ({}, 0)


def test_an_assignment_that_there_is_no_memory_for_is_refused() -> None:
    rig = GroupRig(group_max_members_bytes=3000)
    member_id, waiter = rig.new_member()
    rig.until_answered(waiter)
    generation = rig.joined(waiter).generation_id
    refused = rig.sync(member_id, generation, {member_id: bytes(3000)})
    assert error_of(rig, refused) is ErrorCode.GROUP_MAX_SIZE_REACHED
    sync = rig.sync(member_id, generation, {member_id: bytes(1000), "nobody": bytes(3000)})
    rig.settle()
    assert rig.synced(sync) == bytes(1000)


def test_members_that_are_there_stay_when_there_is_no_memory_for_more(rig: GroupRig) -> None:
    ids, _ = rig.stable(2)
    used_bytes = rig.coordinator.manager.memory.used_bytes
    full = GroupRig(group_max_members_bytes=used_bytes)
    ids, generation = full.stable(2)
    assert error_of(full, full.join()) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert full.heartbeat(ids[0], generation) is ErrorCode.NONE
    waiters = [full.join(ids[0]), full.join(ids[1])]
    full.until_answered(*waiters)
    assert {full.joined(waiter).generation_id for waiter in waiters} == {generation + 1}
