"""DescribeGroups and ListGroups. (Kafka: GroupMetadataManager.describeGroups, listGroups.)"""

from __future__ import annotations

from typing import Final

from mpbroker.coordinator.groups.classic.group import GroupState
from mpbroker.coordinator.groups.consumer.changes import Writer
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.groups.group_manager import AnyGroup, GroupMetadataManager
from mpbroker.coordinator.runtime.requests import Answers, RequestContext, response_error
from mpbroker.protocol.consumer_protocol import CLASSIC, CONSUMER, CONSUMER_PROTOCOL
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)

FIRST_DESCRIBE_VERSION_WITH_ERRORS: Final = 6
# The most that one response has of members' metadata and assignments, which can be large.
DESCRIBED_BYTES: Final = 1 << 20
# The most characters of a group id in the text of an error: the protocol bounds the length of strings.
NAME_SHOWN_MAX: Final = 255


class DescribeGroups:
    def __init__(self, manager: GroupMetadataManager, writer: Writer, answers: Answers) -> None:
        self._manager = manager
        self._writer = writer
        self._answers = answers

    def describe(self, context: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        """Describe the first groups, as many as fit into a response. The handler asks again for the rest."""
        described: list[DescribeGroupsResponse.DescribedGroup] = []
        size = 0
        for name in request.groups:
            if size >= DESCRIBED_BYTES:
                break
            group = self._describe(name, context.version)
            size += sum(len(m.member_metadata) + len(m.member_assignment) for m in group.members)
            described.append(group)
        return DescribeGroupsResponse(groups=described)

    def _describe(self, group_id: str, version: int) -> DescribeGroupsResponse.DescribedGroup:
        described = DescribeGroupsResponse.DescribedGroup(group_id=group_id)
        try:
            self._manager.partitions.check_loaded(group_id)
        except ApiError as error:
            described.error_code, described.error_message = error.code, error.code.message
            return described
        group = self._manager.find(group_id)
        if group is None or isinstance(group, ConsumerGroup) or group.state is GroupState.DEAD:
            described.group_state = GroupState.DEAD.value
            if version >= FIRST_DESCRIBE_VERSION_WITH_ERRORS:
                what = "is not a classic group" if isinstance(group, ConsumerGroup) else "not found"
                described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                described.error_message = f"Group {group_id[:NAME_SHOWN_MAX]} {what}."
            return described
        is_stable = group.state is GroupState.STABLE
        described.group_state = group.state.value
        described.protocol_type = group.protocol_type or ""
        described.protocol_data = group.protocol or "" if is_stable else ""
        described.members = [
            DescribeGroupsResponse.DescribedGroupMember(
                m.member_id,
                m.instance_id,
                m.client_id,
                m.client_host,
                m.metadata(group.protocol) if is_stable else b"",
                m.assignment,
            )
            for m in group.members.values()
        ]
        return described

    def list(self, context: RequestContext, request: ListGroupsRequest) -> None:
        """List the groups as they are now. The answer is sent when that is durable.

        The request fails if a change of the groups is refused.
        """
        self._manager.partitions.check_none_is_loading()
        states = {state.strip().lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        groups = self._manager.groups.values()
        listed = map(_listed, groups)
        response = ListGroupsResponse(
            groups=[
                one
                for one in listed
                if one.group_state != GroupState.DEAD.value
                and (not types or one.group_type in types)
                and (not states or one.group_state.lower() in states)
            ]
        )

        def written(error: ErrorCode) -> None:
            if error:
                self._answers.fail(context.waiter, response_error(error))
            else:
                self._answers.answer(context.waiter, response)

        told_of = (group for group in groups if isinstance(group, ConsumerGroup))
        self._writer.wait(told_of, written, context.waiter)


def _listed(group: AnyGroup) -> ListGroupsResponse.ListedGroup:
    state = group.state.value
    if isinstance(group, ConsumerGroup):
        return ListGroupsResponse.ListedGroup(group.group_id, CONSUMER_PROTOCOL, state, CONSUMER)
    return ListGroupsResponse.ListedGroup(group.group_id, group.protocol_type or "", state, CLASSIC)
