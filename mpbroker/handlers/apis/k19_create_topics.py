"""CreateTopics (key 19), versions 2-7: creates topics, or checks whether it could (`validate_only`).

The coordinator has the rules (mpbroker/coordinator/metadata/topic_rules.py). It answers when the topic is
durable, there and published. After `timeout_ms` the answer is REQUEST_TIMED_OUT, and the topic still comes.
More replicas than brokers are refused with INVALID_REPLICATION_FACTOR, or clamped to one with
mpbroker.replication.factor.clamp. (Kafka: ControllerApis.createTopics, ReplicationControlManager.)
"""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from mpbroker.config.describe import describe_topic
from mpbroker.handlers.api_parts.coordinator_questions import Unanswered, ask_coordinator
from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.handlers.requests.permissions import CREATE_CLUSTER, CREATE_TOPIC, DESCRIBE_TOPIC_CONFIGS
from mpbroker.ipc.calls import CreatedTopic, CreatedTopics, CreateTopic, CreateTopics
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import CreateTopicsRequest, CreateTopicsResponse

# From this version on clients understand THROTTLING_QUOTA_EXCEEDED (KIP-599).
FIRST_STRICT_VERSION = 6

Wanted: TypeAlias = CreateTopicsRequest.CreatableTopic
Result: TypeAlias = CreateTopicsResponse.CreatableTopicResult


def refused(name: str, code: int, message: str | None) -> Result:
    return Result(name=name, error_code=code, error_message=message, configs=[])


def failed(exchange: ApiExchange, code: ErrorCode) -> CreateTopicsResponse:
    return CreateTopicsResponse(topics=[refused(t.name, code, code.message) for t in exchange.body.topics])


def checked(wanted: Wanted) -> CreateTopic:
    """Return what to ask the coordinator for. Raises ApiError for errors that it could no longer see."""
    configs = {c.name: c.value for c in wanted.configs}
    if len(configs) < len(wanted.configs):
        raise ApiError(ErrorCode.INVALID_CONFIG, "A configuration key is given more than once.")
    assigned = Counter(a.partition_index for a in wanted.assignments)
    for partition, times in assigned.items():
        if times > 1:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {partition}",
            )
    assignments = {a.partition_index: a.broker_ids for a in wanted.assignments}
    return CreateTopic(wanted.name, wanted.num_partitions, wanted.replication_factor, assignments, configs)


def result(exchange: ApiExchange, topic: CreatedTopic) -> Result:
    if topic.error:
        return refused(topic.name, topic.error, topic.message)
    if not exchange.broker.authorization.allows(exchange, DESCRIBE_TOPIC_CONFIGS, topic.name, is_told=False):
        return Result(
            name=topic.name,
            topic_id=topic.topic_id,
            error_message=None,
            topic_config_error_code=DESCRIBE_TOPIC_CONFIGS.denied,
            configs=None,
        )
    entries = describe_topic(exchange.broker.config, topic.configs)
    return Result(
        name=topic.name,
        topic_id=topic.topic_id,
        error_message=None,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=[
            CreateTopicsResponse.CreatableTopicConfigs(e.name, e.value, e.read_only, e.source, e.is_sensitive)
            for e in entries
        ],
    )


def created(
    exchange: ApiExchange, results: dict[str, Result], asked: list[str], answer: CreatedTopics | Unanswered
) -> None:
    if isinstance(answer, CreatedTopics):
        found = {topic.name: topic for topic in answer.topics}
        results.update((name, result(exchange, found[name])) for name in asked)
    else:
        results.update((name, refused(name, answer.code, answer.message)) for name in asked)
    exchange.reply(CreateTopicsResponse(topics=list(results.values())), answer.throttle_ms)


@api(ApiKey.CREATE_TOPICS, 2, 7, name="CreateTopics", failed=failed)
def handle(exchange: ApiExchange) -> CreateTopicsResponse | None:
    """Creates topics, or checks whether it could."""
    request = exchange.body
    results: dict[str, Result] = {}
    asked: list[CreateTopic] = []
    may_create_all = exchange.broker.authorization.allows_cluster(exchange, CREATE_CLUSTER, is_told=False)
    for wanted in request.topics:
        if not may_create_all and not exchange.allows(CREATE_TOPIC, wanted.name):
            code = CREATE_TOPIC.denied
            results[wanted.name] = refused(wanted.name, code, code.message)
            continue
        try:
            asked.append(checked(wanted))
        except ApiError as error:
            results[wanted.name] = refused(wanted.name, error.code, error.message)
    # A name gets one answer.
    good = [topic for topic in asked if topic.name not in results]
    if not good:
        return CreateTopicsResponse(topics=list(results.values()))
    names = [topic.name for topic in good]
    ask_coordinator(
        exchange,
        CreateTopics(
            good,
            validate_only=request.validate_only,
            account=exchange.account(strict=exchange.version >= FIRST_STRICT_VERSION),
        ),
        CreatedTopics,
        lambda answer: created(exchange, results, names, answer),
        request.timeout_ms,
    )
    return None
