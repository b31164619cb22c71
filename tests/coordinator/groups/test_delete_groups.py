"""Groups that are deleted, and offsets and groups that expire."""

from __future__ import annotations

from typing import Any

from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DeleteGroupsRequest, OffsetDeleteRequest
from tests.support.consumer_group_rig import Consumer, described
from tests.support.group_rig import CHECK_MS, DAY_MS, GroupRig, code_of, error_of, outcome


def deleted(rig: GroupRig, *names: str) -> dict[str, int]:
    return {r.group_id: r.error_code for r in rig.now(DeleteGroupsRequest(list(names))).results}


def test_offsets_of_an_abandoned_group_expire_and_the_group_with_them(rig: GroupRig) -> None:
    ids, generation = rig.stable(1)
    outcome(rig, rig.commit(1, ids[0], generation))
    rig.leave((ids[0], None))
    rig.later(7 * DAY_MS - CHECK_MS)
    assert rig.committed() == 1
    rig.later(2 * CHECK_MS)
    assert rig.committed() == -1
    assert "g" not in rig.coordinator.manager.groups
    assert "g" not in rig.restarted().coordinator.manager.groups


def test_offsets_of_a_live_group_stay_for_the_topics_it_reads(rig: GroupRig) -> None:
    ids, generation = rig.stable(1)
    outcome(rig, rig.commit(1, ids[0], generation))
    outcome(rig, rig.commit(2, ids[0], generation, topic="u"))
    for _ in range(8 * DAY_MS // 9_000_000):
        for _ in range(1000):
            rig.heartbeat(ids[0], generation)
            rig.now_ms += 9000
    rig.later(0)
    assert (rig.committed(), rig.committed(topic="u")) == (1, -1)


def test_offsets_with_a_retention_of_their_own(rig: GroupRig) -> None:
    outcome(rig, rig.commit(1, version=4, retention_time_ms=DAY_MS))
    rig.later(DAY_MS - CHECK_MS)
    assert rig.committed() == 1
    assert rig.restarted().committed() == 1
    rig.later(2 * CHECK_MS)
    assert rig.committed() == -1


def test_a_retention_beyond_all_time(rig: GroupRig) -> None:
    waiter = rig.commit(1, version=4, retention_time_ms=(1 << 63) - 1)
    assert outcome(rig, waiter) is ErrorCode.NONE
    assert rig.restarted().committed() == 1


def test_groups_without_members_can_be_deleted(rig: GroupRig) -> None:
    ids, generation = rig.stable(1)
    outcome(rig, rig.commit(1, ids[0], generation))
    outcome(rig, rig.commit(2, group="simple"))
    assert deleted(rig, "g", "simple", "nowhere") == {"g": 68, "simple": 0, "nowhere": 69}
    rig.leave((ids[0], None))
    assert deleted(rig, "g", "g") == {"g": 0}
    assert rig.committed() == rig.committed("simple") == -1
    after = rig.restarted()
    assert after.coordinator.manager.groups == {}
    assert len(after.coordinator.offsets) == 0


def test_the_group_of_consumers_without_a_group_id_can_be_deleted(rig: GroupRig) -> None:
    assert deleted(rig, "") == {"": ErrorCode.GROUP_ID_NOT_FOUND}
    assert outcome(rig, rig.commit(1, group="")) is ErrorCode.NONE
    assert deleted(rig, "") == {"": ErrorCode.NONE}
    assert rig.committed(group="") == -1
    assert code_of(rig.now(OffsetDeleteRequest(""))) is ErrorCode.INVALID_GROUP_ID


def test_a_commit_under_way_does_not_survive_the_deletion_of_its_group(rig: GroupRig) -> None:
    outcome(rig, rig.commit(1))
    commit = rig.commit(2, partition=1)
    waiter = rig.ask(DeleteGroupsRequest(["g"]))
    # Until it is durable the group is neither there nor gone.
    assert code_of(rig.answers[rig.join()]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert outcome(rig, rig.commit(3)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    rig.settle()
    assert outcome(rig, commit) is ErrorCode.NONE
    assert waiter in rig.answers
    assert rig.committed(partition=1) == rig.restarted().committed(partition=1) == -1


def test_a_group_whose_deletion_was_refused_is_still_there(rig: GroupRig) -> None:
    outcome(rig, rig.commit(1))
    waiter = rig.ask(DeleteGroupsRequest(["g"]))
    rig.append_round(ErrorCode.KAFKA_STORAGE_ERROR)
    answer: Any = rig.answers[waiter]
    assert answer.results[0].error_code == ErrorCode.NOT_COORDINATOR
    assert rig.committed() == 1


def test_a_consumer_group_is_there_again_if_its_deletion_is_refused(rig: GroupRig) -> None:
    member = Consumer(rig, "a")
    member.beat()
    member.leave()
    deletion = rig.ask(DeleteGroupsRequest(["g"]), 2)
    assert error_of(rig, rig.join()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    rig.append_round(ErrorCode.KAFKA_STORAGE_ERROR)
    assert deletion in rig.answers
    assert described(rig).group_state == "Empty"
    assert deleted(rig, "g") == {"g": 0}
    assert error_of(rig, rig.join()) is ErrorCode.MEMBER_ID_REQUIRED
