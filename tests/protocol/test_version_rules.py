"""What versions of a message say otherwise (in bytes: `tests/handlers/forwarded_responses.json`)."""

from __future__ import annotations

import pytest

from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.version_rules import error_for_version, in_latest_form, in_version

FENCED, OLDER = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize(("version", "told"), [(1, OLDER), (2, FENCED), (3, FENCED)])
def test_a_fenced_producer_hears_of_it_in_words_that_it_knows(version: int, told: ErrorCode) -> None:
    assert error_for_version(version, FENCED, 2) == told
    assert error_for_version(version, ErrorCode.UNKNOWN_MEMBER_ID, 2) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("key", "response", "first"),
    [
        (ApiKey.INIT_PRODUCER_ID, m.InitProducerIdResponse, 4),
        (ApiKey.ADD_OFFSETS_TO_TXN, m.AddOffsetsToTxnResponse, 2),
        (ApiKey.END_TXN, m.EndTxnResponse, 2),
    ],
)
def test_from_which_version_on_an_api_knows_that(key: ApiKey, response: type[m.Message], first: int) -> None:
    told = [in_version(key, version, response(error_code=FENCED)).error_code for version in range(first + 1)]  # type: ignore[call-arg]
    assert told == [OLDER] * first + [FENCED]


@pytest.mark.parametrize(
    ("version", "error", "protocol"), [(6, 0, ""), (6, 25, ""), (7, 0, ""), (7, 25, None)]
)
def test_no_protocol_is_an_empty_one_or_none(version: int, error: int, protocol: str | None) -> None:
    response = m.JoinGroupResponse(error_code=error, protocol_name="")
    assert in_version(ApiKey.JOIN_GROUP, version, response).protocol_name == protocol


def test_the_one_member_that_leaves_has_the_error_of_all() -> None:
    def response() -> m.LeaveGroupResponse:
        return m.LeaveGroupResponse(members=[m.LeaveGroupResponse.MemberResponse("m", None, 25)])

    assert in_version(ApiKey.LEAVE_GROUP, 2, response()) == m.LeaveGroupResponse(error_code=25)
    assert in_version(ApiKey.LEAVE_GROUP, 3, response()) == response()
    assert in_version(ApiKey.LEAVE_GROUP, 2, m.LeaveGroupResponse()) == m.LeaveGroupResponse()


def test_whoever_leaves_is_a_list_of_members() -> None:
    old = in_latest_form(ApiKey.LEAVE_GROUP, 2, m.LeaveGroupRequest("g", "m"))
    assert [one.member_id for one in old.members] == ["m"]
    assert in_latest_form(ApiKey.LEAVE_GROUP, 3, m.LeaveGroupRequest("g")).members == []


@pytest.mark.parametrize(("kind", "name"), [(None, "range"), ("consumer", None)])
def test_a_sync_names_its_protocol_from_version_5_on(kind: str | None, name: str | None) -> None:
    request = m.SyncGroupRequest("g", protocol_type=kind, protocol_name=name)
    assert in_latest_form(ApiKey.SYNC_GROUP, 4, request) is request
    with pytest.raises(ApiError) as refused:
        in_latest_form(ApiKey.SYNC_GROUP, 5, request)
    assert refused.value.code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    both = m.SyncGroupRequest("g", protocol_type="consumer", protocol_name="range")
    assert in_latest_form(ApiKey.SYNC_GROUP, 5, both) is both


def test_other_messages_are_the_same_in_all_versions() -> None:
    request, response = m.HeartbeatRequest("g"), m.HeartbeatResponse(error_code=FENCED)
    assert in_latest_form(ApiKey.HEARTBEAT, 0, request) is request
    assert in_version(ApiKey.HEARTBEAT, 0, response).error_code == FENCED
