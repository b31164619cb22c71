"""A coordinator's requests around its state machine: held until there is a topic, failed, abandoned."""

from __future__ import annotations

import pytest

from mpbroker.coordinator.runtime import internal_topic
from mpbroker.coordinator.runtime.requests import Caller, Waiter
from mpbroker.ipc.calls import (
    Abandon,
    Acknowledged,
    CreatedTopic,
    CreatedTopics,
    CreateTopics,
    Failed,
    ForwardedRequest,
    MalformedRequest,
)
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    ApiVersionsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
)
from mpbroker.protocol.topic_names import GROUP_TOPIC, TRANSACTION_TOPIC
from tests.support.services_rig import PARTITIONS, ServicesRig


def commit() -> OffsetCommitRequest:
    asked = OffsetCommitRequest.OffsetCommitRequestPartition(0, 5)
    return OffsetCommitRequest(
        "g", topics=[OffsetCommitRequest.OffsetCommitRequestTopic("t", partitions=[asked])]
    )


@pytest.fixture
def rig() -> ServicesRig:
    return ServicesRig()


def created(rig: ServicesRig) -> str:
    """Return the name of the only topic that is being created."""
    ((call, _),) = rig.asked
    assert isinstance(call, CreateTopics)
    assert call.automatic
    (topic,) = call.topics
    return topic.name


def test_the_first_requests_wait_for_one_topic() -> None:
    rig = ServicesRig(has_topics=False)
    sent = [rig.send(commit(), 9) for _ in range(2)]
    assert created(rig) == GROUP_TOPIC
    assert rig.heard(rig.send(ListGroupsRequest(), 4)).groups == []
    rig.open(rig.groups.partitions, PARTITIONS)
    rig.services.groups.topic_loaded()
    assert rig.answers.keys().isdisjoint(sent)
    rig.settle()
    assert [rig.heard(number).topics[0].partitions[0].error_code for number in sent] == [0, 0]


def test_the_first_producer_waits_for_the_topic_of_transactions() -> None:
    rig = ServicesRig(has_topics=False)
    rig.send(InitProducerIdRequest("x", 60_000), 5)
    assert created(rig) == TRANSACTION_TOPIC


def test_a_topic_that_cannot_be_created_fails_the_requests_that_wait_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(internal_topic, "CREATE_RETRY_S", 0)
    rig = ServicesRig(has_topics=False)
    sent = [rig.send(commit(), 9) for _ in range(2)]
    ((_, done),) = rig.asked
    refused = CreatedTopic(GROUP_TOPIC, error=ErrorCode.POLICY_VIOLATION, message="no room")
    done(CreatedTopics([refused]))
    assert [rig.heard(number) for number in sent] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
    rig.asked.clear()
    again = rig.send(commit(), 9)
    assert created(rig) == GROUP_TOPIC
    rig.asked[0][1](Failed(ErrorCode.UNKNOWN_SERVER_ERROR, "a fault"))
    assert rig.heard(again) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_request_whose_client_is_gone_waits_for_no_topic() -> None:
    rig = ServicesRig(has_topics=False)
    gone, stays = rig.send(commit(), 9), rig.send(commit(), 9)
    rig.services.receive(Caller(0, 0, 99), Abandon(gone))
    assert rig.heard(gone) is ErrorCode.NETWORK_EXCEPTION
    assert rig.answers[99] == Acknowledged()
    assert stays not in rig.answers


def test_requests_of_a_dead_handler_are_dropped() -> None:
    rig = ServicesRig(has_topics=False)
    sent = rig.send(commit(), 9)

    def has_died(waiter: Waiter) -> bool:
        return waiter == rig.caller(sent)

    rig.services.groups.abandon_all(has_died)
    rig.open(rig.groups.partitions, PARTITIONS)
    rig.services.groups.topic_loaded()
    rig.settle()
    assert sent not in rig.answers


def test_a_request_that_is_refused_has_its_error(rig: ServicesRig) -> None:
    assert rig.heard(rig.send(HeartbeatRequest("g", 1, "m"), 4)) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(("version", "body"), [(4, b"\x05grp"), (0, b"\x00\x02g" + bytes(4))])
def test_bytes_that_are_no_request_are_told_as_such(rig: ServicesRig, version: int, body: bytes) -> None:
    answer = rig.answers[rig.send_bytes(ApiKey.HEARTBEAT, body, version)]
    assert isinstance(answer, MalformedRequest)
    assert answer.reason


def test_a_value_that_the_version_forbids_is_refused(rig: ServicesRig) -> None:
    sent = rig.send(SyncGroupRequest("g", 1, "m"), 5)
    assert rig.heard(sent) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_fault_fails_one_request_and_is_logged(
    rig: ServicesRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:

    def broken(_group_id: str) -> None:
        raise RuntimeError("it is broken")

    with monkeypatch.context() as patched:
        patched.setattr(rig.groups.manager, "live", broken)
        sent = rig.send(HeartbeatRequest("g", 1, "m"), 4)
    assert rig.heard(sent) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert f"a forwarded request failed: API key {ApiKey.HEARTBEAT}" in caplog.text
    assert rig.heard(rig.send(ListGroupsRequest(), 4)).groups == []


def test_a_request_that_nobody_serves_fails(rig: ServicesRig, caplog: pytest.LogCaptureFixture) -> None:
    assert rig.heard(rig.send(ApiVersionsRequest(), 0)) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert f"a forwarded request failed: API key {ApiKey.API_VERSIONS}" in caplog.text


def test_the_longest_name_of_a_group_that_is_not_there_is_answered(rig: ServicesRig) -> None:
    response = rig.heard(rig.send(DescribeGroupsRequest(["g" * 32_767]), 6))
    (described,) = response.groups
    assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert described.error_message.endswith("not found.")


def test_a_response_that_cannot_be_encoded_fails_its_request_alone(
    rig: ServicesRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:

    def too_long(*_: object) -> None:
        raise ValueError("a string of 32784 bytes is longer than 32767")

    with monkeypatch.context() as patched:
        patched.setattr("mpbroker.coordinator.runtime.requests.encode_response", too_long)
        assert rig.heard(rig.send(ListGroupsRequest(), 4)) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "a forwarded request failed" in caplog.text
    assert rig.heard(rig.send(ListGroupsRequest(), 4)).groups == []


def test_a_protocol_that_a_member_names_twice_counts_once(rig: ServicesRig) -> None:
    """Check that no group is without a protocol after a member leaves: this would end the coordinator."""

    def join(*protocols: str) -> int:
        named = [JoinGroupRequest.JoinGroupRequestProtocol(one, b"") for one in protocols]
        return rig.send(JoinGroupRequest("g", 10_000, 10_000, "", None, "consumer", named), 3)

    leaves, stays = join("a"), join("a", "a")
    rig.services.receive(Caller(0, 0, 99), Abandon(leaves))
    assert rig.answers[99] == Acknowledged()
    assert rig.heard(stays).error_code == ErrorCode.NONE
    assert rig.heard(stays).protocol_name == "a"


def test_a_fault_at_the_end_of_a_wait_is_logged(
    rig: ServicesRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:

    def broken(_: Waiter) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(rig.groups, "abandon", broken)
    rig.services.receive(Caller(0, 0, 99), Abandon(rig.send(ListGroupsRequest(), 4)))
    assert rig.answers[99] == Acknowledged()
    assert "could not be ended" in caplog.text


def test_bytes_that_are_no_request_make_no_topic() -> None:
    rig = ServicesRig(has_topics=False)
    caller = Caller(0, 0, 1, ApiKey.JOIN_GROUP, 9)
    request = ForwardedRequest(ApiKey.JOIN_GROUP, 9, "client", "/127.0.0.1", "User:u", b"\xff")
    rig.services.receive(caller, request)
    assert isinstance(rig.answers[1], MalformedRequest)
    assert rig.asked == []
