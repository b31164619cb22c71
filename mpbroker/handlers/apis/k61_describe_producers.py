"""DescribeProducers (key 61), version 0: the producers of a partition and their open transactions.

The answers come from the log workers. Each partition is described once, however often it is named, since a
response can be much longer than its request. (Kafka: KafkaApis.handleDescribeProducersRequest,
ReplicaManager.activeProducerState; KIP-664.)
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import TypeAlias

from msgspec.structs import astuple

from mpbroker.handlers.api_parts.log_questions import ask_owners
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import LOOKUPS_PER_PIECE
from mpbroker.handlers.requests.permissions import READ_TOPIC
from mpbroker.ipc import calls
from mpbroker.ipc.calls import PartitionProducers, Producers, TellProducers
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DescribeProducersResponse

# A producer in the response.
PRODUCER_BYTES = 39

Result: TypeAlias = DescribeProducersResponse.PartitionResponse
State: TypeAlias = DescribeProducersResponse.ProducerState


def response_of(context: RequestContext, code: ErrorCode) -> DescribeProducersResponse:
    named: dict[str, dict[int, None]] = {}
    for topic in context.body.topics:
        named.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return DescribeProducersResponse(
        topics=[
            DescribeProducersResponse.TopicResponse(name, [Result(number, code) for number in numbers])
            for name, numbers in named.items()
        ]
    )


def failed(context: RequestContext, code: ErrorCode) -> DescribeProducersResponse:
    return response_of(context, code)


def fill_in(context: RequestContext, asked: list[Result], answer: calls.Message) -> None:
    """Fill in the results of the partitions that a log worker's answer covers."""
    if isinstance(answer, Producers):
        producers = sum(len(one.producers) for one in answer.partitions)
        if context.exceeds_response_limit(PRODUCER_BYTES * producers):
            return
        for result, one in zip(asked, answer.partitions, strict=True):
            result.error_code = one.error
            result.active_producers = [State(*astuple(each)) for each in one.producers]
    else:
        for result in asked:
            # The log worker died; every client retries.
            result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER


@api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, name="DescribeProducers", failed=failed)
def handle(context: RequestContext) -> Generator[None, None, DescribeProducersResponse]:
    """Returns the active producers of partitions, with their open transactions."""
    response = response_of(context, ErrorCode.NONE)
    wanted: list[tuple[PartitionProducers, Result]] = []
    done = 0
    for of_topic in response.topics:
        topic = context.broker.metadata.by_name.get(of_topic.name)
        done += 1
        if context.should_yield(done, LOOKUPS_PER_PIECE):
            yield
        if not context.allows(READ_TOPIC, of_topic.name):
            for result in of_topic.partitions:
                result.error_code = READ_TOPIC.denied
            continue
        for result in of_topic.partitions:
            done += 1
            if context.should_yield(done, LOOKUPS_PER_PIECE):
                yield
            found = (
                context.broker.partition(topic, result.partition_index)
                if topic is not None
                else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            if isinstance(found, ErrorCode):
                result.error_code = found
                continue
            wanted.append((PartitionProducers(found[0].slot, found[0].slot_generation), result))
    if wanted:
        yield from ask_owners(context, wanted, TellProducers, partial(fill_in, context))
    return response
