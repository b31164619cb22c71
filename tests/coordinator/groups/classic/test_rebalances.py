"""Join phase and sync phase: who is waited for, and for how long."""

from __future__ import annotations

import logging

import pytest

from mpbroker.coordinator.groups.classic.rebalances import WRITE_RETRY_MAX_MS, WRITE_RETRY_MS
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import JoinGroupResponse
from tests.support.group_rig import REBALANCE_MS, SESSION_MS, GroupRig, error_of

DELAY_MS = 3000


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


def test_an_id_that_never_joins_holds_nobody_up_for_longer_than_its_session(rig: GroupRig) -> None:
    ids, _ = rig.stable(1)
    pending = rig.answers[rig.join()]
    assert isinstance(pending, JoinGroupResponse)
    waiter = rig.join(ids[0])
    assert waiter not in rig.answers
    rig.later(SESSION_MS)
    assert rig.joined(waiter).generation_id == 2


def test_an_assignment_that_cannot_be_written_starts_another_rebalance(rig: GroupRig) -> None:
    member_id, waiter = rig.new_member()
    rig.later(DELAY_MS)
    sync = rig.sync(member_id, rig.joined(waiter).generation_id, {member_id: b"all"})
    rig.append_round(ErrorCode.KAFKA_STORAGE_ERROR)
    assert error_of(rig, sync) is ErrorCode.NOT_COORDINATOR
    assert rig.state == "PreparingRebalance"
    again = rig.join(member_id)
    assert again not in rig.answers
    rig.later(WRITE_RETRY_MS)
    assert rig.joined(again).generation_id == 2


def test_a_full_disk_makes_few_generations_and_log_lines(
    rig: GroupRig, caplog: pytest.LogCaptureFixture
) -> None:
    """Check it with a client that joins again as soon as it is told of the error."""
    member_id, waiter = rig.new_member()
    rig.later(DELAY_MS)

    def fail_for(total_ms: int) -> None:
        nonlocal waiter
        until_ms = rig.now_ms + total_ms
        while rig.now_ms < until_ms:
            rig.later(100)
            if waiter in rig.answers:
                rig.sync(member_id, rig.joined(waiter).generation_id, {member_id: b"all"})
                rig.append_round(ErrorCode.KAFKA_STORAGE_ERROR)
                waiter = rig.join(member_id)

    fail_for(60_000)
    group = rig.coordinator.manager.groups["g"]
    assert 60_000 // WRITE_RETRY_MAX_MS <= group.generation <= 60_000 // WRITE_RETRY_MAX_MS + 3
    assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) <= group.generation
    assert "its assignment was not written: KAFKA_STORAGE_ERROR. It is tried again in 5 s" in caplog.text
    rig.until_answered(waiter)
    sync = rig.sync(member_id, rig.joined(waiter).generation_id, {member_id: b"all"})
    rig.settle()
    assert error_of(rig, sync) is ErrorCode.NONE
    # Of that nothing is left: the next rebalance waits for nobody else.
    assert rig.joined(rig.join(member_id)).generation_id == group.generation
    assert group.failed_writes == 0


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
