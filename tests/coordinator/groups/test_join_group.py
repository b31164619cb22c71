"""Members that keep their place over a restart of their program (KIP-345, KIP-814)."""

from __future__ import annotations

from mpbroker.protocol.errors import ErrorCode
from tests.support.group_rig import GroupRig, code_of


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


def test_it_comes_back_without_a_rebalance_and_its_former_self_is_fenced() -> None:
    rig = GroupRig()
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


def test_before_version_9_a_leader_is_not_told_that_it_leads() -> None:
    rig = GroupRig()
    old = static_group(rig)
    waiter = rig.join(instance="one", version=8)
    rig.settle()
    joined = rig.joined(waiter)
    assert (joined.leader, joined.members, joined.skip_assignment) == (old, [], False)


def test_if_its_new_id_cannot_be_written_the_old_one_stays() -> None:
    rig = GroupRig()
    old = static_group(rig)
    waiter = rig.join(instance="one")
    rig.append_round(ErrorCode.KAFKA_STORAGE_ERROR)
    assert code_of(rig.answers[waiter]) is ErrorCode.NOT_COORDINATOR
    assert rig.heartbeat(old, 1, "one") is ErrorCode.NONE


def test_while_others_join_it_takes_its_place_among_them() -> None:
    rig = GroupRig()
    first = rig.join(instance="one")
    second = rig.join(instance="one")
    assert code_of(rig.answers[first]) is ErrorCode.FENCED_INSTANCE_ID
    rig.later(6000)
    assert [m.group_instance_id for m in rig.joined(second).members] == ["one"]


def test_while_the_leader_assigns_it_starts_anew() -> None:
    rig = GroupRig()
    waiter = rig.join(instance="one")
    rig.later(3000)
    old = rig.joined(waiter).member_id
    sync = rig.sync(old, 1, {old: b"all"}, group_instance_id="one")
    again = rig.join(instance="one")
    assert code_of(rig.answers[sync]) is ErrorCode.FENCED_INSTANCE_ID
    assert rig.joined(again).generation_id == 2
    rig.settle()
    assert rig.state == "CompletingRebalance"


def test_other_protocols_start_a_rebalance() -> None:
    rig = GroupRig()
    static_group(rig)
    waiter = rig.join(instance="one", protocols=("sticky", "range"))
    assert rig.joined(waiter).generation_id == 2
    assert rig.joined(waiter).protocol_name == "sticky"


def test_a_static_member_keeps_its_place_until_its_session_ends() -> None:
    rig = GroupRig()
    member_id = static_group(rig)
    newcomer, waiter = rig.new_member()
    while waiter not in rig.answers:
        rig.later(5000)
    # It did not rejoin and its session has ended.
    assert set(rig.coordinator.manager.groups["g"].members) == {newcomer}
    assert rig.heartbeat(member_id, 1, "one") is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_operator_removes_it_by_its_instance() -> None:
    rig = GroupRig()
    static_group(rig)
    assert rig.leave(("", "one"), ("", "two")) == [0, 25]
    assert rig.state == "Empty"
    assert rig.leave(("stranger", "one")) == [25]
