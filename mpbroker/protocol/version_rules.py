"""Differences between versions of a message that do not show in its fields.

Coordinators and handlers use only the form of the latest version of a request or response. Kafka has these
rules in the constructors of its requests and responses (JoinGroupResponse, LeaveGroupRequest,
LeaveGroupResponse, SyncGroupRequest), and in KafkaApis for error codes that old clients do not know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import (
    AddPartitionsToTxnResponse,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    TxnOffsetCommitResponse,
)

_Rule: TypeAlias = Callable[[int, Any], Any]

# JoinGroup
FIRST_WITH_NULL_PROTOCOL: Final = 7
# LeaveGroup
FIRST_WITH_MEMBERS: Final = 3
# SyncGroup
FIRST_THAT_NAMES_ITS_PROTOCOL: Final = 5
# KIP-588: PRODUCER_FENCED
FIRST_WITH_FENCED: Final = 2
FIRST_INIT_WITH_FENCED: Final = 4
# TxnOffsetCommit. COORDINATOR_LOAD_IN_PROGRESS may crash older clients (KAFKA-7296).
FIRST_WITH_LOADING: Final = 2
FIRST_WITH_ABORTABLE: Final = 4


def in_latest_form(api_key: int, version: int, request: Any) -> Any:
    """Change a request of this version into the form of the latest version, and return the request.

    Raises ApiError if the request lacks something that its version requires.
    """
    rule = _REQUESTS.get(api_key)
    return request if rule is None else rule(version, request)


def in_version(api_key: int, version: int, response: Any) -> Any:
    """Return a response of the latest version in the form of this version. The response may be changed."""
    rule = _RESPONSES.get(api_key)
    return response if rule is None else rule(version, response)


def error_for_version(version: int, code: int, first_that_knows: int) -> int:
    """Return the error code to send in this version.

    PRODUCER_FENCED becomes INVALID_PRODUCER_EPOCH in versions before `first_that_knows` (KIP-588).
    """
    is_known = version >= first_that_knows or code != ErrorCode.PRODUCER_FENCED
    return code if is_known else ErrorCode.INVALID_PRODUCER_EPOCH


# ---- requests


def _leave_group_request(version: int, request: LeaveGroupRequest) -> LeaveGroupRequest:
    """Put the one member of a request of an older version into the list of members. Return the request."""
    if version < FIRST_WITH_MEMBERS:
        request.members = [LeaveGroupRequest.MemberIdentity(request.member_id)]
    return request


def _sync_group_request(version: int, request: SyncGroupRequest) -> SyncGroupRequest:
    names_protocol = request.protocol_type is not None and request.protocol_name is not None
    if version >= FIRST_THAT_NAMES_ITS_PROTOCOL and not names_protocol:
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return request


# ---- responses


def _join_group(version: int, response: JoinGroupResponse) -> JoinGroupResponse:
    """Return the response. A missing protocol name is "" in older versions, null in later versions."""
    if version < FIRST_WITH_NULL_PROTOCOL:
        response.protocol_name = response.protocol_name or ""
    elif response.error_code:
        response.protocol_name = response.protocol_name or None
    return response


def _leave_group(version: int, response: LeaveGroupResponse) -> LeaveGroupResponse:
    """Return the response. In older versions it has no members, but the error of the first member."""
    if version >= FIRST_WITH_MEMBERS or response.error_code or not response.members:
        return response
    return LeaveGroupResponse(error_code=response.members[0].error_code)


def _knows_fenced_from(first: int) -> _Rule:
    """Return a rule that replaces PRODUCER_FENCED as the response's error code in versions below `first`."""

    def rule(version: int, response: Any) -> Any:
        response.error_code = error_for_version(version, response.error_code, first)
        return response

    return rule


def _add_partitions(version: int, response: AddPartitionsToTxnResponse) -> AddPartitionsToTxnResponse:
    for topic in response.results_by_topic_v3_and_below:
        for partition in topic.results_by_partition:
            partition.partition_error_code = error_for_version(
                version, partition.partition_error_code, FIRST_WITH_FENCED
            )
    return response


def _txn_offset_commit(version: int, response: TxnOffsetCommitResponse) -> TxnOffsetCommitResponse:
    for topic in response.topics:
        for partition in topic.partitions:
            partition.error_code = _of_offset_commit(version, partition.error_code)
    return response


def _of_offset_commit(version: int, code: int) -> int:
    if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < FIRST_WITH_LOADING:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if code == ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_WITH_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    # As for record batches: no version of this API knows PRODUCER_FENCED.
    return ErrorCode.INVALID_PRODUCER_EPOCH if code == ErrorCode.PRODUCER_FENCED else code


_REQUESTS: Final[dict[int, _Rule]] = {
    ApiKey.LEAVE_GROUP: _leave_group_request,
    ApiKey.SYNC_GROUP: _sync_group_request,
}
_RESPONSES: Final[dict[int, _Rule]] = {
    ApiKey.JOIN_GROUP: _join_group,
    ApiKey.LEAVE_GROUP: _leave_group,
    ApiKey.INIT_PRODUCER_ID: _knows_fenced_from(FIRST_INIT_WITH_FENCED),
    ApiKey.ADD_PARTITIONS_TO_TXN: _add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: _knows_fenced_from(FIRST_WITH_FENCED),
    ApiKey.END_TXN: _knows_fenced_from(FIRST_WITH_FENCED),
    ApiKey.TXN_OFFSET_COMMIT: _txn_offset_commit,
}
