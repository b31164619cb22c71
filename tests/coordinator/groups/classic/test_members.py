"""SyncGroup, Heartbeat and LeaveGroup."""

from __future__ import annotations

import pytest

from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import HeartbeatRequest, LeaveGroupRequest, SyncGroupRequest
from tests.support.group_rig import GroupRig, code_of, error_of

DELAY_MS = 3000


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


def test_members_leave_one_or_several_at_once(rig: GroupRig) -> None:
    ids, generation = rig.stable(3)
    assert rig.leave((ids[1], None)) == [0]
    assert rig.heartbeat(ids[0], generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert rig.leave((ids[0], None), (ids[2], None), ("stranger", None)) == [0, 0, 25]
    assert rig.state == "Empty"
    assert rig.leave((ids[0], None)) == [25]


def test_leaving_an_unknown_group(rig: GroupRig) -> None:
    assert rig.leave(("m", None)) == [25]


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


def test_members_that_leave_are_logged_in_bounds(rig: GroupRig, caplog: pytest.LogCaptureFixture) -> None:
    """A request of some kilobytes once made hundreds of megabytes of log: a line with all names for each."""
    caplog.set_level("INFO")
    long = "g" * 30_000
    member_id = static_member(rig, long)
    identities = [LeaveGroupRequest.MemberIdentity(str(n), "i", "r" * 20_000) for n in range(500)]
    caplog.clear()
    response = rig.now(LeaveGroupRequest(long, members=[*identities, *identities]))
    assert [m.error_code for m in response.members] == [ErrorCode.FENCED_INSTANCE_ID] * 500
    response = rig.now(
        LeaveGroupRequest(long, members=[LeaveGroupRequest.MemberIdentity(member_id, "i", "r" * 9000)])
    )
    assert [m.error_code for m in response.members] == [ErrorCode.NONE]
    assert len(caplog.text) < 10_000


def static_member(rig: GroupRig, group: str) -> str:
    waiter = rig.join(group=group, instance="i")
    rig.later(DELAY_MS)
    return rig.joined(waiter).member_id
