from __future__ import annotations

from mpbroker.protocol.errors import ErrorCode
from tests.support.consumer_group_rig import Consumer, described, error_of, settle
from tests.support.group_rig import GroupRig


def test_a_first_member_gets_all_partitions(rig: GroupRig) -> None:
    a = Consumer(rig, "a")
    answer = a.beat()
    assert (answer.member_epoch, a.partitions) == (2, [0, 1, 2, 3])
    assert answer.heartbeat_interval_ms == 5_000
    assert a.beat().assignment is None
    group = described(rig)
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 2, 2)


def test_a_second_member_takes_what_the_first_gives_up(rig: GroupRig) -> None:
    a, b = Consumer(rig, "a"), Consumer(rig, "b")
    a.beat()
    rig.later(2_000)
    assert b.beat().member_epoch == 3
    assert not b.owned
    a.beat()
    assert len(a.owned) == 2
    b.beat()
    assert not b.owned  # until the first has said that it gave them up
    a.beat()
    b.beat()
    assert sorted(a.partitions + b.partitions) == [0, 1, 2, 3]
    settle(rig, a, b)
    assert described(rig).group_state == "Stable"


def test_a_member_that_leaves_frees_its_partitions(rig: GroupRig) -> None:
    a, b = Consumer(rig, "a"), Consumer(rig, "b")
    settle(rig, a)
    b.beat()
    settle(rig, a, b)
    assert b.leave().member_epoch == -1
    settle(rig, a)
    assert a.partitions == [0, 1, 2, 3]
    assert error_of(b.leave()) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_reload_is_the_same_group(rig: GroupRig) -> None:
    a, b = Consumer(rig, "a"), Consumer(rig, "b", topics=("t", "u"))
    a.beat()
    b.beat()
    settle(rig, a, b)
    before = described(rig)
    rig.reload()
    assert described(rig) == before
    settle(rig, a, b)


def test_a_refused_write_is_undone(rig: GroupRig) -> None:
    a = Consumer(rig, "a")
    waiter = rig.ask(a.request(), 1)
    rig.append_round(ErrorCode.KAFKA_STORAGE_ERROR)
    answer = rig.answers[waiter]
    assert error_of(answer) is ErrorCode.NOT_COORDINATOR  # type: ignore[arg-type]
    assert rig.coordinator.manager.find("g") is None
    settle(rig, a)
    assert a.partitions == [0, 1, 2, 3]
