from __future__ import annotations

import pytest

from mpbroker.config.resource_config import GROUP
from mpbroker.coordinator.groups.consumer import target_assignments
from mpbroker.coordinator.groups.consumer.members import SESSION
from mpbroker.coordinator.groups.consumer.records import (
    CurrentKey,
    MemberState,
)
from mpbroker.protocol.errors import ErrorCode
from mpbroker.records.iterate import iterate_batches
from tests.support.consumer_group_rig import (
    REBALANCE_TIMEOUT_MS,
    Consumer,
    described,
    error_of,
    settle,
    settled,
)
from tests.support.group_rig import GroupRig

SESSION_MS = 45_000


def members(rig: GroupRig) -> list[str]:
    return sorted(member.member_id for member in described(rig).members)


def wait(rig: GroupRig, delay_ms: int, *alive: Consumer) -> None:
    """Let time go by, with a heartbeat of the living consumers every few seconds."""
    for _ in range(delay_ms // 1_000):
        rig.later(1_000)
        for one in alive:
            assert not one.beat().error_code


# --- sessions


def test_a_member_that_is_not_heard_of_is_removed(rig: GroupRig) -> None:
    a = settled(rig, "a")
    b = settled(rig, "b", a)
    assert a.partitions
    wait(rig, SESSION_MS - 5_000, a)
    assert members(rig) == ["a", "b"]
    wait(rig, 5_000, a)
    assert members(rig) == ["a"]
    settle(rig, a)
    assert a.partitions == [0, 1, 2, 3]
    assert error_of(b.beat()) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_session_has_the_length_of_the_groups_settings(rig: GroupRig) -> None:
    a = settled(rig, "a")
    rig.metadata.settings[GROUP, "g"] = {"consumer.session.timeout.ms": "50000"}
    a.beat()
    rig.later(SESSION_MS + 1_000)
    assert not a.beat().error_code
    rig.later(50_000)
    assert error_of(a.beat()) is ErrorCode.UNKNOWN_MEMBER_ID


def test_refused_heartbeats_do_not_keep_a_member_alive(rig: GroupRig) -> None:
    a = settled(rig, "a")
    rig.later(SESSION_MS - 5_000)
    assert error_of(a.beat(member_epoch=7)) is ErrorCode.FENCED_MEMBER_EPOCH
    rig.later(5_000)
    assert described(rig).group_state == "Empty"


def test_members_have_a_session_after_a_reload(rig: GroupRig) -> None:
    settled(rig, "a")
    rig.later(30_000)
    rig.reload()
    rig.later(30_000)
    assert members(rig) == ["a"]
    rig.later(SESSION_MS)
    assert described(rig).group_state == "Empty"


def test_a_removal_that_the_log_refuses_is_tried_again(rig: GroupRig) -> None:
    a = settled(rig, "a")
    rig.now_ms += SESSION_MS
    rig.coordinator.tick()
    assert rig.state == "Empty"
    rig.append_round(ErrorCode.KAFKA_STORAGE_ERROR)
    assert (rig.state, a.partitions) == ("Stable", [0, 1, 2, 3])
    assert not a.beat().error_code
    rig.later(SESSION_MS)
    assert rig.state == "Empty"


# --- the time in which partitions must be given up


def revoking(rig: GroupRig) -> tuple[Consumer, Consumer]:
    """Return a member that has been told to give up partitions, and the one that waits for them."""
    a, b = Consumer(rig, "a", is_lazy=True), Consumer(rig, "b")
    a.beat()
    a.catch_up()
    rig.later(2_000)
    b.beat()
    a.beat()
    assert state_of(rig, "a") is MemberState.UNREVOKED_PARTITIONS
    return a, b


def state_of(rig: GroupRig, member_id: str) -> MemberState:
    group = rig.coordinator.manager.find_consumer("g")
    assert group is not None
    return group.members[member_id].current.state


def test_a_member_that_keeps_partitions_too_long_is_removed(rig: GroupRig) -> None:
    a, b = revoking(rig)
    wait(rig, REBALANCE_TIMEOUT_MS - 1_000, a, b)
    assert (members(rig), b.partitions) == (["a", "b"], [])
    rig.later(1_000)
    assert members(rig) == ["b"]
    settle(rig, b)
    assert b.partitions == [0, 1, 2, 3]
    assert error_of(a.beat()) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_gives_up_partitions_in_time_stays(rig: GroupRig) -> None:
    a, b = revoking(rig)
    wait(rig, REBALANCE_TIMEOUT_MS - 2_000, a, b)
    a.catch_up()
    wait(rig, REBALANCE_TIMEOUT_MS, a, b)
    assert members(rig) == ["a", "b"]
    assert len(a.owned) == len(b.owned) == 2


def test_the_time_to_give_up_begins_again_with_a_reload(rig: GroupRig) -> None:
    a, b = revoking(rig)
    wait(rig, 30_000, a, b)
    rig.reload()
    wait(rig, 40_000, a, b)
    assert members(rig) == ["a", "b"]
    wait(rig, 19_000, a, b)
    rig.later(1_000)
    assert members(rig) == ["b"]


def test_the_time_to_give_up_goes_on_if_the_log_refuses_what_ended_it(rig: GroupRig) -> None:
    a, b = revoking(rig)
    a.catch_up()
    waiter = rig.ask(a.request(), 1)
    assert state_of(rig, "a") is MemberState.STABLE
    rig.append_round(ErrorCode.KAFKA_STORAGE_ERROR)
    assert waiter in rig.answers
    assert state_of(rig, "a") is MemberState.UNREVOKED_PARTITIONS
    for _ in range(REBALANCE_TIMEOUT_MS // 1_000):
        rig.later(1_000)
        rig.now(a.request(topic_partitions=None), 1)
        b.beat()
    assert members(rig) == ["b"]


# --- static members


def test_a_static_member_that_returns_has_its_partitions_without_an_epoch(rig: GroupRig) -> None:
    a = settled(rig, "a", instance="x")
    other = settled(rig, "b", a)
    had, epoch = set(a.owned), a.epoch
    assert a.leave(-2).member_epoch == -2
    found = described(rig)
    (left,) = (member for member in found.members if member.instance_id == "x")
    assert (left.member_epoch, found.group_epoch) == (-2, epoch)
    assert {p for one in left.assignment.topic_partitions for p in one.partitions} == {p for _, p in had}
    again = Consumer(rig, "c", instance="x")
    answer = again.beat()
    assert (answer.member_epoch, again.owned) == (epoch, had)
    assert (members(rig), described(rig).group_epoch) == (["b", "c"], epoch)
    before = described(rig)
    rig.reload()
    assert described(rig) == before
    settle(rig, again, other)


def test_a_static_member_may_return_with_its_id(rig: GroupRig) -> None:
    a = settled(rig, "a", instance="x")
    a.leave(-2)
    again = Consumer(rig, "a", instance="x")
    assert again.beat().member_epoch == 2
    assert again.partitions == [0, 1, 2, 3]
    rig.later(SESSION_MS - 1_000)
    assert not again.beat().error_code


def test_a_return_with_other_topics_begins_an_epoch(rig: GroupRig) -> None:
    a = settled(rig, "a", instance="x")
    a.leave(-2)
    again = settled(rig, "b", instance="x", topics=("u",))
    assert (again.epoch, again.partitions) == (3, [0])


def test_an_absent_static_member_is_removed_at_the_end_of_the_session_it_had(rig: GroupRig) -> None:
    a = settled(rig, "a", instance="x")
    b = settled(rig, "b", a)
    wait(rig, 30_000, b)
    a.leave(-2)
    wait(rig, 10_000, b)
    assert members(rig) == ["a", "b"]
    wait(rig, 6_000, b)
    assert members(rig) == ["b"]
    settle(rig, b)
    assert b.partitions == [0, 1, 2, 3]


def test_an_instance_that_is_in_use_is_not_given_to_another_member(rig: GroupRig) -> None:
    a = settled(rig, "a", instance="x")
    answer = Consumer(rig, "b", instance="x").beat()
    assert error_of(answer) is ErrorCode.UNRELEASED_INSTANCE_ID
    assert answer.error_message == (
        "Static member b with instance id x cannot join the group because the instance id is owned by a "
        "member."
    )
    assert not a.beat().error_code


def test_the_old_member_of_an_instance_is_fenced(rig: GroupRig) -> None:
    a = settled(rig, "a", instance="x")
    a.leave(-2)
    settled(rig, "b", instance="x")
    for answer in (rig.now(a.request(member_epoch=2), 1), a.leave(-1), a.leave(-2)):
        assert error_of(answer) is ErrorCode.FENCED_INSTANCE_ID
        assert answer.error_message == "Static member a with instance id x was fenced by member b."
    for answer in (
        Consumer(rig, "b", instance="y", epoch=2).beat(),
        Consumer(rig, "b", instance="y").leave(),
    ):
        assert error_of(answer) is ErrorCode.UNKNOWN_MEMBER_ID
        assert answer.error_message == "Instance id y is unknown."


def test_a_static_member_that_leaves_for_good_is_removed(rig: GroupRig) -> None:
    a = settled(rig, "a", instance="x")
    assert a.leave(-1).member_epoch == -1
    assert described(rig).group_state == "Empty"
    settled(rig, "b", instance="x")


def test_a_replacement_that_the_log_refuses_is_undone(rig: GroupRig) -> None:
    a = settled(rig, "a", instance="x")
    a.leave(-2)
    before = described(rig)
    rig.ask(Consumer(rig, "b", instance="x").request(), 1)
    assert rig.coordinator.manager.find_consumer("g").members.keys() == {"b"}  # type: ignore[union-attr]
    rig.append_round(ErrorCode.KAFKA_STORAGE_ERROR)
    assert described(rig) == before
    assert rig.coordinator.timers.count(SESSION) == 1
    settled(rig, "c", instance="x")
    assert members(rig) == ["c"]


def test_partitions_to_give_up_are_free_when_a_static_member_leaves_for_a_while(rig: GroupRig) -> None:
    a, b = Consumer(rig, "a", instance="x", is_lazy=True), Consumer(rig, "b")
    settle(rig, a)
    b.beat()
    a.beat()
    assert state_of(rig, "a") is MemberState.UNREVOKED_PARTITIONS
    a.leave(-2)
    settle(rig, b)
    assert len(b.owned) == 2
    again = Consumer(rig, "c", instance="x")
    settle(rig, again, b)
    assert len(again.owned) == 2


# --- records


def test_the_records_of_a_member_are_deleted_in_kafkas_order(rig: GroupRig) -> None:
    """Kafka's reader requires that the current assignment and the target end before the member."""
    a = settled(rig, "a", topics=(), pattern="t")
    place = len(rig.log[3])
    a.leave()
    batches = iterate_batches(rig.log[3][place:])
    keys = [(record.key or b"\0\0")[1] for batch in batches for record in batch.records()]
    assert keys == [8, 7, 5, 16, 3]


def test_a_member_of_a_later_version_must_join_again(rig: GroupRig) -> None:
    a = settled(rig, "a")
    group = rig.coordinator.manager.find_consumer("g")
    assert group is not None
    current = group.members["a"].current
    group.replay(CurrentKey("g", "a"), current._replace(state=MemberState.UNKNOWN))
    answer = a.beat()
    assert error_of(answer) is ErrorCode.FENCED_MEMBER_EPOCH
    assert "unknown state" in answer.error_message
    assert not a.beat().error_code
    assert a.partitions == [0, 1, 2, 3]
    assert state_of(rig, "a") is MemberState.STABLE


def test_a_static_member_that_returns_while_a_target_is_computed_gets_one_of_its_own(
    rig: GroupRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target under way is of its former member id."""
    monkeypatch.setattr(target_assignments, "MEMBERS_AT_ONCE", 1)
    rig.coordinator.background.slice_s = 0.0
    members = [Consumer(rig, f"m{n}", instance=f"i{n}") for n in range(3)]
    settle(rig, *members)
    leaving, static, other = members
    leaving.leave()
    rig.later(1_100)
    waiter = rig.ask(other.request(), 1)
    static.leave(-2)
    back = Consumer(rig, "back", instance="i1")
    back.beat()
    rig.settle()
    other.take(rig.answers[waiter])  # type: ignore[arg-type]
    settle(rig, other, back)
    assert sorted(other.partitions + back.partitions) == [0, 1, 2, 3]
