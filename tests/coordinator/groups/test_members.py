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
from tests.support.group_rig import REBALANCE_MS, SESSION_MS, GroupRig, code_of

DELAY_MS = 3000


@pytest.fixture
def rig() -> GroupRig:
    return GroupRig()


def error_of(rig: GroupRig, waiter: int) -> ErrorCode:
    return code_of(rig.answers[waiter])


def test_a_first_member_waits_for_others(rig: GroupRig) -> None:
    member_id, waiter = rig.new_member()
    rig.later(DELAY_MS - 1)
    assert waiter not in rig.answers
    assert rig.state == "PreparingRebalance"
    rig.later(1)
    joined = rig.joined(waiter)
    assert (joined.generation_id, joined.leader, joined.member_id) == (1, member_id, member_id)
    assert [m.member_id for m in joined.members] == [member_id]
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", "range")
    assert rig.state == "CompletingRebalance"


def test_newcomers_extend_the_first_delay_up_to_the_rebalance_timeout(rig: GroupRig) -> None:
    waiters = []
    for _ in range(REBALANCE_MS // 2000):
        waiters.append(rig.new_member()[1])
        assert waiters[0] not in rig.answers
        rig.later(2000)
    assert {rig.joined(waiter).generation_id for waiter in waiters} == {1}


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


def test_an_id_that_never_joins_holds_nobody_up_for_longer_than_its_session(rig: GroupRig) -> None:
    ids, _ = rig.stable(1)
    pending = rig.answers[rig.join()]
    assert isinstance(pending, JoinGroupResponse)
    waiter = rig.join(ids[0])
    assert waiter not in rig.answers
    rig.later(SESSION_MS)
    assert rig.joined(waiter).generation_id == 2


def test_members_get_their_assignment_when_it_is_durable(rig: GroupRig) -> None:
    member_id, waiter = rig.new_member()
    rig.later(DELAY_MS)
    generation = rig.joined(waiter).generation_id
    sync = rig.sync(member_id, generation, {member_id: b"all"})
    assert sync not in rig.answers
    assert rig.append_round()
    assert rig.synced(sync) == b"all"
    assert rig.state == "Stable"
    # A second SyncGroup, say after a lost answer.
    assert rig.synced(rig.sync(member_id, generation)) == b"all"


def test_an_assignment_that_cannot_be_written_starts_another_rebalance(rig: GroupRig) -> None:
    member_id, waiter = rig.new_member()
    rig.later(DELAY_MS)
    sync = rig.sync(member_id, rig.joined(waiter).generation_id, {member_id: b"all"})
    rig.append_round(ErrorCode.KAFKA_STORAGE_ERROR)
    assert error_of(rig, sync) is ErrorCode.NOT_COORDINATOR
    assert rig.state == "PreparingRebalance"
    again = rig.join(member_id)
    assert rig.joined(again).generation_id == 2


def test_a_member_that_is_forgotten_by_the_leader_gets_nothing(rig: GroupRig) -> None:
    members = [rig.new_member() for _ in range(2)]
    rig.until_answered(members[0][1])
    leader = rig.joined(members[0][1]).leader
    other = next(member_id for member_id, _ in members if member_id != leader)
    waiting = rig.sync(other, 1)
    rig.sync(leader, 1, {leader: b"all"})
    rig.settle()
    assert rig.synced(waiting) == b""


def test_a_new_member_starts_a_rebalance_that_heartbeats_tell_of(rig: GroupRig) -> None:
    ids, generation = rig.stable(2)
    assert rig.heartbeat(ids[0], generation) is ErrorCode.NONE
    _, newcomer = rig.new_member()
    assert rig.heartbeat(ids[0], generation) is ErrorCode.REBALANCE_IN_PROGRESS
    waiters = [newcomer, rig.join(ids[0])]
    assert newcomer not in rig.answers
    waiters.append(rig.join(ids[1]))
    assert {rig.joined(waiter).generation_id for waiter in waiters} == {generation + 1}


def test_who_does_not_rejoin_in_time_is_out(rig: GroupRig) -> None:
    ids, generation = rig.stable(2)
    waiter = rig.join(ids[0])
    for _ in range(REBALANCE_MS // 5000):
        assert waiter not in rig.answers
        rig.heartbeat(ids[1], generation)
        rig.later(5000)
    assert [m.member_id for m in rig.joined(waiter).members] == [ids[0]]
    assert rig.heartbeat(ids[1], generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_does_not_rejoin_is_replaced(rig: GroupRig) -> None:
    ids, generation = rig.stable(2)
    rig.coordinator.rebalances.prepare(rig.coordinator.manager.groups["g"], "the test wants it")
    waiter = rig.join(ids[1])
    while waiter not in rig.answers:
        rig.heartbeat(ids[0], generation)
        rig.later(5000)
    assert rig.joined(waiter).leader == ids[1]


def test_a_silent_member_is_removed_after_its_session(rig: GroupRig) -> None:
    ids, generation = rig.stable(2)
    rig.later(SESSION_MS - 1)
    assert rig.heartbeat(ids[0], generation) is ErrorCode.NONE
    rig.later(1)
    assert rig.heartbeat(ids[0], generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert rig.heartbeat(ids[1], generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_whose_members_fall_silent_becomes_empty(rig: GroupRig) -> None:
    _, generation = rig.stable(2)
    rig.later(SESSION_MS)
    assert rig.state == "Empty"
    assert rig.coordinator.manager.groups["g"].generation == generation + 1
    assert rig.restarted().state == "Empty"


def test_members_leave_one_or_several_at_once(rig: GroupRig) -> None:
    ids, generation = rig.stable(3)
    assert rig.leave((ids[1], None)) == [0]
    assert rig.heartbeat(ids[0], generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert rig.leave((ids[0], None), (ids[2], None), ("stranger", None)) == [0, 0, 25]
    assert rig.state == "Empty"
    assert rig.leave((ids[0], None)) == [25]


def test_leaving_an_unknown_group(rig: GroupRig) -> None:
    assert rig.leave(("m", None)) == [25]


def test_a_member_that_joined_and_never_syncs_is_removed(rig: GroupRig) -> None:
    members = [rig.new_member() for _ in range(2)]
    rig.until_answered(members[0][1])
    leader = rig.joined(members[0][1]).leader
    other = next(member_id for member_id, _ in members if member_id != leader)
    rig.sync(leader, 1, {})
    rig.settle()
    for _ in range(REBALANCE_MS // 5000):
        assert other in rig.coordinator.manager.groups["g"].members
        rig.heartbeat(leader, 1)
        rig.heartbeat(other, 1)
        rig.later(5000)
    assert other not in rig.coordinator.manager.groups["g"].members


def test_the_protocol_is_one_that_all_support_and_most_like(rig: GroupRig) -> None:
    wishes = [("a", "b", "c"), ("b", "a"), ("b", "c", "a")]
    waiters = [rig.new_member(protocols=protocols)[1] for protocols in wishes]
    rig.later(REBALANCE_MS)
    assert {rig.joined(waiter).protocol_name for waiter in waiters} == {"b"}


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


def test_wrong_generations_and_members(rig: GroupRig) -> None:
    ids, generation = rig.stable(1)
    assert rig.heartbeat(ids[0], generation + 1) is ErrorCode.ILLEGAL_GENERATION
    assert rig.heartbeat("stranger", generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert error_of(rig, rig.sync(ids[0], generation - 1)) is ErrorCode.ILLEGAL_GENERATION
    assert error_of(rig, rig.sync("stranger", generation)) is ErrorCode.UNKNOWN_MEMBER_ID
    wrong = rig.sync(ids[0], generation, protocol_type="consumer", protocol_name="other")
    assert error_of(rig, wrong) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert code_of(rig.now(SyncGroupRequest("nowhere", 1, "m"))) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code_of(rig.now(HeartbeatRequest("", 1, "m"))) is ErrorCode.INVALID_GROUP_ID


def test_a_follower_that_joins_again_unchanged_gets_the_same_generation(rig: GroupRig) -> None:
    ids, generation = rig.stable(2)
    answer = rig.joined(rig.join(ids[1]))
    assert (answer.generation_id, answer.members) == (generation, [])
    assert rig.state == "Stable"
    changed = rig.join(ids[1], topics=("t", "u"))
    assert changed not in rig.answers
    assert rig.state == "PreparingRebalance"


def test_a_closed_connection_ends_the_wait_and_not_the_membership(rig: GroupRig) -> None:
    ids, _ = rig.stable(2)
    gone = rig.join(ids[0])
    rig.coordinator.abandon(gone)
    assert error_of(rig, gone) is ErrorCode.REBALANCE_IN_PROGRESS
    other = rig.join(ids[1])
    assert other not in rig.answers
    again = rig.join(ids[0])
    assert rig.joined(again).generation_id == rig.joined(other).generation_id == 2


def test_a_closed_connection_of_a_member_without_an_id_ends_its_membership(rig: GroupRig) -> None:
    gone = rig.join(version=3)
    stays = rig.join(version=3)
    rig.coordinator.abandon(gone)
    rig.later(DELAY_MS * 2)
    assert [m.member_id for m in rig.joined(stays).members] == [rig.joined(stays).member_id]
    assert rig.coordinator.rebalances.waiting == 0


def test_a_later_request_of_a_member_takes_the_place_of_the_one_before(rig: GroupRig) -> None:
    member_id, first = rig.new_member()
    second = rig.join(member_id)
    assert error_of(rig, first) is ErrorCode.REBALANCE_IN_PROGRESS
    rig.later(DELAY_MS)
    assert rig.joined(second).generation_id == 1


def test_groups_come_back_with_their_members(rig: GroupRig) -> None:
    ids, generation = rig.stable(2)
    after = rig.restarted()
    assert after.state == "Stable"
    assert after.heartbeat(ids[0], generation) is ErrorCode.NONE
    assert after.synced(after.sync(ids[1], generation)) == ids[1].encode()
    # Sessions begin anew: none expires before its whole time.
    after.later(SESSION_MS - 1)
    assert after.heartbeat(ids[1], generation) is ErrorCode.NONE
    after.later(1)
    assert set(after.coordinator.manager.groups["g"].members) == {ids[1]}


def test_while_its_partition_is_read_a_group_cannot_be_asked(rig: GroupRig) -> None:
    ids, generation = rig.stable(1)
    waiter = rig.join(ids[0])
    rig.coordinator.unload()
    assert waiter in rig.answers
    assert error_of(rig, rig.join(ids[0])) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    # A member is not to be told that it is unknown, and it lives.
    assert rig.heartbeat(ids[0], generation) is ErrorCode.NONE
    assert code_of(rig.now(ListGroupsRequest())) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_waiting_members_are_told_when_the_coordinator_lets_go(rig: GroupRig) -> None:
    ids, _ = rig.stable(2)
    waiter = rig.join(ids[0])
    rig.coordinator.unload()
    assert error_of(rig, waiter) is ErrorCode.NOT_COORDINATOR
    assert rig.coordinator.rebalances.waiting == 0
    assert len(rig.coordinator.timers) == 1  # the clean-up


def test_describe_and_list(rig: GroupRig) -> None:
    ids, _ = rig.stable(2)
    described = rig.now(DescribeGroupsRequest(["g", "nowhere"]), version=6).groups
    assert (described[0].group_state, described[0].protocol_type, described[0].protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    assert {m.member_id: m.member_assignment for m in described[0].members} == {i: i.encode() for i in ids}
    assert {(m.client_id, m.client_host) for m in described[0].members} == {("c", "/127.0.0.1")}
    assert (described[1].group_state, described[1].error_code) == ("Dead", 69)
    assert rig.now(DescribeGroupsRequest(["nowhere"]), version=5).groups[0].error_code == 0
    rig.join(group="h")
    listed = [(g.group_id, g.group_state, g.group_type) for g in rig.now(ListGroupsRequest()).groups]
    assert listed == [("g", "Stable", "classic"), ("h", "Empty", "classic")]
    assert [g.group_id for g in rig.now(ListGroupsRequest(["stable"], ["CLASSIC"])).groups] == ["g"]
    assert rig.now(ListGroupsRequest([], ["consumer"])).groups == []


def test_no_more_is_described_than_can_be_answered_at_once(
    rig: GroupRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.stable(2)
    request = DescribeGroupsRequest(["nowhere", "g", "elsewhere"])
    assert len(rig.now(request, version=6).groups) == 3
    monkeypatch.setattr("mpbroker.coordinator.groups.describe.DESCRIBED_BYTES", 1)
    assert [group.group_id for group in rig.now(request, version=6).groups] == ["nowhere", "g"]
