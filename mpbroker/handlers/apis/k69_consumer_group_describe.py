"""ConsumerGroupDescribe (key 69), versions 0-1: state, members and assignments of groups (KIP-848).

A group of another kind has the error GROUP_ID_NOT_FOUND, at which clients ask DescribeGroups. A group with a
topic that the client may not describe has an error and no members. Each group is described once. (Kafka:
KafkaApis.handleConsumerGroupDescribe, GroupMetadataManager.consumerGroupDescribe.)
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TypeAlias

from mpbroker.handlers.api_parts.acl_operations import operations
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import GROUP_IDS_MAX, LOOKUPS_PER_PIECE
from mpbroker.handlers.requests.permissions import DESCRIBE_GROUP, DESCRIBE_TOPIC
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.features import is_consumer_protocol_enabled
from mpbroker.protocol.messages import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from mpbroker.security.acls import ResourceType

HIDDEN = "The group has described topic(s) that the client is not authorized to describe."

Group: TypeAlias = ConsumerGroupDescribeResponse.DescribedGroup


def refusal(context: RequestContext) -> ConsumerGroupDescribeResponse | None:
    """Return an error for each group if the consumer protocol is not served, else None."""
    if is_consumer_protocol_enabled(context.broker.config.group_coordinator_rebalance_protocols):
        return None
    return failed(context, ErrorCode.UNSUPPORTED_VERSION)


def failed(context: RequestContext, code: ErrorCode) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(groups=refused(context.body.group_ids, code))


def refused(names: list[str], code: ErrorCode) -> list[Group]:
    return [Group(error_code=code, group_id=name) for name in dict.fromkeys(names)]


def topics_shown(group: Group) -> Iterator[str]:
    for member in group.members:
        for assignment in (member.assignment, member.target_assignment):
            for topic in assignment.topic_partitions:
                yield topic.topic_name


def visible(context: RequestContext, groups: list[Group]) -> Generator[None, None, list[Group]]:
    """Return the groups. Put an error in a group's place if the client may not describe one of its topics."""
    allows = context.broker.authorization.allows
    known: dict[str, bool] = {}
    found: list[Group] = []
    looked_at = 0
    for group in groups:
        is_hidden = False
        for name in topics_shown(group):
            may = known.get(name)
            if may is None:
                may = known[name] = allows(context, DESCRIBE_TOPIC, name, is_logged=False)
            looked_at += 1
            if context.should_yield(looked_at, LOOKUPS_PER_PIECE):
                yield
            if not may:
                is_hidden = True
                break
        found.append(Group(DESCRIBE_TOPIC.denied, HIDDEN, group.group_id) if is_hidden else group)
    return found


def with_operations(context: RequestContext, groups: list[Group]) -> Generator[None]:
    """Set the client's authorized operations in each group that is described."""
    for done, group in enumerate(groups, start=1):
        if not group.error_code:
            group.authorized_operations = operations(context, ResourceType.GROUP, group.group_id, True)
        if context.should_yield(done, LOOKUPS_PER_PIECE):
            yield


@api(
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    0,
    1,
    name="ConsumerGroupDescribe",
    failed=failed,
    elements_max=GROUP_IDS_MAX,
    refusal=refusal,
)
def handle(context: RequestContext) -> Generator[None, None, ConsumerGroupDescribeResponse]:
    """Describes groups of the consumer protocol: state, epochs, members and assignments."""
    allowed, denied = yield from context.split(DESCRIBE_GROUP, context.body.group_ids, str)
    groups: list[Group] = []
    if allowed or not denied:
        groups = yield from context.broker.forwarding.forward_for_each(
            context,
            allowed,
            lambda names: ConsumerGroupDescribeRequest(names),
            lambda response: response.groups,
        )
    if context.broker.authorization.is_on:
        groups = yield from visible(context, groups)
    if context.body.include_authorized_operations:
        yield from with_operations(context, groups)
    return ConsumerGroupDescribeResponse(groups=groups + refused(denied, DESCRIBE_GROUP.denied))
