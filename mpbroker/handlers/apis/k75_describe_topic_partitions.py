"""DescribeTopicPartitions (key 75), version 0: topics and their partitions, in pages.

Topics come in the order of their names. A response has at most as many partitions as the request and
`max.request.partition.size.limit` allow, and its cursor says where the next page begins. The lists of
eligible leader replicas are empty, since only the leader is in sync. (Kafka:
DescribeTopicPartitionsRequestHandler, KRaftMetadataCache.describeTopicResponse; KIP-966.)
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias

from mpbroker.handlers.api_parts.acl_operations import operations
from mpbroker.handlers.api_parts.partition_leaders import NO_LEADER, leader_of, replicas_of
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import LOOKUPS_PER_PIECE, TOPICS_MAX
from mpbroker.handlers.requests.metadata import Topic
from mpbroker.handlers.requests.permissions import DESCRIBE_TOPIC
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse
from mpbroker.protocol.topic_names import INTERNAL_TOPICS, problem_with
from mpbroker.security.acls import ResourceType

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

Cursor: TypeAlias = DescribeTopicPartitionsResponse.Cursor
OfTopic: TypeAlias = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
OfPartition: TypeAlias = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition


def failed(context: RequestContext, code: ErrorCode) -> DescribeTopicPartitionsResponse:
    topics = [OfTopic(code, topic.name) for topic in context.body.topics]
    return DescribeTopicPartitionsResponse(topics=topics)


def of_partition(context: RequestContext, topic: Topic, number: int) -> OfPartition:
    node = context.broker.metadata.leader_id
    leader, epoch = leader_of(context.broker, topic, number)
    offline = [node] if leader == NO_LEADER else []
    return OfPartition(0, number, leader, epoch, replicas_of(context.broker), [node], [], [], offline)


def describe(context: RequestContext, name: str, start: int, most: int) -> tuple[OfTopic, int | None]:
    """Describe up to `most` partitions of a topic from `start` on. Return (description, next partition)."""
    topic = context.broker.metadata.by_name.get(name)
    described, following = OfTopic(name=name, is_internal=name in INTERNAL_TOPICS), None
    described.topic_authorized_operations = operations(context, ResourceType.TOPIC, name, True)
    if topic is None:
        bad = problem_with(name) is not None
        described.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION if bad else UNKNOWN
    else:
        end = min(len(topic.partitions), start + most)
        described.topic_id = topic.topic_id
        described.partitions = [of_partition(context, topic, number) for number in range(start, end)]
        following = end if end < len(topic.partitions) else None
    return described, following


def page(
    context: RequestContext, named: set[str], first: Cursor
) -> Generator[None, None, DescribeTopicPartitionsResponse]:
    """Describe topics from `first` on: those `named` or, if none is, all that the client may describe."""
    broker, response = context.broker, DescribeTopicPartitionsResponse()
    most = min(broker.config.max_request_partition_size_limit, context.body.response_partition_limit)
    left, denied, done = max(1, most), [], 0
    for name in sorted(name for name in named or broker.metadata.by_name if name >= first.topic_name):
        if done >= LOOKUPS_PER_PIECE:
            done, context.takes_long = 0, True
            yield
        done += 1
        if not broker.authorization.allows(context, DESCRIBE_TOPIC, name, is_logged=bool(named)):
            if named:
                denied.append(OfTopic(DESCRIBE_TOPIC.denied, name))
        elif response.next_cursor is not None:
            if not named:
                break
        elif left == 0:
            response.next_cursor = Cursor(name, 0)
        elif named or name in broker.metadata.by_name:
            start = first.partition_index if name == first.topic_name else 0
            described, following = describe(context, name, start, left)
            response.topics.append(described)
            left -= len(described.partitions)
            done += len(described.partitions)
            response.next_cursor = None if following is None else Cursor(name, following)
    response.topics += denied
    return response


@api(
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    0,
    0,
    name="DescribeTopicPartitions",
    failed=failed,
    elements_max=TOPICS_MAX,
)
def handle(context: RequestContext) -> Generator[None, None, DescribeTopicPartitionsResponse]:
    """Describes topics and partitions, all or those named, from a cursor on and up to a limit."""
    request: DescribeTopicPartitionsRequest = context.body
    named, cursor = {topic.name for topic in request.topics}, request.cursor
    first = Cursor() if cursor is None else Cursor(cursor.topic_name, cursor.partition_index)
    if first.partition_index < 0 or (named and cursor is not None and first.topic_name not in named):
        return failed(context, ErrorCode.INVALID_REQUEST)
    return (yield from page(context, named, first))
