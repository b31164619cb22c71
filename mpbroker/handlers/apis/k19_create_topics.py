"""CreateTopics (key 19), versions 2-7: creates topics, or checks whether it could (`validate_only`).

What can be said without knowing all topics is said here: names, numbers, assignments, configurations. The
rest is the coordinator's, who answers when the topic is durable, there and published; after `timeout_ms` the
answer is REQUEST_TIMED_OUT, and the topic still comes. More replicas than
brokers are refused with INVALID_REPLICATION_FACTOR, or clamped to one with mpbroker.replication.factor.clamp.
(Kafka: ControllerApis.createTopics, ReplicationControlManager.)
"""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.describe import describe_topic
from mpbroker.config.topic_config import TopicConfigError, validate
from mpbroker.handlers.apis import api
from mpbroker.handlers.exchange import Exchange
from mpbroker.ipc import calls
from mpbroker.ipc.calls import CreatedTopic, CreatedTopics, CreateTopic, CreateTopics
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import CreateTopicsRequest, CreateTopicsResponse
from mpbroker.protocol.topic_names import METADATA_TOPIC, collision, problem_with

DEFAULT = -1
# From here on clients know what to do with THROTTLING_QUOTA_EXCEEDED (KIP-599).
FIRST_STRICT_VERSION = 6

Wanted: TypeAlias = CreateTopicsRequest.CreatableTopic
Result: TypeAlias = CreateTopicsResponse.CreatableTopicResult


def refused(name: str, code: int, message: str | None) -> Result:
    return Result(name=name, error_code=code, error_message=message, configs=[])


def failed(exchange: Exchange, code: ErrorCode) -> CreateTopicsResponse:
    return CreateTopicsResponse(topics=[refused(t.name, code, code.message) for t in exchange.body.topics])


def replicas(config: BrokerConfig, asked: int) -> int:
    """How many replicas the topic will have. Raises ApiError."""
    count = config.default_replication_factor if asked == DEFAULT else asked
    if count < 1:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if count > 1 and not config.mpbroker_replication_factor_clamp:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {count} time(s): The target replication factor of {count} "
            "cannot be reached because only 1 broker(s) are registered.",
        )
    return 1


def assignments(wanted: Wanted, node: int) -> dict[int, list[int]]:
    """Raises ApiError."""
    if (wanted.num_partitions, wanted.replication_factor) != (DEFAULT, DEFAULT):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions or replicationFactor "
            "was not set to -1.",
        )
    found = {a.partition_index: a.broker_ids for a in wanted.assignments}
    if sorted(found) != list(range(len(wanted.assignments))):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )
    for partition, brokers in found.items():
        if brokers != [node]:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Partition {partition} is assigned to brokers {brokers}, but there is only broker {node}.",
            )
    return found


def check_name(exchange: Exchange, name: str) -> None:
    """Raises ApiError."""
    if name == METADATA_TOPIC:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Creation of internal topic {METADATA_TOPIC} is prohibited."
        )
    problem = problem_with(name)
    if problem is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    other = collision(name, exchange.broker.metadata.by_name)
    if other is not None:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}"
        )


def checked(exchange: Exchange, wanted: Wanted) -> CreateTopic:
    """What the coordinator is asked to create. Raises ApiError."""
    config, metadata = exchange.broker.config, exchange.broker.metadata
    check_name(exchange, wanted.name)
    if wanted.name in metadata.by_name:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{wanted.name}' already exists.")
    configs = {c.name: c.value for c in wanted.configs}
    if len(configs) < len(wanted.configs):
        raise ApiError(ErrorCode.INVALID_CONFIG, "A configuration key is given more than once.")
    try:
        validate(config, configs)
    except TopicConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error
    if wanted.assignments:
        return CreateTopic(wanted.name, DEFAULT, DEFAULT, assignments(wanted, metadata.node_id), configs)
    if wanted.num_partitions != DEFAULT and wanted.num_partitions < 1:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions must be larger than 0, or -1 to use the default value.",
        )
    count = config.num_partitions if wanted.num_partitions == DEFAULT else wanted.num_partitions
    return CreateTopic(wanted.name, count, replicas(config, wanted.replication_factor), {}, configs)


def result(exchange: Exchange, topic: CreatedTopic) -> Result:
    if topic.error:
        return refused(topic.name, topic.error, topic.message)
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


def created(exchange: Exchange, results: dict[str, Result], asked: list[str], message: calls.Message) -> None:
    if isinstance(message, CreatedTopics):
        results.update((t.name, result(exchange, t)) for t in message.topics)
    text = (
        message.message
        if isinstance(message, calls.Failed)
        else "the coordinator did not answer for this topic"
    )
    timed_out = isinstance(message, calls.Failed) and message.error == ErrorCode.REQUEST_TIMED_OUT
    # NOT_CONTROLLER makes every admin client ask again.
    code = ErrorCode.REQUEST_TIMED_OUT if timed_out else ErrorCode.NOT_CONTROLLER
    for name in asked:
        results.setdefault(name, refused(name, code, text))
    throttle_ms = message.throttle_ms if isinstance(message, CreatedTopics) else 0
    exchange.reply(CreateTopicsResponse(topics=list(results.values())), throttle_ms)


@api(ApiKey.CREATE_TOPICS, 2, 7, name="CreateTopics", failed=failed)
def handle(exchange: Exchange) -> CreateTopicsResponse | None:
    """Creates topics, or checks whether it could."""
    request = exchange.body
    times = Counter(topic.name for topic in request.topics)
    results: dict[str, Result] = {}
    good: list[CreateTopic] = []
    for wanted in request.topics:
        try:
            if times[wanted.name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            good.append(checked(exchange, wanted))
        except ApiError as error:
            results[wanted.name] = refused(wanted.name, error.code, error.message)
    if not good:
        return CreateTopicsResponse(topics=list(results.values()))
    names = [topic.name for topic in good]
    exchange.broker.coordinator.call(
        CreateTopics(
            good,
            validate_only=request.validate_only,
            account=exchange.account(strict=exchange.version >= FIRST_STRICT_VERSION),
        ),
        exchange.later(lambda message: created(exchange, results, names, message)),
        exchange.slot.connection,
        exchange.broker.monotonic_ms() + max(0, request.timeout_ms),
    )
    return None
