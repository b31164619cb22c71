"""ElectLeaders (key 43), versions 0-2: elects no leader, since the only broker leads all its partitions.

A partition whose log directory failed has no leader, and neither a clean nor an unclean election finds one.
For a request about all partitions (null) the response has only partitions that need an election. (Kafka:
ReplicationControlManager.electLeaders; KIP-183, KIP-460.)
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TypeAlias

from mpbroker.handlers.api_parts.partition_leaders import NO_LEADER, leader_of
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ElectLeadersRequest, ElectLeadersResponse

# Election types: the first replica of each partition, or any replica that is there.
PREFERRED, UNCLEAN = 0, 1
_NOBODY = {
    PREFERRED: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    UNCLEAN: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}

OfPartition: TypeAlias = ElectLeadersResponse.PartitionResult
OfTopic: TypeAlias = ElectLeadersResponse.ReplicaElectionResult


def refused(context: RequestContext, code: ErrorCode, message: str) -> ElectLeadersResponse:
    request: ElectLeadersRequest = context.body
    return ElectLeadersResponse(
        error_code=code,
        replica_election_results=[
            OfTopic(topic.topic, [OfPartition(number, code, message) for number in topic.partitions])
            for topic in request.topic_partitions or ()
        ],
    )


def failed(context: RequestContext, code: ErrorCode) -> ElectLeadersResponse:
    return refused(context, code, code.message)


def outcome(context: RequestContext, name: str, number: int) -> OfPartition:
    topic = context.broker.metadata.by_name.get(name)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic is None:
        return OfPartition(number, unknown, f"No such topic as {name}")
    if number not in topic.partitions:
        return OfPartition(number, unknown, f"No such partition as {name}-{number}")
    leader, _ = leader_of(context.broker, topic, number)
    code = _NOBODY[context.body.election_type] if leader == NO_LEADER else ErrorCode.ELECTION_NOT_NEEDED
    return OfPartition(number, code, code.message)


def asked_for(context: RequestContext) -> Iterable[tuple[str, Iterable[int]]]:
    request: ElectLeadersRequest = context.body
    if request.topic_partitions is not None:
        return [(topic.topic, topic.partitions) for topic in request.topic_partitions]
    return [(topic.name, sorted(topic.partitions)) for topic in context.broker.metadata.by_name.values()]


@api(ApiKey.ELECT_LEADERS, 0, 2, name="ElectLeaders", failed=failed)
def handle(context: RequestContext) -> Generator[None, None, ElectLeadersResponse]:
    """Reports that no election is needed, or that no broker can lead the partition (failed log directory)."""
    request: ElectLeadersRequest = context.body
    if request.election_type not in _NOBODY:
        return refused(context, ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
    lists_all = request.topic_partitions is not None
    response = ElectLeadersResponse()
    count = 0
    for name, numbers in asked_for(context):
        of_topic = OfTopic(name)
        response.replica_election_results.append(of_topic)
        for number in numbers:
            found = outcome(context, name, number)
            # A partition may have been deleted since all were listed.
            if lists_all or found.error_code in _NOBODY.values():
                of_topic.partition_result.append(found)
            count += 1
            if context.should_yield(count):
                yield
    return response
