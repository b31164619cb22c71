"""What clients get from the APIs that the coordinator serves, byte by byte, in every version.

The bytes in `forwarded_responses.json` were recorded when handlers still decoded each of these requests and
encoded its response themselves: a coordinator that encodes the response must come to the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from mpbroker.handlers.requests.responses import Pause
from mpbroker.ipc.calls import Failed
from mpbroker.ipc.slots import SlotKind, ThrottledBy
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    DeleteGroupsResponse,
    DescribeGroupsResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    ListGroupsResponse,
    Message,
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
    SyncGroupResponse,
)
from tests.handlers import test_group_apis, test_transaction_apis
from tests.support.forwarded_requests import answered, each_version, errors_in, hand_on
from tests.support.handler_rig import Rig, topic_image

RECORDED = Path(__file__).with_name("forwarded_responses.json")
PAUSE_MS = 1234
ID = b"i" * 16
# Those that some version words otherwise, and some that none does.
CODES = (
    ErrorCode.NONE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.TRANSACTION_ABORTABLE,
)


def request_for(key: ApiKey, version: int) -> Message:
    if key in test_group_apis.REQUEST:
        return test_group_apis.REQUEST[key](version)
    return test_transaction_apis.REQUEST[key]


def join_group(code: int) -> Message:
    if code:
        return JoinGroupResponse(error_code=code, member_id="m", protocol_name=None)
    member = JoinGroupResponse.JoinGroupResponseMember("m", "instance", b"metadata")
    return JoinGroupResponse(
        generation_id=3,
        protocol_type="consumer",
        protocol_name="range",
        leader="m",
        member_id="m",
        members=[member],
    )


def leave_group(code: int) -> Message:
    members = [LeaveGroupResponse.MemberResponse("m", None, code)]
    return LeaveGroupResponse(members=members)


def sync_group(code: int) -> Message:
    return SyncGroupResponse(
        error_code=code, protocol_type="consumer", protocol_name="range", assignment=b"mine"
    )


def offset_commit(code: int) -> Message:
    partition = OffsetCommitResponse.OffsetCommitResponsePartition(3, code)
    return OffsetCommitResponse(topics=[OffsetCommitResponse.OffsetCommitResponseTopic("t", ID, [partition])])


def offset_fetch(code: int) -> Message:
    partition = OffsetFetchResponse.OffsetFetchResponsePartitions(3, 42, 1, "m")
    topics = [] if code else [OffsetFetchResponse.OffsetFetchResponseTopics("t", ID, [partition])]
    return OffsetFetchResponse(groups=[OffsetFetchResponse.OffsetFetchResponseGroup("g", topics, code)])


def describe_groups(code: int) -> Message:
    group = DescribeGroupsResponse.DescribedGroup
    member = DescribeGroupsResponse.DescribedGroupMember("m", None, "c", "/h", b"metadata", b"assigned")
    if code:
        return DescribeGroupsResponse(groups=[group(code, group_id="g")])
    return DescribeGroupsResponse(groups=[group(0, None, "g", "Stable", "consumer", "range", [member])])


def list_groups(code: int) -> Message:
    listed = ListGroupsResponse.ListedGroup("g", "consumer", "Stable", "classic")
    return ListGroupsResponse(error_code=code, groups=[] if code else [listed])


def offset_delete(code: int) -> Message:
    partition = OffsetDeleteResponse.OffsetDeleteResponsePartition(3, code)
    return OffsetDeleteResponse(
        error_code=code, topics=[OffsetDeleteResponse.OffsetDeleteResponseTopic("t", [partition])]
    )


RESPONSES: dict[ApiKey, Callable[[int], Message]] = {
    ApiKey.OFFSET_COMMIT: offset_commit,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.JOIN_GROUP: join_group,
    ApiKey.HEARTBEAT: lambda code: HeartbeatResponse(error_code=code),
    ApiKey.LEAVE_GROUP: leave_group,
    ApiKey.SYNC_GROUP: sync_group,
    ApiKey.DESCRIBE_GROUPS: describe_groups,
    ApiKey.LIST_GROUPS: list_groups,
    ApiKey.DELETE_GROUPS: lambda code: DeleteGroupsResponse(
        results=[DeleteGroupsResponse.DeletableGroupResult("g", code)]
    ),
    ApiKey.OFFSET_DELETE: offset_delete,
    **{key: partial(test_transaction_apis.respond, key) for key in test_transaction_apis.REQUEST},
}
EVERY = each_version(RESPONSES)


class Throttled:
    """Quotas of a client that always has to pause."""

    on = True

    def __init__(self) -> None:
        self.pause_ms = 0

    def charge(self, _request: object) -> Pause:
        return Pause(self.pause_ms, ThrottledBy.THROTTLED_BY_REQUEST)


def frames(rig: Rig, key: ApiKey, version: int, *, by_turn: bool) -> dict[str, str]:
    """Return all frames that a client can be sent, by the coordinator's answer, in hexadecimal.

    Only Python knows of quotas here.
    """
    found = {}
    throttled = rig.handler.broker.admission.throttling = Throttled()  # type: ignore[assignment]

    def frame(code: ErrorCode, how: str, pause_ms: int) -> None:
        throttled.pause_ms = pause_ms
        rig.handler.turn.leaves_all = not by_turn or pause_ms > 0
        call, _ = hand_on(rig, key, version, request_for(key, version))
        if how == "failed":
            rig.reply(call, Failed(code, ""))
        else:
            answered(rig, call, RESPONSES[key](code))
        reply = sent(rig)
        assert reply.throttle_ms == pause_ms
        found[f"{how} {code.name} {pause_ms}"] = rig.processor.frame_of(reply).hex()

    for code in CODES:
        frame(code, "answered", 0)
        if code:
            frame(code, "failed", 0)
    frame(ErrorCode.NONE, "answered", PAUSE_MS)
    frame(ErrorCode.PRODUCER_FENCED, "failed", PAUSE_MS)
    return found


def recorded(key: ApiKey, version: int) -> list[str]:
    """Return the recorded frames, in the order of `frames`.

    A version without a line has those of the version before, and `=` repeats the frame before it.
    """
    rows = json.loads(RECORDED.read_text())
    row = next(rows[name] for v in range(version, -1, -1) if (name := f"{key.name} {v}") in rows)
    return list(accumulate(row.split(), lambda last, frame: last if frame == "=" else frame))


def sent(rig: Rig) -> Any:
    (reply,) = rig.processor.replies()
    assert reply.kind == SlotKind.SEND
    return reply


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_without_a_coordinator_each_version_has_its_error(rig: Rig, key: ApiKey, version: int) -> None:
    rig.publish(topic_image("t", 1))
    rig.coordinator_dies()
    response = rig.ask_in_vain(key, version, request_for(key, version))
    assert ErrorCode.COORDINATOR_NOT_AVAILABLE in set(errors_in(response))


@pytest.mark.parametrize("by_turn", [False, True])
@pytest.mark.parametrize(("key", "version"), EVERY)
def test_clients_get_the_bytes_that_they_always_got(
    rig: Rig, key: ApiKey, version: int, by_turn: bool
) -> None:
    rig.publish(topic_image("t", 1))
    found = frames(rig, key, version, by_turn=by_turn)
    assert found == dict(zip(found, recorded(key, version), strict=True))
