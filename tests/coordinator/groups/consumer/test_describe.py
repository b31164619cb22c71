from __future__ import annotations

import pytest

from mpbroker.coordinator.groups.consumer import describe, described_group
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetDeleteRequest,
)
from tests.support.consumer_group_rig import Consumer, described, settle, settled
from tests.support.group_rig import CHECK_MS, DAY_MS, GroupRig, outcome

PART = ConsumerGroupDescribeResponse.TopicPartitions


def test_all_is_told_of_a_group(rig: GroupRig) -> None:
    a = Consumer(rig, "a", topics=("u", "t"), assignor="range")
    b = Consumer(rig, "b", topics=(), pattern="t.*", instance="x", is_lazy=True)
    a.beat(rack_id="r")
    rig.later(2_000)
    b.beat()
    b.beat()
    a.beat()
    found = described(rig)
    assert (found.error_code, found.group_state, found.assignor_name) == (0, "Reconciling", "range")
    assert (found.group_epoch, found.assignment_epoch) == (3, 3)
    first, second = sorted(found.members, key=lambda member: member.member_id)
    t, u = rig.id_of("t") or b"", rig.id_of("u") or b""
    # It has to give up two partitions, and is responsible for them until then.
    assert sorted(first.assignment.topic_partitions, key=lambda one: one.topic_name) == [
        PART(t, "t", [0, 1, 2, 3]),
        PART(u, "u", [0]),
    ]
    assert sorted(first.target_assignment.topic_partitions, key=lambda one: one.topic_name) == [
        PART(t, "t", [2, 3]),
        PART(u, "u", [0]),
    ]
    assert (first.rack_id, first.instance_id, first.member_epoch, first.member_type) == ("r", None, 2, 1)
    assert (first.client_id, first.client_host) == ("c", "/127.0.0.1")
    assert (first.subscribed_topic_names, first.subscribed_topic_regex) == (["t", "u"], "")
    assert (second.instance_id, second.subscribed_topic_names) == ("x", [])
    assert (second.subscribed_topic_regex, second.member_epoch) == ("t.*", 3)
    assert second.assignment.topic_partitions == []
    assert second.target_assignment.topic_partitions == [PART(t, "t", [0, 1])]


@pytest.mark.parametrize(
    ("group", "code", "text"),
    [
        ("", ErrorCode.INVALID_GROUP_ID, ErrorCode.INVALID_GROUP_ID.message),
        ("missing", ErrorCode.GROUP_ID_NOT_FOUND, "Group missing not found."),
        ("classic", ErrorCode.GROUP_ID_NOT_FOUND, "Group classic is not a consumer group."),
    ],
)
def test_groups_that_are_none_are_said(rig: GroupRig, group: str, code: ErrorCode, text: str) -> None:
    rig.new_member(group="classic")
    found = described(rig, group)
    assert (found.error_code, found.error_message, found.group_id) == (code, text, group)


def test_what_is_told_is_durable(rig: GroupRig) -> None:
    """The answer waits for the changes it tells of, and for no later ones. It has none that was refused."""
    settled(rig, "a")
    rig.ask(Consumer(rig, "b").request(), 1)
    waiters = [rig.ask(ConsumerGroupDescribeRequest(["g", "g"]), 1), rig.ask(ListGroupsRequest(), 5)]
    assert not rig.answers.keys() & set(waiters)
    rig.append_round(ErrorCode.KAFKA_STORAGE_ERROR)
    assert [rig.answers[waiter] for waiter in waiters] == [ErrorCode.NOT_COORDINATOR] * 2
    assert [member.member_id for member in described(rig).members] == ["a"]
    rig.ask(Consumer(rig, "b").request(), 1)
    waiter = rig.ask(ConsumerGroupDescribeRequest(["g"]), 1)
    listing = rig.ask(ListGroupsRequest(), 5)
    batches = rig.queue.next_round()
    rig.ask(Consumer(rig, "c", group="h").request(), 1)
    rig.ask(Consumer(rig, "c").request(), 1)
    rig.queue.finish([ErrorCode.NONE] * len(batches))
    rig.queue.next_round()
    answer = rig.answers[waiter]
    assert isinstance(answer, ConsumerGroupDescribeResponse)
    assert [[member.member_id for member in group.members] for group in answer.groups] == [["a", "b"]]
    listed = rig.answers[listing]
    assert isinstance(listed, ListGroupsResponse)
    assert [(one.group_id, one.group_state) for one in listed.groups] == [("g", "Reconciling")]


def test_topics_that_are_gone_are_left_out(rig: GroupRig) -> None:
    settled(rig, "a", topics=("t", "u"))
    rig.delete("t")
    (member,) = described(rig).members
    assert [one.topic_name for one in member.assignment.topic_partitions] == ["u"]


def test_a_large_group_is_described_in_slices(rig: GroupRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group is described as it was at the first slice."""
    monkeypatch.setattr(described_group, "NAMES_AT_ONCE", 1)
    rig.coordinator.background.slice_s = 0
    for member_id in "abc":
        Consumer(rig, member_id).beat()
    waiter = rig.ask(ConsumerGroupDescribeRequest(["g"]), 1)
    assert waiter not in rig.answers
    Consumer(rig, "d").beat()
    assert rig.coordinator.timers.count("describe") == 1
    rig.later(0)
    answer = rig.answers[waiter]
    assert isinstance(answer, ConsumerGroupDescribeResponse)
    assert sorted(member.member_id for member in answer.groups[0].members) == ["a", "b", "c"]


def test_an_answer_has_no_more_groups_than_it_has_room_for(
    rig: GroupRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe, "DESCRIBED_BYTES", 1)
    for group in "gh":
        Consumer(rig, "a", group=group).beat()
    answer = rig.now(ConsumerGroupDescribeRequest(["missing", "g", "h"]), 1)
    assert [one.group_id for one in answer.groups] == ["missing", "g"]


def test_tools_of_before_see_a_dead_group(rig: GroupRig) -> None:
    Consumer(rig, "a").beat()
    (found,) = rig.now(DescribeGroupsRequest(["g"]), 6).groups
    assert (found.group_state, found.error_code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)
    assert found.error_message == "Group g is not a classic group."
    (found,) = rig.now(DescribeGroupsRequest(["g"]), 5).groups
    assert (found.group_state, found.error_code) == ("Dead", 0)


def listed(rig: GroupRig, states: list[str], types: list[str]) -> list[tuple[str, str, str, str]]:
    groups = rig.now(ListGroupsRequest(states, types), 5).groups
    return [(one.group_id, one.protocol_type, one.group_state, one.group_type) for one in groups]


def test_groups_are_listed_by_state_and_type(rig: GroupRig) -> None:
    a, b = Consumer(rig, "a"), Consumer(rig, "b", group="h")
    for one in (a, b):
        settle(rig, one)
    rig.new_member(group="classic")
    b.leave()
    stable, empty = ("g", "consumer", "Stable", "consumer"), ("h", "consumer", "Empty", "consumer")
    assert sorted(listed(rig, [], ["Consumer"])) == [stable, empty]
    assert listed(rig, [" STABLE "], []) == [stable]
    assert listed(rig, ["empty"], ["consumer"]) == [empty]
    assert [one[0] for one in listed(rig, [], ["classic"])] == ["classic"]
    assert listed(rig, [], ["share"]) == []
    Consumer(rig, "c").beat()
    assert [one[2] for one in listed(rig, ["reconciling", "assigning"], [])] == ["Reconciling"]


# --- the end of a group


def test_a_group_is_deleted_when_it_has_no_members(rig: GroupRig) -> None:
    a = settled(rig, "a", topics=(), pattern="t")
    assert outcome(rig, rig.commit(5, "a", a.epoch)) is ErrorCode.NONE
    assert deleted(rig) is ErrorCode.NON_EMPTY_GROUP
    a.leave()
    assert deleted(rig) is ErrorCode.NONE
    assert described(rig).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert rig.committed() == -1
    rig.reload()
    assert rig.coordinator.manager.groups == {}
    assert rig.coordinator.manager.memory.used_bytes == 0


def deleted(rig: GroupRig) -> ErrorCode:
    return ErrorCode(rig.now(DeleteGroupsRequest(["g"]), 2).results[0].error_code)


def test_a_group_whose_deletion_is_refused_is_there_again(rig: GroupRig) -> None:
    a = settled(rig, "a")
    assert outcome(rig, rig.commit(5, "a", a.epoch)) is ErrorCode.NONE
    a.leave()
    before = described(rig)
    rig.ask(DeleteGroupsRequest(["g"]), 2)
    rig.append_round(ErrorCode.KAFKA_STORAGE_ERROR)
    assert described(rig) == before
    assert rig.committed() == 5


def with_offsets(rig: GroupRig) -> Consumer:
    """Return the member of a group that has committed an offset of its topic, and of another one."""
    a = settled(rig, "a")
    for topic in ("t", "u"):
        assert outcome(rig, rig.commit(5, "a", a.epoch, topic=topic)) is ErrorCode.NONE
    return a


def test_offsets_expire_unless_the_group_subscribes_to_the_topic(rig: GroupRig) -> None:
    a = with_offsets(rig)
    rig.now_ms += 8 * DAY_MS
    for _ in range(CHECK_MS // 40_000 + 1):
        rig.now(a.request(), 1)
        rig.later(40_000)
    assert (rig.committed(topic="t"), rig.committed(topic="u")) == (5, -1)


def test_a_group_without_members_and_offsets_ends(rig: GroupRig) -> None:
    a = settled(rig, "a")
    a.leave()
    rig.later(CHECK_MS)
    assert described(rig).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_of_a_subscribed_topic_cannot_be_deleted(rig: GroupRig) -> None:
    with_offsets(rig)
    parts = [OffsetDeleteRequest.OffsetDeleteRequestPartition(0)]
    topics = [OffsetDeleteRequest.OffsetDeleteRequestTopic(topic, parts) for topic in ("t", "u")]
    answer = rig.now(OffsetDeleteRequest("g", topics), 0)
    errors = {one.name: one.partitions[0].error_code for one in answer.topics}
    assert errors == {"t": ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, "u": ErrorCode.NONE}
