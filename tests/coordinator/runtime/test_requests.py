"""Requests as handlers forward them: decoded once, and answered in their version."""

from __future__ import annotations

from typing import Any

import pytest

from mpbroker.coordinator.runtime.requests import Answers, Caller
from mpbroker.ipc.calls import ForwardedRequest, ForwardedResponse, Message
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.codec import decode_response, encode_bytes, encode_request
from mpbroker.protocol.errors import ApiError, ErrorCode


class Sent:
    """`given` has the requests that were opened, `answers` what went back."""

    def __init__(self) -> None:
        self.sent_back = Answers(self._answer)
        self.given: list[Any] = []
        self.answers: list[tuple[Caller, Message]] = []

    def _answer(self, waiter: Any, answer: Message) -> bool:
        self.answers.append((waiter, answer))
        return True

    def receive(self, key: ApiKey, version: int, body: bytes) -> None:
        self.given.append(self.sent_back.open(ForwardedRequest(key, version, "c", "/h", "User:u", body)))

    def request(self, key: ApiKey, version: int, request: m.Message) -> None:
        self.receive(key, version, encode_bytes(encode_request(key, version, request)))


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
    sync = m.SyncGroupRequest("g", 1, "m")
    if version < 5:
        sent.request(ApiKey.SYNC_GROUP, version, sync)
        assert len(sent.given) == 1
    else:
        with pytest.raises(ApiError) as refused:
            sent.request(ApiKey.SYNC_GROUP, version, sync)
        assert refused.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("version", range(4))
def test_a_response_goes_back_in_the_version_of_its_request(sent: Sent, version: int) -> None:
    key = ApiKey.ADD_PARTITIONS_TO_TXN
    result = m.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
    topic = m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
        "t", [result(0, 0), result(1, ErrorCode.PRODUCER_FENCED), result(2, ErrorCode.PRODUCER_FENCED)]
    )
    response = m.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic])
    sent.sent_back.answer(Caller(3, 0, 7, key, version), response)
    ((waiter, answer),) = sent.answers
    assert waiter == Caller(3, 0, 7)
    assert isinstance(answer, ForwardedResponse)
    read, end = decode_response(key, version, answer.body)
    assert end == len(answer.body)
    (topic,) = read.results_by_topic_v3_and_below
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert [one.partition_error_code for one in topic.results_by_partition] == [0, fenced, fenced]
    assert {code: times for code, times in answer.errors.items() if code} == {fenced: 2}
