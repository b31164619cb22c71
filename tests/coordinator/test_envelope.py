"""Requests as handlers forward them: decoded once, answered in their version, and wrong ones harm nobody."""

from __future__ import annotations

from typing import Any

import pytest

from mpbroker.coordinator.runtime.envelope import Envelopes
from mpbroker.coordinator.waiting import Caller
from mpbroker.ipc.calls import Failed, ForwardedRequest, ForwardedResponse, MalformedRequest, Message
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.codec import decode_response, encode_bytes, encode_request
from mpbroker.protocol.errors import ApiError, ErrorCode


class Sent:
    """What came of requests: what was given to the coordinator, and what went back."""

    def __init__(self) -> None:
        self.envelopes = Envelopes(self._answer)
        self.given: list[Any] = []
        self.answers: list[tuple[Caller, Message]] = []

    def _answer(self, waiter: Any, answer: Message) -> bool:
        self.answers.append((waiter, answer))
        return True

    def receive(self, key: ApiKey, version: int, body: bytes) -> Caller:
        caller = Caller(3, 0, 7, key, version)
        self.envelopes.handle(caller, ForwardedRequest(key, version, "c", "/h", body), self.given.append)
        return caller

    def request(self, key: ApiKey, version: int, request: m.Message) -> Caller:
        return self.receive(key, version, encode_bytes(encode_request(key, version, request)))


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.mark.parametrize("version", range(10))
def test_a_request_is_read_as_its_client_sent_it(sent: Sent, version: int) -> None:
    join = m.JoinGroupRequest("g", 10_000, member_id="m", protocol_type="consumer")
    sent.request(ApiKey.JOIN_GROUP, version, join)
    (given,) = sent.given
    assert (given.group_id, given.session_timeout_ms, given.member_id) == ("g", 10_000, "m")
    assert sent.answers == []


@pytest.mark.parametrize("version", range(6))
def test_whoever_leaves_alone_is_a_member_like_others(sent: Sent, version: int) -> None:
    member = m.LeaveGroupRequest.MemberIdentity
    sent.request(ApiKey.LEAVE_GROUP, version, m.LeaveGroupRequest("g", "m", [member("m")]))
    assert [one.member_id for one in sent.given[0].members] == ["m"]


@pytest.mark.parametrize("version", range(6))
def test_a_sync_without_a_protocol_is_refused_where_it_must_be_named(sent: Sent, version: int) -> None:
    caller = sent.request(ApiKey.SYNC_GROUP, version, m.SyncGroupRequest("g", 1, "m"))
    if version < 5:
        assert (len(sent.given), sent.answers) == (1, [])
    else:
        code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (sent.given, sent.answers) == ([], [(caller, Failed(code, code.message))])


def test_bytes_that_are_no_request_are_told_as_such(sent: Sent) -> None:
    caller = sent.receive(ApiKey.HEARTBEAT, 4, b"\x05grp")
    ((waiter, answer),) = sent.answers
    assert (waiter, sent.given) == (caller, [])
    assert isinstance(answer, MalformedRequest)
    assert "HeartbeatRequest" in answer.reason


def test_a_name_that_is_no_text_is_told_as_such(sent: Sent) -> None:
    sent.receive(ApiKey.HEARTBEAT, 0, b"\x00\x01\xff" + bytes(4) + b"\x00\x01m")
    assert [type(answer) for _, answer in sent.answers] == [MalformedRequest]


def test_a_fault_of_ours_is_the_answer_to_one_request(sent: Sent, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_request: object) -> None:
        raise RuntimeError("it is broken")

    caller = Caller(3, 0, 7, ApiKey.LIST_GROUPS, 0)
    sent.envelopes.handle(caller, ForwardedRequest(ApiKey.LIST_GROUPS, 0, "c", "/h", b""), broken)
    ((_, answer),) = sent.answers
    assert isinstance(answer, Failed)
    assert answer.error == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "API key 16" in caplog.text


def test_what_the_coordinator_refuses_fails(sent: Sent) -> None:
    def refused(_request: object) -> None:
        raise ApiError(ErrorCode.NOT_COORDINATOR)

    sent.envelopes.handle(
        Caller(3, 0, 7, ApiKey.LIST_GROUPS, 0),
        ForwardedRequest(ApiKey.LIST_GROUPS, 0, "c", "/h", b""),
        refused,
    )
    assert [answer.error for _, answer in sent.answers] == [ErrorCode.NOT_COORDINATOR]  # type: ignore[union-attr]


@pytest.mark.parametrize("version", range(4))
def test_a_response_goes_back_in_the_version_of_its_request(sent: Sent, version: int) -> None:
    key = ApiKey.ADD_PARTITIONS_TO_TXN
    result = m.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
    topic = m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
        "t", [result(0, 0), result(1, ErrorCode.PRODUCER_FENCED), result(2, ErrorCode.PRODUCER_FENCED)]
    )
    response = m.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic])
    sent.envelopes.answer(Caller(3, 0, 7, key, version), response)
    ((waiter, answer),) = sent.answers
    assert waiter == Caller(3, 0, 7)
    assert isinstance(answer, ForwardedResponse)
    read, end = decode_response(key, version, answer.body)
    assert end == len(answer.body)
    (topic,) = read.results_by_topic_v3_and_below
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert [one.partition_error_code for one in topic.results_by_partition] == [0, fenced, fenced]
    assert {code: times for code, times in answer.errors.items() if code} == {fenced: 2}
