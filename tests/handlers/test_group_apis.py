"""Requests about groups in a handler: handed on, parked, answered in their version, and forgotten in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mpbroker.handlers.api_parts import offset_commits
from mpbroker.handlers.apis import k09_offset_fetch
from mpbroker.handlers.calls.forwarding import NAMES_AT_ONCE
from mpbroker.handlers.requests import request as handlers_request
from mpbroker.handlers.requests.limits import SMALL_REQUEST_ELEMENTS_MAX
from mpbroker.handlers.requests.request import ReceivedRequest
from mpbroker.ipc.calls import Abandon, Acknowledged, Failed, ForwardedRequest, MalformedRequest
from mpbroker.ipc.slots import SlotKind
from mpbroker.ipc.topology import COORDINATOR, processor
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.codec import encode_bytes, encode_request
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.headers import decode_response_frame
from mpbroker.protocol.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    Message,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
)
from mpbroker.protocol.wire import uvarint
from tests.handlers.test_fences import fence
from tests.support.forwarded_requests import answered, body_of, each_version, hand_on
from tests.support.handler_rig import Rig, request_frame, topic_image

ID = b"i" * 16
REQUEST: dict[ApiKey, Callable[[int], Message]] = {
    ApiKey.OFFSET_COMMIT: lambda version: OffsetCommitRequest(
        "g",
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                "t" if version < 10 else "",
                ID if version >= 10 else bytes(16),
                [OffsetCommitRequest.OffsetCommitRequestPartition(3, 5)],
            )
        ],
    ),
    ApiKey.OFFSET_FETCH: lambda _: OffsetFetchRequest(
        "g",
        [OffsetFetchRequest.OffsetFetchRequestTopic("t", [3])],
        [
            OffsetFetchRequest.OffsetFetchRequestGroup(
                "g", topics=[OffsetFetchRequest.OffsetFetchRequestTopics("t", ID, [3])]
            )
        ],
    ),
    ApiKey.JOIN_GROUP: lambda _: JoinGroupRequest("g", member_id="m"),
    ApiKey.HEARTBEAT: lambda _: HeartbeatRequest("g", 1, "m"),
    ApiKey.LEAVE_GROUP: lambda _: LeaveGroupRequest(
        "g", "m", [LeaveGroupRequest.MemberIdentity("m"), LeaveGroupRequest.MemberIdentity("n")]
    ),
    ApiKey.SYNC_GROUP: lambda _: SyncGroupRequest(
        "g", 1, "m", protocol_type="consumer", protocol_name="range"
    ),
    ApiKey.DESCRIBE_GROUPS: lambda _: DescribeGroupsRequest(["g"]),
    ApiKey.LIST_GROUPS: lambda _: ListGroupsRequest(),
    ApiKey.DELETE_GROUPS: lambda _: DeleteGroupsRequest(["g"]),
    ApiKey.OFFSET_DELETE: lambda _: OffsetDeleteRequest("g"),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: lambda _: ConsumerGroupHeartbeatRequest(
        "g", "m", 5, topic_partitions=None
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: lambda _: ConsumerGroupDescribeRequest(["g"]),
}
EVERY = each_version(REQUEST)
READY = (topic_image("t", 1),)


def sent(ready: Rig, key: ApiKey, version: int, connection: int = 7) -> tuple[Any, ForwardedRequest]:
    return hand_on(ready, key, version, REQUEST[key](version), connection)


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_a_request_is_handed_on_with_who_asks(ready: Rig, key: ApiKey, version: int) -> None:
    _, message = sent(ready, key, version)
    # There is one question about offsets: that of the version that names groups.
    of_version = max(version, 8) if key == ApiKey.OFFSET_FETCH else version
    assert (message.api_key, message.version) == (key, of_version)
    assert (message.client_host[0], message.principal) == ("/", "User:ANONYMOUS")
    body = body_of(message)
    for name in ("group_id", "member_id", "generation_id"):
        if hasattr(body, name) and (key, name) != (ApiKey.OFFSET_FETCH, "group_id"):
            asked = getattr(REQUEST[key](version), name)
            new_leave = key == ApiKey.LEAVE_GROUP and name == "member_id" and version >= 3
            assert getattr(body, name) == ("" if new_leave else asked)
    if key == ApiKey.OFFSET_FETCH:
        assert [g.group_id for g in body.groups] == ["g"]
        assert [t.partition_indexes for t in body.groups[0].topics] == [[3]]
    if key == ApiKey.LEAVE_GROUP:
        assert [m.member_id for m in body.members] == (["m", "n"] if version >= 3 else [])


def test_all_offsets_in_version_10_are_those_of_topics_with_an_id(ready: Rig) -> None:
    asked = OffsetFetchRequest.OffsetFetchRequestGroup("g", topics=None)
    call, _ = hand_on(ready, ApiKey.OFFSET_FETCH, 10, OffsetFetchRequest(groups=[asked]))
    topics = [OffsetFetchResponse.OffsetFetchResponseTopics(topic_id=i) for i in (ID, bytes(16))]
    group = OffsetFetchResponse.OffsetFetchResponseGroup("g", topics)
    answered(ready, call, OffsetFetchResponse(groups=[group]))
    assert [t.topic_id for t in ready.answer(ApiKey.OFFSET_FETCH, 10).groups[0].topics] == [ID]


def test_what_a_client_may_do_with_a_group(ready: Rig) -> None:
    request = DescribeGroupsRequest(["g"], include_authorized_operations=True)
    call, _ = hand_on(ready, ApiKey.DESCRIBE_GROUPS, 6, request)
    described = DescribeGroupsResponse.DescribedGroup(group_id="g", group_state="Empty")
    answered(ready, call, DescribeGroupsResponse(groups=[described]))
    (group,) = ready.answer(ApiKey.DESCRIBE_GROUPS, 6).groups
    assert group.authorized_operations == sum(1 << code for code in (3, 6, 8, 10, 11))


def test_the_coordinator_gets_the_epoch_of_a_member_that_asks_for_offsets(ready: Rig) -> None:
    asked = OffsetFetchRequest.OffsetFetchRequestGroup("g", "m", 5, None)
    call, message = hand_on(ready, ApiKey.OFFSET_FETCH, 9, OffsetFetchRequest(groups=[asked]))
    assert body_of(message).groups == [asked]
    group = OffsetFetchResponse.OffsetFetchResponseGroup("g", error_code=ErrorCode.STALE_MEMBER_EPOCH)
    answered(ready, call, OffsetFetchResponse(groups=[group]))
    (found,) = ready.answer(ApiKey.OFFSET_FETCH, 9).groups
    assert (found.error_code, found.topics) == (ErrorCode.STALE_MEMBER_EPOCH, [])


@pytest.mark.parametrize("version", [9, 10])
@pytest.mark.parametrize("code", [ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND])
def test_a_commit_that_fails_as_a_whole_fails_for_each_partition(
    ready: Rig, version: int, code: ErrorCode
) -> None:
    call, _ = sent(ready, ApiKey.OFFSET_COMMIT, version)
    ready.reply(call, Failed(code, ""))
    (topic,) = ready.answer(ApiKey.OFFSET_COMMIT, version).topics
    assert [(one.partition_index, one.error_code) for one in topic.partitions] == [(3, code)]


@pytest.mark.parametrize("key", [ApiKey.DESCRIBE_GROUPS, ApiKey.DELETE_GROUPS])
def test_many_groups_are_asked_for_a_part_at_a_time_and_each_once(ready: Rig, key: ApiKey) -> None:
    """One request must not keep the coordinator from everybody's heartbeats."""
    names = [f"g{number}" for number in range(2 * NAMES_AT_ONCE + 3)]
    twice = [*names, *names[::-1]]
    is_delete = key == ApiKey.DELETE_GROUPS
    body = DeleteGroupsRequest(twice) if is_delete else DescribeGroupsRequest(twice)
    ready.processor.send(request_frame(key, 2, body))
    ready.work_off()
    asked = []
    for _ in range(3):
        ready.processor.replies()
        ((call, message),) = ready.coordinator.take()
        part = body_of(message)
        some = part.groups_names if is_delete else part.groups
        assert len(some) <= NAMES_AT_ONCE
        asked += some
        if is_delete:
            result = DeleteGroupsResponse.DeletableGroupResult
            answered(ready, call, DeleteGroupsResponse(results=[result(name, 69) for name in some]))
        else:
            group = DescribeGroupsResponse.DescribedGroup
            answered(ready, call, DescribeGroupsResponse(groups=[group(group_id=name) for name in some]))
    assert asked == names
    response = ready.answer(key, 2)
    assert [group.group_id for group in (response.results if is_delete else response.groups)] == names
    assert len(ready.handler.broker.forwarding) == 0


def test_the_coordinator_dies_between_two_parts(ready: Rig) -> None:
    names = [f"g{number}" for number in range(NAMES_AT_ONCE + 1)]
    call, _ = ready.asked(ApiKey.DESCRIBE_GROUPS, 2, DescribeGroupsRequest([*names, *names]))
    group = DescribeGroupsResponse.DescribedGroup
    answered(ready, call, DescribeGroupsResponse(groups=[group(group_id=name) for name in names[:-1]]))
    ready.processor.replies()
    fence(ready, COORDINATOR, alive=False)
    groups = ready.answer(ApiKey.DESCRIBE_GROUPS, 2).groups
    assert [group.group_id for group in groups] == names
    assert {group.error_code for group in groups} == {ErrorCode.NOT_COORDINATOR}


def test_groups_that_did_not_fit_into_an_answer_are_asked_for_again(ready: Rig) -> None:
    names = ["a", "b", "c"]
    ready.send(ApiKey.DESCRIBE_GROUPS, 2, DescribeGroupsRequest(names))
    for left in (names, names[1:], names[2:]):
        ready.processor.replies()
        ((call, message),) = ready.coordinator.take()
        assert body_of(message).groups == left
        described = DescribeGroupsResponse.DescribedGroup(group_id=left[0])
        answered(ready, call, DescribeGroupsResponse(groups=[described]))
    assert [group.group_id for group in ready.answer(ApiKey.DESCRIBE_GROUPS, 2).groups] == names


AskedGroup = OffsetFetchRequest.OffsetFetchRequestGroup
AskedTopic = OffsetFetchRequest.OffsetFetchRequestTopics


def test_a_commit_that_cannot_be_one_batch_is_refused_at_once(ready: Rig) -> None:
    partition = OffsetCommitRequest.OffsetCommitRequestPartition
    partitions = [partition(number, 5) for number in range(30_000)]
    topic = OffsetCommitRequest.OffsetCommitRequestTopic("t", partitions=partitions)
    (answer,) = ready.ask(ApiKey.OFFSET_COMMIT, 9, OffsetCommitRequest("g", topics=[topic])).topics
    assert {one.error_code for one in answer.partitions} == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert ready.coordinator.take() == []


def test_a_commit_of_very_many_offsets_is_passed_on_in_parts(
    ready: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that each partition has its outcome, in order, and that a topic that was split is whole again."""
    monkeypatch.setattr(handlers_request, "DECODED_AT_ONCE", 10)
    monkeypatch.setattr(offset_commits, "COMMITTED_AT_ONCE", 4)
    of_partition = OffsetCommitRequest.OffsetCommitRequestPartition
    of_topic = OffsetCommitRequest.OffsetCommitRequestTopic
    asked = [("a", 3), ("b", 6), ("none", 0), ("a", 1)]
    # Long enough to be looked into.
    topics = [
        of_topic(name, partitions=[of_partition(i, 5, committed_metadata="m" * 200) for i in range(count)])
        for name, count in asked
    ]
    request = OffsetCommitRequest("g", topics=topics)
    ready.processor.send(request_frame(ApiKey.OFFSET_COMMIT, 9, request))
    ready.work_off()
    named, code = [], 0
    while ready.handler.intake.open:
        ready.processor.replies()
        ((call, message),) = ready.coordinator.take()
        part = body_of(message)
        assert (part.group_id, message.version) == ("g", 9)
        named.append([(topic.name, len(topic.partitions)) for topic in part.topics])
        answered(ready, call, commit_answer(part, code))
        code += 1
    assert named == [[("a", 3), ("b", 1)], [("b", 4)], [("b", 1), ("none", 0), ("a", 1)]]
    found = ready.answer(ApiKey.OFFSET_COMMIT, 9).topics
    codes = [(topic.name, [one.error_code for one in topic.partitions]) for topic in found]
    assert codes == [("a", [0] * 3), ("b", [0, 1, 1, 1, 1, 2]), ("none", []), ("a", [2])]


def commit_answer(part: OffsetCommitRequest, code: int) -> OffsetCommitResponse:
    of_partition = OffsetCommitResponse.OffsetCommitResponsePartition
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponse.OffsetCommitResponseTopic(
                topic.name, partitions=[of_partition(one.partition_index, code) for one in topic.partitions]
            )
            for topic in part.topics
        ]
    )


FetchedGroup = OffsetFetchResponse.OffsetFetchResponseGroup


def fetched(request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Return a coordinator's answer to all of it; `all` has one offset."""
    of_topic, of_partition = (
        OffsetFetchResponse.OffsetFetchResponseTopics,
        OffsetFetchResponse.OffsetFetchResponsePartitions,
    )
    groups = []
    for group in request.groups:
        topics = group.topics if group.topics is not None else [AskedTopic("every", partition_indexes=[9])]
        found = [
            of_topic(t.name, t.topic_id, [of_partition(i, i * 10) for i in t.partition_indexes])
            for t in topics
        ]
        groups.append(FetchedGroup(group.group_id, found))
    return OffsetFetchResponse(groups=groups)


def serve_in_parts(
    made: Rig, request: OffsetFetchRequest, answer: Callable[[OffsetFetchRequest], OffsetFetchResponse]
) -> tuple[OffsetFetchResponse, list[OffsetFetchRequest]]:
    made.send(ApiKey.OFFSET_FETCH, 9, request)
    parts = []
    while made.handler.intake.open:
        made.processor.replies()
        ((call, message),) = made.coordinator.take()
        parts.append(body_of(message))
        answered(made, call, answer(parts[-1]))
    return made.answer(ApiKey.OFFSET_FETCH, 9), parts


@pytest.mark.parametrize("at_once", [2, 3, 7, 20, 1000])
def test_long_lists_of_offsets_are_asked_for_in_parts(
    ready: Rig, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(k09_offset_fetch, "PARTITIONS_AT_ONCE", at_once)
    monkeypatch.setattr(k09_offset_fetch, "ALL_COUNT_AS", 5)
    lists = [[*range(12)], [], [3], [*range(5)]]
    topics = [AskedTopic(f"t{number}", partition_indexes=one) for number, one in enumerate(lists)]
    groups = [
        AskedGroup("a", topics=topics),
        AskedGroup("b", topics=None),
        AskedGroup("c", topics=[]),
        AskedGroup("d", topics=topics[::-1]),
        AskedGroup("b", topics=None),
    ]
    request = OffsetFetchRequest(groups=groups, require_stable=True)
    response, parts = serve_in_parts(ready, request, fetched)
    # Each group is answered once.
    request.groups.pop()
    assert response == fetched(request)
    assert (len(parts) == 1) == (at_once == 1000)
    for part in parts:
        named = [len(t.partition_indexes) + 1 for g in part.groups for t in g.topics or ()]
        assert sum(named) <= at_once
        assert part.require_stable


def test_a_group_that_fails_in_one_part_fails(ready: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k09_offset_fetch, "PARTITIONS_AT_ONCE", 4)

    def some_fail(request: OffsetFetchRequest) -> OffsetFetchResponse:
        (group,) = request.groups
        numbers = [number for topic in group.topics or () for number in topic.partition_indexes]
        failed = OffsetFetchResponse(groups=[FetchedGroup("g", [], 14)])
        return failed if 5 in numbers else fetched(request)

    topic = AskedTopic("t", partition_indexes=[*range(9)])
    request = OffsetFetchRequest(groups=[AskedGroup("g", topics=[topic])])
    response, parts = serve_in_parts(ready, request, some_fail)
    assert len(parts) > 2
    assert response == OffsetFetchResponse(groups=[FetchedGroup("g", [], 14)])


def test_a_request_is_passed_on_as_it_came_and_not_read(ready: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def unread(*_: object) -> None:
        raise AssertionError("a handler reads what it passes on")

    monkeypatch.setattr(handlers_request, "decode_request", unread)
    request = JoinGroupRequest("g", member_id="m", protocols=[JoinGroupRequest.JoinGroupRequestProtocol()])
    call, message = hand_on(ready, ApiKey.JOIN_GROUP, 9, request)
    assert message.body == encode_bytes(encode_request(ApiKey.JOIN_GROUP, 9, request))
    answered(ready, call, JoinGroupResponse(member_id="m2"))
    assert ready.answer(ApiKey.JOIN_GROUP, 9).member_id == "m2"


def test_tagged_fields_that_nobody_knows_are_not_passed_on_without_end(ready: Rig) -> None:
    """Stepping over millions of tagged fields would keep the coordinator from everybody's heartbeats."""
    frame = request_frame(ApiKey.HEARTBEAT, 4, HeartbeatRequest("g", 1, "m"))
    tags = b"".join(uvarint(tag) + b"\0" for tag in range(SMALL_REQUEST_ELEMENTS_MAX + 1))
    frame = frame[:-1] + uvarint(SMALL_REQUEST_ELEMENTS_MAX + 1) + tags
    ready.processor.send((len(frame) - 4).to_bytes(4) + frame[4:])
    ready.turn()
    assert [reply.kind for reply in ready.processor.replies()] == [SlotKind.CLOSE]
    assert ready.coordinator.take() == []


def test_the_request_log_has_what_was_passed_on_and_its_response(
    ready: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[Any, Any]] = []

    def describe(described: ReceivedRequest, _listener: str, response: Any) -> bytes:
        told.append((described.body, response))
        return b"{"

    monkeypatch.setattr("mpbroker.handlers.requests.response.describe", describe)
    monkeypatch.setattr(ready.handler.broker, "logs_requests", lambda: True)
    call, _ = sent(ready, ApiKey.JOIN_GROUP, 9)
    answered(ready, call, JoinGroupResponse(member_id="m2"))
    ((request, response),) = told
    assert (request.group_id, response.member_id) == ("g", "m2")


def test_what_the_coordinator_cannot_read_closes_the_connection(
    ready: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    call, _ = sent(ready, ApiKey.JOIN_GROUP, 9)
    ready.reply(call, MalformedRequest("it is cut off"))
    assert [reply.kind for reply in ready.processor.replies()] == [SlotKind.CLOSE]
    assert "malformed JoinGroup v9: it is cut off" in caplog.text
    assert (len(ready.handler.broker.forwarding), ready.handler.intake.open) == (0, {})


def test_a_malformed_request_whose_coordinator_dies_closes_the_connection(
    ready: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error response would have the member that the request names."""
    frame = request_frame(ApiKey.JOIN_GROUP, 9, JoinGroupRequest("g", member_id="m"))
    ready.processor.send(frame[:-6])
    ready.turn()
    ready.processor.replies()
    fence(ready, COORDINATOR, alive=False)
    assert [reply.kind for reply in ready.processor.replies()] == [SlotKind.CLOSE]
    assert "malformed JoinGroup v9" in caplog.text


def test_a_closed_connection_ends_its_request_here_and_at_the_coordinator(ready: Rig) -> None:
    call, _ = sent(ready, ApiKey.JOIN_GROUP, 9, connection=5)
    ready.processor.cancel(5)
    ready.turn()
    (reply,) = ready.processor.replies()
    assert (reply.kind, reply.connection) == (SlotKind.NOOP, 5)
    ((abandoned, message),) = ready.coordinator.take()
    assert message == Abandon(call.request)
    # Both calls are answered; nobody hears of it.
    answered(ready, call, JoinGroupResponse(error_code=27))
    ready.reply(abandoned, Acknowledged())
    assert ready.processor.replies() == []
    assert (len(ready.handler.broker.forwarding), len(ready.handler.broker.coordinator)) == (0, 0)
    assert ready.handler.intake.open == {}


def test_a_dead_processor_takes_its_requests_along(ready: Rig) -> None:
    call, _ = sent(ready, ApiKey.JOIN_GROUP, 9)
    fence(ready, processor(0), alive=False)
    ready.turn()
    ((_, message),) = ready.coordinator.take()
    assert message == Abandon(call.request)
    assert len(ready.handler.broker.forwarding) == 0


def test_a_dead_coordinator_answers_nobody(ready: Rig) -> None:
    sent(ready, ApiKey.JOIN_GROUP, 9)
    fence(ready, COORDINATOR, alive=False)
    assert ready.answer(ApiKey.JOIN_GROUP, 9).error_code == ErrorCode.NOT_COORDINATOR
    assert len(ready.handler.broker.forwarding) == 0


def test_a_stopping_handler_lets_go_of_those_who_wait_for_others(ready: Rig) -> None:
    join, _ = sent(ready, ApiKey.JOIN_GROUP, 9, connection=1)
    heartbeat, _ = sent(ready, ApiKey.HEARTBEAT, 4, connection=2)
    ready.handler.broker.forwarding.release()
    ready.turn()
    response = ready.answer(ApiKey.JOIN_GROUP, 9)
    assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    ((_, message),) = ready.coordinator.take()
    assert message == Abandon(join.request)
    answered(ready, heartbeat, HeartbeatResponse(error_code=27))
    (reply,) = ready.processor.replies()
    frame = ready.processor.frame_of(reply)
    assert decode_response_frame(ApiKey.HEARTBEAT, 4, frame[4:])[1].error_code == 27


@pytest.mark.parametrize(
    ("version", "instance_id", "is_given_an_id"),
    [(4, None, True), (9, None, True), (5, "static", False), (3, None, False)],
)
def test_a_stopping_handler_waits_for_the_id_of_a_new_member(
    ready: Rig, version: int, instance_id: str | None, is_given_an_id: bool
) -> None:
    """Nobody would know the id if the answer were lost, and the group would wait for it."""
    request = JoinGroupRequest("g", session_timeout_ms=9, member_id="", group_instance_id=instance_id)
    join, _ = hand_on(ready, ApiKey.JOIN_GROUP, version, request)
    ready.handler.broker.forwarding.release()
    ready.turn()
    abandoned = [message for _, message in ready.coordinator.take()]
    if is_given_an_id:
        assert abandoned == []
        answered(ready, join, JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="new"))
        assert ready.answer(ApiKey.JOIN_GROUP, version).member_id == "new"
    else:
        assert abandoned == [Abandon(join.request)]
        assert ready.answer(ApiKey.JOIN_GROUP, version).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
