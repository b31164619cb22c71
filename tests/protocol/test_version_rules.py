"""What versions of a message say otherwise (in bytes: `tests/handlers/forwarded_responses.json`)."""

from __future__ import annotations

from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.version_rules import in_latest_form, in_version

FENCED = ErrorCode.PRODUCER_FENCED


def test_the_one_member_that_leaves_has_the_error_of_all() -> None:
    def response() -> m.LeaveGroupResponse:
        return m.LeaveGroupResponse(members=[m.LeaveGroupResponse.MemberResponse("m", None, 25)])

    assert in_version(ApiKey.LEAVE_GROUP, 2, response()) == m.LeaveGroupResponse(error_code=25)
    assert in_version(ApiKey.LEAVE_GROUP, 3, response()) == response()
    assert in_version(ApiKey.LEAVE_GROUP, 2, m.LeaveGroupResponse()) == m.LeaveGroupResponse()


def test_other_messages_are_the_same_in_all_versions() -> None:
    request, response = m.HeartbeatRequest("g"), m.HeartbeatResponse(error_code=FENCED)
    assert in_latest_form(ApiKey.HEARTBEAT, 0, request) is request
    assert in_version(ApiKey.HEARTBEAT, 0, response).error_code == FENCED
