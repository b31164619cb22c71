"""What versions of a message say otherwise (in bytes: `tests/handlers/forwarded_responses.json`)."""

from __future__ import annotations

import pytest

from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.version_rules import in_latest_form, in_version

FENCED = ErrorCode.PRODUCER_FENCED


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
