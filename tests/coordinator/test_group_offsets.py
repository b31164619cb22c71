"""Committed offsets: who may commit, what is answered when, what expires, what is deleted."""

from __future__ import annotations

from typing import Any

import pytest

from mpbroker.coordinator.groups.group import Group
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    DeleteGroupsRequest,
    HeartbeatRequest,
    JoinGroupResponse,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from tests.coordinator.group_world import World, code_of

DAY_MS = 24 * 3_600_000
CHECK_MS = 600_000


@pytest.fixture
def world() -> World:
    return World()


def outcome(world: World, waiter: int) -> ErrorCode:
    """Of a commit of one partition."""
    world.settle()
    answer: Any = world.answers[waiter]
    if isinstance(answer, ErrorCode):
        return answer
    return next(code for code in ErrorCode if code == answer.topics[0].partitions[0].error_code)


def test_a_commit_is_answered_and_seen_when_it_is_durable(world: World) -> None:
    waiter = world.commit(7)
    assert waiter not in world.answers
    asked = OffsetFetchRequest.OffsetFetchRequestGroup("g")
    asked.topics = None
    seen: Any = world.answers[world.ask(OffsetFetchRequest(groups=[asked]))]
    assert seen.groups[0].topics == []
    assert outcome(world, waiter) is ErrorCode.NONE
    assert world.committed() == 7
    assert world.restarted().committed() == 7


def test_a_stable_fetch_waits_for_commits_under_way(world: World) -> None:
    world.commit(7)
    asked = OffsetFetchRequest.OffsetFetchRequestGroup("g", topics=None)
    waiter = world.ask(OffsetFetchRequest(groups=[asked], require_stable=True))
    assert waiter not in world.answers
    world.settle()
    answer: Any = world.answers[waiter]
    assert answer.groups[0].topics[0].partitions[0].committed_offset == 7


def test_a_refused_append_was_never_believed(world: World) -> None:
    waiter = world.commit(7)
    world.append_round(ErrorCode.KAFKA_STORAGE_ERROR)
    assert outcome(world, waiter) is ErrorCode.NOT_COORDINATOR
    assert world.committed() == -1
    assert not world.groups.offsets.is_under_way("g")


def test_a_fault_of_ours_is_told_to_who_waits(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also to clients, which would wait for their request's whole time; the others are served."""

    def fail(*_: object) -> None:
        raise RuntimeError("nobody expects this")

    waiter = world.commit(1)
    with monkeypatch.context() as patch:
        patch.setattr(world.groups.offsets, "apply", fail)
        world.settle()
    assert world.answers[waiter] == ErrorCode.UNKNOWN_SERVER_ERROR
    member_id, waiter = world.new_member()
    with monkeypatch.context() as patch:
        patch.setattr(Group, "next_generation", fail)
        world.until_answered(waiter)
    answer = world.answers[waiter]
    assert isinstance(answer, JoinGroupResponse)
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert all("group g: " in record.getMessage() for record in caplog.records if record.exc_info)
    assert sum(record.exc_info is not None for record in caplog.records) == 2
    again = world.join(member_id)
    world.until_answered(again)
    assert world.joined(again).member_id == member_id


def test_commits_of_many_groups_share_a_round(world: World) -> None:
    waiters = [world.commit(number, group=f"g{number}") for number in range(50)]
    assert world.append_round()
    assert not world.append_round()
    assert {outcome(world, waiter) for waiter in waiters} == {ErrorCode.NONE}
    assert [world.committed(f"g{number}") for number in range(50)] == list(range(50))


def test_members_commit_in_their_generation_only(world: World) -> None:
    ids, generation = world.stable(1)
    assert outcome(world, world.commit(1, ids[0], generation)) is ErrorCode.NONE
    assert outcome(world, world.commit(2, ids[0], generation + 1)) is ErrorCode.ILLEGAL_GENERATION
    assert outcome(world, world.commit(2, "stranger", generation)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert outcome(world, world.commit(2)) is ErrorCode.UNKNOWN_MEMBER_ID
    fenced = world.commit(2, ids[0], generation, group_instance_id="one")
    assert outcome(world, fenced) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.committed() == 1


def test_before_the_assignment_nobody_commits(world: World) -> None:
    member_id, waiter = world.new_member()
    world.later(3000)
    generation = world.joined(waiter).generation_id
    refused = world.commit(1, member_id, generation)
    assert outcome(world, refused) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_commit_keeps_its_member_alive(world: World) -> None:
    ids, generation = world.stable(1)
    for _ in range(3):
        world.later(9000)
        assert outcome(world, world.commit(1, ids[0], generation)) is ErrorCode.NONE


@pytest.mark.parametrize(("version", "error"), [(8, 22), (9, 69)])
def test_a_generation_of_a_group_that_is_not_there(world: World, version: int, error: int) -> None:
    assert outcome(world, world.commit(1, "m", 5, version=version)) == error


def test_metadata_that_is_too_large_and_topics_that_are_not_there(world: World) -> None:
    assert outcome(world, world.commit(1, metadata="m" * 4097)) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert outcome(world, world.commit(1, metadata="m" * 4096)) is ErrorCode.NONE
    assert outcome(world, world.commit(1, topic="v")) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert outcome(world, world.commit(1, partition=4)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert outcome(world, world.commit(1, partition=-1)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_topics_by_id(world: World) -> None:
    def request(topic_id: bytes) -> OffsetCommitRequest:
        partition = OffsetCommitRequest.OffsetCommitRequestPartition(0, 9)
        topic = OffsetCommitRequest.OffsetCommitRequestTopic(topic_id=topic_id, partitions=[partition])
        return OffsetCommitRequest("g", topics=[topic])

    topic_id = world.id_of("t")
    assert topic_id is not None
    assert outcome(world, world.ask(request(topic_id), 10)) is ErrorCode.NONE
    assert world.committed() == 9
    assert outcome(world, world.ask(request(b"x" * 16), 10)) is ErrorCode.UNKNOWN_TOPIC_ID
    topics = [
        OffsetFetchRequest.OffsetFetchRequestTopics(topic_id=i, partition_indexes=[0])
        for i in (topic_id, b"x" * 16)
    ]
    asked = OffsetFetchRequest.OffsetFetchRequestGroup("g", topics=topics)
    found = world.now(OffsetFetchRequest(groups=[asked]), 10).groups[0].topics
    assert [(t.topic_id, t.partitions[0].committed_offset) for t in found] == [(topic_id, 9), (b"x" * 16, -1)]
    assert found[1].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_several_groups_in_one_fetch(world: World) -> None:
    outcome(world, world.commit(1, group="a"))
    outcome(world, world.commit(2, group="b", topic="u"))
    groups = [OffsetFetchRequest.OffsetFetchRequestGroup(name, topics=None) for name in ("a", "b", "c")]
    found = world.now(OffsetFetchRequest(groups=groups)).groups
    assert [(g.group_id, [t.name for t in g.topics]) for g in found] == [
        ("a", ["t"]),
        ("b", ["u"]),
        ("c", []),
    ]


def test_offsets_of_an_abandoned_group_expire_and_the_group_with_them(world: World) -> None:
    ids, generation = world.stable(1)
    outcome(world, world.commit(1, ids[0], generation))
    world.leave((ids[0], None))
    world.later(7 * DAY_MS - CHECK_MS)
    assert world.committed() == 1
    world.later(2 * CHECK_MS)
    assert world.committed() == -1
    assert "g" not in world.groups.groups
    assert "g" not in world.restarted().groups.groups


def test_offsets_of_a_live_group_stay_for_the_topics_it_reads(world: World) -> None:
    ids, generation = world.stable(1)
    outcome(world, world.commit(1, ids[0], generation))
    outcome(world, world.commit(2, ids[0], generation, topic="u"))
    for _ in range(8 * DAY_MS // 9_000_000):
        for _ in range(1000):
            world.groups.handle(0, HeartbeatRequest("g", generation, ids[0]), 4, ("c", "/h"))
            world.answers.pop(0)
            world.now_ms += 9000
    world.later(0)
    assert (world.committed(), world.committed(topic="u")) == (1, -1)


def test_offsets_with_a_retention_of_their_own(world: World) -> None:
    outcome(world, world.commit(1, version=4, retention_time_ms=DAY_MS))
    world.later(DAY_MS - CHECK_MS)
    assert world.committed() == 1
    assert world.restarted().committed() == 1
    world.later(2 * CHECK_MS)
    assert world.committed() == -1


def test_a_retention_beyond_all_time(world: World) -> None:
    waiter = world.commit(1, version=4, retention_time_ms=(1 << 63) - 1)
    assert outcome(world, waiter) is ErrorCode.NONE
    assert world.restarted().committed() == 1


def deleted(world: World, *names: str) -> dict[str, int]:
    return {r.group_id: r.error_code for r in world.now(DeleteGroupsRequest(list(names))).results}


def test_groups_without_members_can_be_deleted(world: World) -> None:
    ids, generation = world.stable(1)
    outcome(world, world.commit(1, ids[0], generation))
    outcome(world, world.commit(2, group="simple"))
    assert deleted(world, "g", "simple", "nowhere") == {"g": 68, "simple": 0, "nowhere": 69}
    world.leave((ids[0], None))
    assert deleted(world, "g", "g") == {"g": 0}
    assert world.committed() == world.committed("simple") == -1
    after = world.restarted()
    assert after.groups.groups == {}
    assert len(after.groups.offsets) == 0


def test_a_commit_under_way_does_not_survive_the_deletion_of_its_group(world: World) -> None:
    outcome(world, world.commit(1))
    commit = world.commit(2, partition=1)
    waiter = world.ask(DeleteGroupsRequest(["g"]))
    # Until it is durable the group is neither there nor gone.
    assert code_of(world.answers[world.join()]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert outcome(world, world.commit(3)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.settle()
    assert outcome(world, commit) is ErrorCode.NONE
    assert waiter in world.answers
    assert world.committed(partition=1) == world.restarted().committed(partition=1) == -1


def test_a_group_whose_deletion_was_refused_is_still_there(world: World) -> None:
    outcome(world, world.commit(1))
    waiter = world.ask(DeleteGroupsRequest(["g"]))
    world.append_round(ErrorCode.KAFKA_STORAGE_ERROR)
    answer: Any = world.answers[waiter]
    assert answer.results[0].error_code == ErrorCode.NOT_COORDINATOR
    assert world.committed() == 1


def delete_offset(world: World, topic: str, partition: int = 0) -> tuple[int, list[int]]:
    partitions = [OffsetDeleteRequest.OffsetDeleteRequestPartition(partition)]
    topics = [OffsetDeleteRequest.OffsetDeleteRequestTopic(topic, partitions)]
    answer = world.now(OffsetDeleteRequest("g", topics))
    if isinstance(answer, ErrorCode):
        return answer, []
    return answer.error_code, [p.error_code for t in answer.topics for p in t.partitions]


def test_offsets_can_be_deleted_unless_somebody_reads_the_topic(world: World) -> None:
    assert delete_offset(world, "t") == (69, [])
    ids, generation = world.stable(1)
    outcome(world, world.commit(1, ids[0], generation))
    outcome(world, world.commit(2, ids[0], generation, topic="u"))
    assert delete_offset(world, "t") == (0, [86])
    assert delete_offset(world, "u") == (0, [0])
    assert delete_offset(world, "v") == (0, [3])
    assert (world.committed(), world.committed(topic="u")) == (1, -1)
    assert world.restarted().committed(topic="u") == -1


def test_offsets_go_with_their_topic(world: World) -> None:
    outcome(world, world.commit(1))
    outcome(world, world.commit(2, topic="u"))
    under_way = world.commit(3, partition=1)
    world.groups.topics_deleted(["t"])
    assert outcome(world, under_way) is ErrorCode.NONE
    assert (world.committed(), world.committed(partition=1), world.committed(topic="u")) == (-1, -1, 2)
    assert world.restarted().committed(partition=1) == -1
