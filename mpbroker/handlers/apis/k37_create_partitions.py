"""CreatePartitions (key 37), versions 0-3: gives topics more partitions.

The answer comes when the new partitions can be written to. After `timeout_ms` it is REQUEST_TIMED_OUT, and
the creation continues. (Kafka: ControllerApis.createPartitions, ReplicationControlManager.createPartitions;
KIP-195.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import TypeAlias

from mpbroker.handlers.api_parts.coordinator_questions import Unanswered, ask_coordinator
from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
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


def failed(exchange: ApiExchange, code: ErrorCode) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        results=[Result(topic.name, code, code.message) for topic in exchange.body.topics]
    )


def more_of(topic: Wanted) -> MorePartitions:
    assignments = topic.assignments
    return MorePartitions(
        topic.name, topic.count, None if assignments is None else [a.broker_ids for a in assignments]
    )


def created(
    exchange: ApiExchange, results: list[Result], asked: list[Wanted], answer: AlteredResources | Unanswered
) -> None:
    if isinstance(answer, AlteredResources):
        outcomes = answer.results
    else:
        outcomes = [(answer.code, answer.message)] * len(asked)
    results += [Result(topic.name, *outcome) for topic, outcome in zip(asked, outcomes, strict=True)]
    exchange.reply(CreatePartitionsResponse(results=results), answer.throttle_ms)


@api(ApiKey.CREATE_PARTITIONS, 0, 3, name="CreatePartitions", failed=failed, elements_max=CHANGES_MAX)
def handle(exchange: ApiExchange) -> Generator[None, None, CreatePartitionsResponse | None]:
    """Gives topics more partitions."""
    times = Counter(topic.name for topic in exchange.body.topics)
    results = [
        Result(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        for name, count in times.items()
        if count > 1
    ]
    good, denied = yield from exchange.split(
        ALTER_TOPIC,
        (topic for topic in exchange.body.topics if times[topic.name] == 1),
        lambda topic: topic.name,
    )
    code = ALTER_TOPIC.denied
    results += [Result(topic.name, code, code.message) for topic in denied]
    if not good:
        return CreatePartitionsResponse(results=results)
    ask_coordinator(
        exchange,
        CreatePartitions(
            [more_of(topic) for topic in good],
            exchange.body.validate_only,
            exchange.account(strict=exchange.version >= FIRST_STRICT_VERSION),
        ),
        AlteredResources,
        lambda answer: created(exchange, results, good, answer),
        exchange.body.timeout_ms,
    )
    return None
