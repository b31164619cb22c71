"""Members and generations: joining, syncing, leaving, and being too late."""

from __future__ import annotations

import pytest

from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupResponse,
    ListGroupsRequest,
    SyncGroupRequest,
)
from tests.coordinator.group_world import REBALANCE_MS, SESSION_MS, World, code_of

DELAY_MS = 3000


@pytest.fixture
def world() -> World:
    return World()


def error_of(world: World, waiter: int) -> ErrorCode:
    return code_of(world.answers[waiter])


def test_a_first_member_waits_for_others(world: World) -> None:
    member_id, waiter = world.new_member()
    world.later(DELAY_MS - 1)
    assert waiter not in world.answers
    assert world.state == "PreparingRebalance"
    world.later(1)
    joined = world.joined(waiter)
    assert (joined.generation_id, joined.leader, joined.member_id) == (1, member_id, member_id)
    assert [m.member_id for m in joined.members] == [member_id]
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", "range")
    assert world.state == "CompletingRebalance"


def test_newcomers_extend_the_first_delay_up_to_the_rebalance_timeout(world: World) -> None:
    waiters = []
    for _ in range(REBALANCE_MS // 2000):
        waiters.append(world.new_member()[1])
        assert waiters[0] not in world.answers
        world.later(2000)
    assert {world.joined(waiter).generation_id for waiter in waiters} == {1}


def test_only_the_leader_hears_of_all_members(world: World) -> None:
    members = [world.new_member() for _ in range(3)]
    world.later(REBALANCE_MS)
    answers = [world.joined(waiter) for _, waiter in members]
    assert len({answer.leader for answer in answers}) == 1
    assert sorted(len(answer.members) for answer in answers) == [0, 0, 3]
    assert next(a for a in answers if a.members).member_id == answers[0].leader


def test_versions_before_4_need_no_member_id(world: World) -> None:
    waiter = world.join(version=3)
    world.later(DELAY_MS)
    assert world.joined(waiter).member_id.startswith("c-")


def test_an_id_that_never_joins_holds_nobody_up_for_longer_than_its_session(world: World) -> None:
    ids, _ = world.stable(1)
    pending = world.answers[world.join()]
    assert isinstance(pending, JoinGroupResponse)
    waiter = world.join(ids[0])
    assert waiter not in world.answers
    world.later(SESSION_MS)
    assert world.joined(waiter).generation_id == 2


def test_members_get_their_assignment_when_it_is_durable(world: World) -> None:
    member_id, waiter = world.new_member()
    world.later(DELAY_MS)
    generation = world.joined(waiter).generation_id
    sync = world.sync(member_id, generation, {member_id: b"all"})
    assert sync not in world.answers
    assert world.append_round()
    assert world.synced(sync) == b"all"
    assert world.state == "Stable"
    # A second SyncGroup, say after a lost answer.
    assert world.synced(world.sync(member_id, generation)) == b"all"


def test_an_assignment_that_cannot_be_written_starts_another_rebalance(world: World) -> None:
    member_id, waiter = world.new_member()
    world.later(DELAY_MS)
    sync = world.sync(member_id, world.joined(waiter).generation_id, {member_id: b"all"})
    world.append_round(ErrorCode.KAFKA_STORAGE_ERROR)
    assert error_of(world, sync) is ErrorCode.NOT_COORDINATOR
    assert world.state == "PreparingRebalance"
    again = world.join(member_id)
    assert world.joined(again).generation_id == 2


def test_a_member_that_is_forgotten_by_the_leader_gets_nothing(world: World) -> None:
    members = [world.new_member() for _ in range(2)]
    world.until_answered(members[0][1])
    leader = world.joined(members[0][1]).leader
    other = next(member_id for member_id, _ in members if member_id != leader)
    waiting = world.sync(other, 1)
    world.sync(leader, 1, {leader: b"all"})
    world.settle()
    assert world.synced(waiting) == b""


def test_a_new_member_starts_a_rebalance_that_heartbeats_tell_of(world: World) -> None:
    ids, generation = world.stable(2)
    assert world.heartbeat(ids[0], generation) is ErrorCode.NONE
    _, newcomer = world.new_member()
    assert world.heartbeat(ids[0], generation) is ErrorCode.REBALANCE_IN_PROGRESS
    waiters = [newcomer, world.join(ids[0])]
    assert newcomer not in world.answers
    waiters.append(world.join(ids[1]))
    assert {world.joined(waiter).generation_id for waiter in waiters} == {generation + 1}


def test_who_does_not_rejoin_in_time_is_out(world: World) -> None:
    ids, generation = world.stable(2)
    waiter = world.join(ids[0])
    for _ in range(REBALANCE_MS // 5000):
        assert waiter not in world.answers
        world.heartbeat(ids[1], generation)
        world.later(5000)
    assert [m.member_id for m in world.joined(waiter).members] == [ids[0]]
    assert world.heartbeat(ids[1], generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_does_not_rejoin_is_replaced(world: World) -> None:
    ids, generation = world.stable(2)
    world.groups.rebalances.prepare(world.groups.groups["g"], "the test wants it")
    waiter = world.join(ids[1])
    while waiter not in world.answers:
        world.heartbeat(ids[0], generation)
        world.later(5000)
    assert world.joined(waiter).leader == ids[1]


def test_a_silent_member_is_removed_after_its_session(world: World) -> None:
    ids, generation = world.stable(2)
    world.later(SESSION_MS - 1)
    assert world.heartbeat(ids[0], generation) is ErrorCode.NONE
    world.later(1)
    assert world.heartbeat(ids[0], generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.heartbeat(ids[1], generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_whose_members_fall_silent_becomes_empty(world: World) -> None:
    _, generation = world.stable(2)
    world.later(SESSION_MS)
    assert world.state == "Empty"
    assert world.groups.groups["g"].generation == generation + 1
    assert world.restarted().state == "Empty"


def test_members_leave_one_or_several_at_once(world: World) -> None:
    ids, generation = world.stable(3)
    assert world.leave((ids[1], None)) == [0]
    assert world.heartbeat(ids[0], generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.leave((ids[0], None), (ids[2], None), ("stranger", None)) == [0, 0, 25]
    assert world.state == "Empty"
    assert world.leave((ids[0], None)) == [25]


def test_leaving_an_unknown_group(world: World) -> None:
    assert world.leave(("m", None)) == [25]


def test_a_member_that_joined_and_never_syncs_is_removed(world: World) -> None:
    members = [world.new_member() for _ in range(2)]
    world.until_answered(members[0][1])
    leader = world.joined(members[0][1]).leader
    other = next(member_id for member_id, _ in members if member_id != leader)
    world.sync(leader, 1, {})
    world.settle()
    for _ in range(REBALANCE_MS // 5000):
        assert other in world.groups.groups["g"].members
        world.heartbeat(leader, 1)
        world.heartbeat(other, 1)
        world.later(5000)
    assert other not in world.groups.groups["g"].members


def test_the_protocol_is_one_that_all_support_and_most_like(world: World) -> None:
    wishes = [("a", "b", "c"), ("b", "a"), ("b", "c", "a")]
    waiters = [world.new_member(protocols=protocols)[1] for protocols in wishes]
    world.later(REBALANCE_MS)
    assert {world.joined(waiter).protocol_name for waiter in waiters} == {"b"}


def test_a_member_without_a_common_protocol_is_refused(world: World) -> None:
    world.stable(1)
    waiter = world.join(protocols=("roundrobin",))
    assert error_of(world, waiter) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    empty = world.join(group="new", protocols=())
    assert error_of(world, empty) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert "new" not in world.groups.groups


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_ms": 5999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_joins_that_are_refused(world: World, how: dict[str, object], error: ErrorCode) -> None:
    assert error_of(world, world.join(**how)) is error  # type: ignore[arg-type]


def test_a_full_group_takes_nobody() -> None:
    small = World(group_max_size=1)
    ids, _ = small.stable(1)
    assert error_of(small, small.join()) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert small.joined(small.join(ids[0])).generation_id == 2


def test_wrong_generations_and_members(world: World) -> None:
    ids, generation = world.stable(1)
    assert world.heartbeat(ids[0], generation + 1) is ErrorCode.ILLEGAL_GENERATION
    assert world.heartbeat("stranger", generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert error_of(world, world.sync(ids[0], generation - 1)) is ErrorCode.ILLEGAL_GENERATION
    assert error_of(world, world.sync("stranger", generation)) is ErrorCode.UNKNOWN_MEMBER_ID
    wrong = world.sync(ids[0], generation, protocol_type="consumer", protocol_name="other")
    assert error_of(world, wrong) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert code_of(world.now(SyncGroupRequest("nowhere", 1, "m"))) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code_of(world.now(HeartbeatRequest("", 1, "m"))) is ErrorCode.INVALID_GROUP_ID


def test_a_follower_that_joins_again_unchanged_gets_the_same_generation(world: World) -> None:
    ids, generation = world.stable(2)
    answer = world.joined(world.join(ids[1]))
    assert (answer.generation_id, answer.members) == (generation, [])
    assert world.state == "Stable"
    changed = world.join(ids[1], topics=("t", "u"))
    assert changed not in world.answers
    assert world.state == "PreparingRebalance"


def test_a_closed_connection_ends_the_wait_and_not_the_membership(world: World) -> None:
    ids, _ = world.stable(2)
    gone = world.join(ids[0])
    world.groups.abandon(gone)
    assert error_of(world, gone) is ErrorCode.REBALANCE_IN_PROGRESS
    other = world.join(ids[1])
    assert other not in world.answers
    again = world.join(ids[0])
    assert world.joined(again).generation_id == world.joined(other).generation_id == 2


def test_a_closed_connection_of_a_member_without_an_id_ends_its_membership(world: World) -> None:
    gone = world.join(version=3)
    stays = world.join(version=3)
    world.groups.abandon(gone)
    world.later(DELAY_MS * 2)
    assert [m.member_id for m in world.joined(stays).members] == [world.joined(stays).member_id]
    assert world.groups.rebalances.waiting == 0


def test_a_later_request_of_a_member_takes_the_place_of_the_one_before(world: World) -> None:
    member_id, first = world.new_member()
    second = world.join(member_id)
    assert error_of(world, first) is ErrorCode.REBALANCE_IN_PROGRESS
    world.later(DELAY_MS)
    assert world.joined(second).generation_id == 1


def test_groups_come_back_with_their_members(world: World) -> None:
    ids, generation = world.stable(2)
    after = world.restarted()
    assert after.state == "Stable"
    assert after.heartbeat(ids[0], generation) is ErrorCode.NONE
    assert after.synced(after.sync(ids[1], generation)) == ids[1].encode()
    # Sessions begin anew: none expires before its whole time.
    after.later(SESSION_MS - 1)
    assert after.heartbeat(ids[1], generation) is ErrorCode.NONE
    after.later(1)
    assert set(after.groups.groups["g"].members) == {ids[1]}


def test_while_its_partition_is_read_a_group_cannot_be_asked(world: World) -> None:
    ids, generation = world.stable(1)
    waiter = world.join(ids[0])
    world.groups.unload()
    assert waiter in world.answers
    assert error_of(world, world.join(ids[0])) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    # A member is not to be told that it is unknown, and it lives.
    assert world.heartbeat(ids[0], generation) is ErrorCode.NONE
    assert code_of(world.now(ListGroupsRequest())) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_waiting_members_are_told_when_the_coordinator_lets_go(world: World) -> None:
    ids, _ = world.stable(2)
    waiter = world.join(ids[0])
    world.groups.unload()
    assert error_of(world, waiter) is ErrorCode.NOT_COORDINATOR
    assert world.groups.rebalances.waiting == 0
    assert len(world.groups.timers) == 1  # the clean-up


def test_describe_and_list(world: World) -> None:
    ids, _ = world.stable(2)
    described = world.now(DescribeGroupsRequest(["g", "nowhere"]), version=6).groups
    assert (described[0].group_state, described[0].protocol_type, described[0].protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    assert {m.member_id: m.member_assignment for m in described[0].members} == {i: i.encode() for i in ids}
    assert {(m.client_id, m.client_host) for m in described[0].members} == {("c", "/127.0.0.1")}
    assert (described[1].group_state, described[1].error_code) == ("Dead", 69)
    assert world.now(DescribeGroupsRequest(["nowhere"]), version=5).groups[0].error_code == 0
    world.join(group="h")
    listed = [(g.group_id, g.group_state, g.group_type) for g in world.now(ListGroupsRequest()).groups]
    assert listed == [("g", "Stable", "classic"), ("h", "Empty", "classic")]
    assert [g.group_id for g in world.now(ListGroupsRequest(["stable"], ["CLASSIC"])).groups] == ["g"]
    assert world.now(ListGroupsRequest([], ["consumer"])).groups == []


def test_no_more_is_described_than_can_be_answered_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stable(2)
    request = DescribeGroupsRequest(["nowhere", "g", "elsewhere"])
    assert len(world.now(request, version=6).groups) == 3
    monkeypatch.setattr("mpbroker.coordinator.groups.coordinator.DESCRIBED_BYTES", 1)
    assert [group.group_id for group in world.now(request, version=6).groups] == ["nowhere", "g"]
