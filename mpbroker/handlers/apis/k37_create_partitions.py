"""CreatePartitions (key 37), versions 0-3: gives topics more partitions.

The response comes when the new partitions can be written to. After `timeout_ms` the response is
REQUEST_TIMED_OUT, and the creation continues. (Kafka: ControllerApis.createPartitions,
ReplicationControlManager.createPartitions; KIP-195.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import TypeAlias

from mpbroker.handlers.api_parts.coordinator_questions import try_ask_coordinator
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import CHANGES_MAX
from mpbroker.handlers.requests.permissions import ALTER_TOPIC
from mpbroker.ipc.calls import AlteredResources, CreatePartitions, MorePartitions
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import CreatePartitionsRequest, CreatePartitionsResponse

# From this version on clients understand THROTTLING_QUOTA_EXCEEDED (KIP-599).
FIRST_STRICT_VERSION = 3

Result: TypeAlias = CreatePartitionsResponse.CreatePartitionsTopicResult
Wanted: TypeAlias = CreatePartitionsRequest.CreatePartitionsTopic


def failed(context: RequestContext, code: ErrorCode) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        results=[Result(topic.name, code, code.message) for topic in context.body.topics]
    )


def more_of(topic: Wanted) -> MorePartitions:
    assignments = topic.assignments
    return MorePartitions(
        topic.name, topic.count, None if assignments is None else [a.broker_ids for a in assignments]
    )


@api(ApiKey.CREATE_PARTITIONS, 0, 3, name="CreatePartitions", failed=failed, elements_max=CHANGES_MAX)
def handle(context: RequestContext) -> Generator[None, None, CreatePartitionsResponse | None]:
    """Gives topics more partitions."""
    times = Counter(topic.name for topic in context.body.topics)
    results = [
        Result(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        for name, count in times.items()
        if count > 1
    ]
    good, denied = yield from context.split(
        ALTER_TOPIC,
        (topic for topic in context.body.topics if times[topic.name] == 1),
        lambda topic: topic.name,
    )
    code = ALTER_TOPIC.denied
    results += [Result(topic.name, code, code.message) for topic in denied]
    if not good:
        return CreatePartitionsResponse(results=results)
    question = CreatePartitions(
        [more_of(topic) for topic in good],
        context.body.validate_only,
        context.account(strict=context.version >= FIRST_STRICT_VERSION),
    )
    answer = yield from try_ask_coordinator(context, question, AlteredResources, context.body.timeout_ms)
    if isinstance(answer, AlteredResources):
        outcomes = answer.results
    else:
        outcomes = [(answer.code, answer.message)] * len(good)
    results += [Result(topic.name, *outcome) for topic, outcome in zip(good, outcomes, strict=True)]
    context.respond(CreatePartitionsResponse(results=results), answer.throttle_ms)
    return None
