"""AlterPartitionReassignments (key 45), versions 0-1: assigns partitions to brokers.

There is only this broker. A request to keep a partition here succeeds at once, so that
`kafka-reassign-partitions` can continue: it sends such a request before it moves replicas between log
directories.
(Kafka: ReplicationControlManager.alterPartitionReassignments; KIP-455.)
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias

from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import LOOKUPS_PER_PIECE
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse

Wanted: TypeAlias = AlterPartitionReassignmentsRequest.ReassignablePartition
Result: TypeAlias = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse
OfTopic: TypeAlias = AlterPartitionReassignmentsResponse.ReassignableTopicResponse


def failed(_: RequestContext, code: ErrorCode) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(error_code=code, error_message=code.message)


def outcome(context: RequestContext, topic: str, wanted: Wanted) -> tuple[ErrorCode, str | None]:
    known = context.broker.metadata.by_name.get(topic)
    if known is None or wanted.partition_index not in known.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.message
    replicas, node = wanted.replicas, context.broker.metadata.node_id
    if replicas is None:
        return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS.message
    if not replicas:
        return (
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes an empty replica list.",
        )
    if len(set(replicas)) < len(replicas):
        return (
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The manual partition assignment includes the broker {replicas[0]} more than once.",
        )
    others = [one for one in replicas if one != node]
    if others:
        return (
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The manual partition assignment includes broker {others[0]}, but no such broker is registered.",
        )
    return ErrorCode.NONE, None


@api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, name="AlterPartitionReassignments", failed=failed)
def handle(context: RequestContext) -> Generator[None, None, AlterPartitionReassignmentsResponse]:
    """Accepts assignments of partitions to this broker, and refuses all others."""
    body: AlterPartitionReassignmentsRequest = context.body
    responses: list[OfTopic] = []
    done = 0
    for topic in body.topics:
        responses.append(OfTopic(topic.name, []))
        for one in topic.partitions:
            result = Result(one.partition_index, *outcome(context, topic.name, one))
            responses[-1].partitions.append(result)
            done += 1
            if context.should_yield(done, LOOKUPS_PER_PIECE):
                yield
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=body.allow_replication_factor_change,
        error_message=None,
        responses=responses,
    )
