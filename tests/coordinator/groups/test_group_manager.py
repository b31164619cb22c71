"""Groups when their topic is read, and when it is let go."""

from __future__ import annotations

import pytest

from mpbroker.coordinator.groups.records import OffsetKey, OffsetValue
from mpbroker.coordinator.runtime.java_hash import java_hash
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ListGroupsRequest
from tests.support.group_rig import SESSION_MS, GroupRig, code_of, error_of


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
    assert len(rig.coordinator.timers) == 2  # the clean-up, and the counts


def test_a_partition_of_groups_is_read_without_a_look_at_those_of_others(
    rig: GroupRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = rig.coordinator
    coordinator.unload()
    coordinator.partitions.open(2)
    names = {
        partition: [f"g{n}" for n in range(99) if java_hash(f"g{n}") % 2 == partition] for partition in (0, 1)
    }
    hashed: list[str] = []

    def partition_for(group_id: str) -> int:
        hashed.append(group_id)
        return java_hash(group_id) % 2

    monkeypatch.setattr(coordinator.partitions, "partition_for", partition_for)
    for partition in (0, 1):
        for name in names[partition]:
            coordinator.offsets.apply(OffsetKey(name, "t", 0), OffsetValue(1, -1, "", 0))
        coordinator.manager.load(partition, {}, {})
    assert sorted(hashed) == sorted(names[0] + names[1]) == sorted(coordinator.manager.groups)
