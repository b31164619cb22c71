"""Committed offsets: who may commit, what is answered when, what is deleted."""

from __future__ import annotations

from typing import Any

import pytest

from mpbroker.coordinator.groups.classic.group import Group
from mpbroker.coordinator.groups.records import OffsetKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    JoinGroupResponse,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from tests.support.group_rig import GroupRig, outcome


def delete_offset(rig: GroupRig, topic: str, partition: int = 0) -> tuple[int, list[int]]:
    partitions = [OffsetDeleteRequest.OffsetDeleteRequestPartition(partition)]
    topics = [OffsetDeleteRequest.OffsetDeleteRequestTopic(topic, partitions)]
    answer = rig.now(OffsetDeleteRequest("g", topics))
    if isinstance(answer, ErrorCode):
        return answer, []
    return answer.error_code, [p.error_code for t in answer.topics for p in t.partitions]


def test_a_commit_is_answered_and_seen_when_it_is_durable(rig: GroupRig) -> None:
    waiter = rig.commit(7)
    assert waiter not in rig.answers
    asked = OffsetFetchRequest.OffsetFetchRequestGroup("g")
    asked.topics = None
    seen: Any = rig.answers[rig.ask(OffsetFetchRequest(groups=[asked]))]
    assert seen.groups[0].topics == []
    assert outcome(rig, waiter) is ErrorCode.NONE
    assert rig.committed() == 7
    assert rig.restarted().committed() == 7


def test_a_stable_fetch_waits_for_commits_under_way(rig: GroupRig) -> None:
    rig.commit(7)
    asked = OffsetFetchRequest.OffsetFetchRequestGroup("g", topics=None)
    waiter = rig.ask(OffsetFetchRequest(groups=[asked], require_stable=True))
    assert waiter not in rig.answers
    rig.settle()
    answer: Any = rig.answers[waiter]
    assert answer.groups[0].topics[0].partitions[0].committed_offset == 7


def test_a_refused_append_was_never_believed(rig: GroupRig) -> None:
    waiter = rig.commit(7)
    rig.append_round(ErrorCode.KAFKA_STORAGE_ERROR)
    assert outcome(rig, waiter) is ErrorCode.NOT_COORDINATOR
    assert rig.committed() == -1
    assert not rig.coordinator.offsets.is_under_way("g")


def test_a_fault_of_ours_is_told_to_who_waits(
    rig: GroupRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Check that clients hear of a bug at once, and not after their timeout, and that others are served."""

    def fail(*_: object) -> None:
        raise RuntimeError("nobody expects this")

    waiter = rig.commit(1)
    with monkeypatch.context() as patch:
        patch.setattr(rig.coordinator.offsets, "apply", fail)
        rig.settle()
    assert rig.answers[waiter] == ErrorCode.UNKNOWN_SERVER_ERROR
    member_id, waiter = rig.new_member()
    with monkeypatch.context() as patch:
        patch.setattr(Group, "next_generation", fail)
        rig.until_answered(waiter)
    answer = rig.answers[waiter]
    assert isinstance(answer, JoinGroupResponse)
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert all("group g: " in record.getMessage() for record in caplog.records if record.exc_info)
    assert sum(record.exc_info is not None for record in caplog.records) == 2
    again = rig.join(member_id)
    rig.until_answered(again)
    assert rig.joined(again).member_id == member_id


def test_commits_of_many_groups_share_a_round(rig: GroupRig) -> None:
    waiters = [rig.commit(number, group=f"g{number}") for number in range(50)]
    assert rig.append_round()
    assert not rig.append_round()
    assert {outcome(rig, waiter) for waiter in waiters} == {ErrorCode.NONE}
    assert [rig.committed(f"g{number}") for number in range(50)] == list(range(50))


def test_members_commit_in_their_generation_only(rig: GroupRig) -> None:
    ids, generation = rig.stable(1)
    assert outcome(rig, rig.commit(1, ids[0], generation)) is ErrorCode.NONE
    assert outcome(rig, rig.commit(2, ids[0], generation + 1)) is ErrorCode.ILLEGAL_GENERATION
    assert outcome(rig, rig.commit(2, "stranger", generation)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert outcome(rig, rig.commit(2)) is ErrorCode.UNKNOWN_MEMBER_ID
    fenced = rig.commit(2, ids[0], generation, group_instance_id="one")
    assert outcome(rig, fenced) is ErrorCode.UNKNOWN_MEMBER_ID
    assert rig.committed() == 1


def test_before_the_assignment_nobody_commits(rig: GroupRig) -> None:
    member_id, waiter = rig.new_member()
    rig.later(3000)
    generation = rig.joined(waiter).generation_id
    refused = rig.commit(1, member_id, generation)
    assert outcome(rig, refused) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_commit_keeps_its_member_alive(rig: GroupRig) -> None:
    ids, generation = rig.stable(1)
    for _ in range(3):
        rig.later(9000)
        assert outcome(rig, rig.commit(1, ids[0], generation)) is ErrorCode.NONE


@pytest.mark.parametrize(("version", "error"), [(8, 22), (9, 69)])
def test_a_generation_of_a_group_that_is_not_there(rig: GroupRig, version: int, error: int) -> None:
    assert outcome(rig, rig.commit(1, "m", 5, version=version)) == error


def test_metadata_that_is_too_large_and_topics_that_are_not_there(rig: GroupRig) -> None:
    assert outcome(rig, rig.commit(1, metadata="m" * 4097)) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert outcome(rig, rig.commit(1, metadata="m" * 4096)) is ErrorCode.NONE
    assert outcome(rig, rig.commit(1, topic="v")) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert outcome(rig, rig.commit(1, partition=4)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert outcome(rig, rig.commit(1, partition=-1)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_topics_by_id(rig: GroupRig) -> None:
    def request(topic_id: bytes) -> OffsetCommitRequest:
        partition = OffsetCommitRequest.OffsetCommitRequestPartition(0, 9)
        topic = OffsetCommitRequest.OffsetCommitRequestTopic(topic_id=topic_id, partitions=[partition])
        return OffsetCommitRequest("g", topics=[topic])

    topic_id = rig.id_of("t")
    assert topic_id is not None
    assert outcome(rig, rig.ask(request(topic_id), 10)) is ErrorCode.NONE
    assert rig.committed() == 9
    assert outcome(rig, rig.ask(request(b"x" * 16), 10)) is ErrorCode.UNKNOWN_TOPIC_ID
    topics = [
        OffsetFetchRequest.OffsetFetchRequestTopics(topic_id=i, partition_indexes=[0])
        for i in (topic_id, b"x" * 16)
    ]
    asked = OffsetFetchRequest.OffsetFetchRequestGroup("g", topics=topics)
    found = rig.now(OffsetFetchRequest(groups=[asked]), 10).groups[0].topics
    assert [(t.topic_id, t.partitions[0].committed_offset) for t in found] == [(topic_id, 9), (b"x" * 16, -1)]
    assert found[1].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_an_offset_belongs_to_the_topic_that_had_the_name(rig: GroupRig) -> None:
    """Whoever asks by id does not get what was committed for an earlier topic of that name."""

    def by_id() -> tuple[int, int]:
        topic = OffsetFetchRequest.OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])
        asked = OffsetFetchRequest.OffsetFetchRequestGroup("g", topics=[topic])
        (found,) = rig.now(OffsetFetchRequest(groups=[asked]), 10).groups[0].topics
        return found.partitions[0].committed_offset, found.partitions[0].error_code

    topic_id = rig.id_of("t")
    assert topic_id is not None
    outcome(rig, rig.commit(5))
    offsets, key = rig.coordinator.offsets, OffsetKey("g", "t", 0)
    value = offsets.of("g")["t", 0]
    assert (value.topic_id, by_id()) == (topic_id, (5, 0)), "committed by name"
    offsets.apply(key, value._replace(topic_id=b"x" * 16))
    assert (rig.committed(), by_id()) == (5, (-1, 0))
    offsets.apply(key, value._replace(topic_id=bytes(16)))
    assert (rig.committed(), by_id()) == (5, (5, 0)), "Kafka before 4.2 wrote no id"


def test_several_groups_in_one_fetch(rig: GroupRig) -> None:
    outcome(rig, rig.commit(1, group="a"))
    outcome(rig, rig.commit(2, group="b", topic="u"))
    groups = [OffsetFetchRequest.OffsetFetchRequestGroup(name, topics=None) for name in ("a", "b", "c")]
    found = rig.now(OffsetFetchRequest(groups=groups)).groups
    seen = [(g.group_id, [t.name for t in g.topics]) for g in found]
    assert seen == [("a", ["t"]), ("b", ["u"]), ("c", [])]


def test_offsets_can_be_deleted_unless_somebody_reads_the_topic(rig: GroupRig) -> None:
    assert delete_offset(rig, "t") == (69, [])
    ids, generation = rig.stable(1)
    outcome(rig, rig.commit(1, ids[0], generation))
    outcome(rig, rig.commit(2, ids[0], generation, topic="u"))
    assert delete_offset(rig, "t") == (0, [86])
    assert delete_offset(rig, "u") == (0, [0])
    assert delete_offset(rig, "v") == (0, [3])
    assert (rig.committed(), rig.committed(topic="u")) == (1, -1)
    assert rig.restarted().committed(topic="u") == -1


def test_offsets_go_with_their_topic(rig: GroupRig) -> None:
    outcome(rig, rig.commit(1))
    outcome(rig, rig.commit(2, topic="u"))
    under_way = rig.commit(3, partition=1)
    rig.coordinator.topics_deleted(["t"])
    assert outcome(rig, under_way) is ErrorCode.NONE
    assert (rig.committed(), rig.committed(partition=1), rig.committed(topic="u")) == (-1, -1, 2)
    assert rig.restarted().committed(partition=1) == -1
