"""Members that keep their place over a restart of their program (KIP-345, KIP-814)."""

from __future__ import annotations

from mpbroker.protocol.errors import ErrorCode
from tests.coordinator.group_world import World, code_of


def static_group(world: World) -> str:
    """A stable group of one static member; -> its member id."""
    waiter = world.join(instance="one")
    world.later(3000)
    member_id = world.joined(waiter).member_id
    assert member_id.startswith("one-")
    sync = world.sync(member_id, 1, {member_id: b"all"}, group_instance_id="one")
    world.settle()
    assert world.synced(sync) == b"all"
    return member_id


def test_it_comes_back_without_a_rebalance_and_its_former_self_is_fenced() -> None:
    world = World()
    old = static_group(world)
    waiter = world.join(instance="one")
    assert waiter not in world.answers  # the new id has to be durable
    world.settle()
    joined = world.joined(waiter)
    assert (joined.generation_id, joined.skip_assignment, joined.leader) == (1, True, joined.member_id)
    assert len(joined.members) == 1
    assert world.heartbeat(old, 1, "one") is ErrorCode.FENCED_INSTANCE_ID
    assert world.heartbeat(joined.member_id, 1, "one") is ErrorCode.NONE
    assert code_of(world.answers[world.join(old, instance="one")]) is ErrorCode.FENCED_INSTANCE_ID
    assert world.synced(world.sync(joined.member_id, 1, group_instance_id="one")) == b"all"
    assert set(world.restarted().groups.groups["g"].members) == {joined.member_id}


def test_before_version_9_a_leader_is_not_told_that_it_leads() -> None:
    world = World()
    old = static_group(world)
    waiter = world.join(instance="one", version=8)
    world.settle()
    joined = world.joined(waiter)
    assert (joined.leader, joined.members, joined.skip_assignment) == (old, [], False)


def test_if_its_new_id_cannot_be_written_the_old_one_stays() -> None:
    world = World()
    old = static_group(world)
    waiter = world.join(instance="one")
    world.append_round(ErrorCode.KAFKA_STORAGE_ERROR)
    assert code_of(world.answers[waiter]) is ErrorCode.NOT_COORDINATOR
    assert world.heartbeat(old, 1, "one") is ErrorCode.NONE


def test_while_others_join_it_takes_its_place_among_them() -> None:
    world = World()
    first = world.join(instance="one")
    second = world.join(instance="one")
    assert code_of(world.answers[first]) is ErrorCode.FENCED_INSTANCE_ID
    world.later(6000)
    assert [m.group_instance_id for m in world.joined(second).members] == ["one"]


def test_while_the_leader_assigns_it_starts_anew() -> None:
    world = World()
    waiter = world.join(instance="one")
    world.later(3000)
    old = world.joined(waiter).member_id
    sync = world.sync(old, 1, {old: b"all"}, group_instance_id="one")
    again = world.join(instance="one")
    assert code_of(world.answers[sync]) is ErrorCode.FENCED_INSTANCE_ID
    assert world.joined(again).generation_id == 2
    world.settle()
    assert world.state == "CompletingRebalance"


def test_other_protocols_start_a_rebalance() -> None:
    world = World()
    static_group(world)
    waiter = world.join(instance="one", protocols=("sticky", "range"))
    assert world.joined(waiter).generation_id == 2
    assert world.joined(waiter).protocol_name == "sticky"


def test_a_static_member_keeps_its_place_until_its_session_ends() -> None:
    world = World()
    member_id = static_group(world)
    newcomer, waiter = world.new_member()
    while waiter not in world.answers:
        world.later(5000)
    # It did not rejoin and its session has ended.
    assert set(world.groups.groups["g"].members) == {newcomer}
    assert world.heartbeat(member_id, 1, "one") is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_operator_removes_it_by_its_instance() -> None:
    world = World()
    static_group(world)
    assert world.leave(("", "one"), ("", "two")) == [0, 25]
    assert world.state == "Empty"
    assert world.leave(("stranger", "one")) == [25]
