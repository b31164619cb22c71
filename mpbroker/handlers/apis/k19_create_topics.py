"""CreateTopics (key 19), versions 2-7: creates topics, or only validates the request (`validate_only`).

The coordinator decides (mpbroker/coordinator/metadata/topic_rules.py), and answers when the topic is durable,
opened and published. Many topics are sent to the coordinator in several calls. After `timeout_ms` the
response is REQUEST_TIMED_OUT; topics sent to the coordinator are still created. More replicas than brokers
are refused with INVALID_REPLICATION_FACTOR, or clamped to one with mpbroker.replication.factor.clamp. (Kafka:
ControllerApis.createTopics, ReplicationControlManager.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import TypeAlias

from mpbroker.config.describe import describe_topic
from mpbroker.config.remote import UNDELETED
from mpbroker.handlers.api_parts.coordinator_questions import Unanswered, try_ask_coordinator
from mpbroker.handlers.api_parts.undeletion import undeletion
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import LOOKUPS_PER_PIECE, TOPICS_MAX
from mpbroker.handlers.requests.permissions import CREATE_CLUSTER, CREATE_TOPIC, DESCRIBE_TOPIC_CONFIGS
from mpbroker.ipc.calls import CreatedTopic, CreatedTopics, CreateTopic, CreateTopics
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import CreateTopicsRequest, CreateTopicsResponse

# From this version on clients understand THROTTLING_QUOTA_EXCEEDED (KIP-599).
FIRST_STRICT_VERSION = 6
# Topics that the coordinator is asked for at once: some ms of its work, and of the log workers'. An even
# number: two topics of one name are asked for together.
ASKED_AT_ONCE = 500
# Topics that are described at once: some milliseconds.
DESCRIBED_AT_ONCE = 50

Wanted: TypeAlias = CreateTopicsRequest.CreatableTopic
Result: TypeAlias = CreateTopicsResponse.CreatableTopicResult


def refused(name: str, code: int, message: str | None) -> Result:
    return Result(name=name, error_code=code, error_message=message, configs=[])


def failed(context: RequestContext, code: ErrorCode) -> CreateTopicsResponse:
    return CreateTopicsResponse(topics=[refused(t.name, code, code.message) for t in context.body.topics])


def checked(wanted: Wanted) -> CreateTopic:
    """Return the topic to ask the coordinator for. Raises ApiError if a setting or partition is repeated."""
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


def result(context: RequestContext, topic: CreatedTopic) -> Result:
    if topic.error:
        return refused(topic.name, topic.error, topic.message)
    if not context.broker.authorization.allows(context, DESCRIBE_TOPIC_CONFIGS, topic.name, is_logged=False):
        return Result(
            name=topic.name,
            topic_id=topic.topic_id,
            error_message=None,
            topic_config_error_code=DESCRIBE_TOPIC_CONFIGS.denied,
            configs=None,
        )
    entries = describe_topic(context.broker.config, topic.configs)
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


def in_order(asked: list[CreateTopic]) -> list[CreateTopic]:
    """Return the topics in an order that puts topics of the same name together.

    The coordinator refuses a name that it gets more than once. Two topics of the name are enough for that,
    so further ones are left out.
    """
    times = Counter(topic.name for topic in asked)
    if len(times) == len(asked):
        return asked
    twice = {topic.name: topic for topic in asked if times[topic.name] > 1}
    once = [topic for topic in asked if times[topic.name] == 1]
    return [topic for topic in twice.values() for _ in range(2)] + once


@api(ApiKey.CREATE_TOPICS, 2, 7, name="CreateTopics", failed=failed, elements_max=TOPICS_MAX)
def handle(context: RequestContext) -> Generator[None, None, CreateTopicsResponse | None]:
    """Creates topics, or only validates the request."""
    results: dict[str, Result] = {}
    asked: list[CreateTopic] = []
    may_create_all = context.broker.authorization.allows_cluster(context, CREATE_CLUSTER, is_logged=False)
    for done, wanted in enumerate(context.body.topics, start=1):
        if context.should_yield(done, LOOKUPS_PER_PIECE):
            yield
        if not may_create_all and not context.allows(CREATE_TOPIC, wanted.name):
            code = CREATE_TOPIC.denied
            results[wanted.name] = refused(wanted.name, code, code.message)
            continue
        try:
            asked.append(checked(wanted))
        except ApiError as error:
            results[wanted.name] = refused(wanted.name, error.code, error.message)
    for topic in asked:
        if UNDELETED in topic.configs:
            try:
                yield from undeletion(context, topic, validate_only=context.body.validate_only)
            except ApiError as error:
                results[topic.name] = refused(topic.name, error.code, error.message)
    # A name gets one answer.
    good = in_order([topic for topic in asked if topic.name not in results])
    broker, body, throttle_ms = context.broker, context.body, 0
    default, deadline_ms = broker.config.num_partitions, broker.monotonic_ms() + max(0, body.timeout_ms)
    in_all = sum(topic.partitions_asked(default) for topic in good)
    while good:
        some = good[:ASKED_AT_ONCE]
        question = CreateTopics(
            some,
            validate_only=body.validate_only,
            account=context.account(strict=context.version >= FIRST_STRICT_VERSION),
            beside=in_all - sum(topic.partitions_asked(default) for topic in some),
        )
        timeout_ms = deadline_ms - broker.monotonic_ms()
        answer = yield from try_ask_coordinator(context, question, CreatedTopics, timeout_ms)
        throttle_ms = max(throttle_ms, answer.throttle_ms)
        if isinstance(answer, Unanswered):
            # Topics that the coordinator was not asked for yet are not created.
            results |= {topic.name: refused(topic.name, answer.code, answer.message) for topic in good}
            break
        found = {topic.name: topic for topic in answer.topics}
        for done, topic in enumerate(some, start=1):
            results[topic.name] = result(context, found[topic.name])
            if context.should_yield(done, DESCRIBED_AT_ONCE):
                yield
        del good[:ASKED_AT_ONCE]
    context.respond(CreateTopicsResponse(topics=list(results.values())), throttle_ms)
    return None
