"""CreateTopics (key 19), versions 2-7: creates topics, or checks whether it could (`validate_only`).

The coordinator has the rules (mpbroker/coordinator/metadata/topic_rules.py). It answers when the topic is
durable, there and published. It is asked for many topics some at a time. After `timeout_ms` the answer is
REQUEST_TIMED_OUT, and the topics that were asked for still come.
More replicas than brokers are refused with INVALID_REPLICATION_FACTOR, or clamped to one with
mpbroker.replication.factor.clamp. (Kafka: ControllerApis.createTopics, ReplicationControlManager.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import TypeAlias

from mpbroker.config.describe import describe_topic
from mpbroker.handlers.api_parts.coordinator_questions import Unanswered, ask_coordinator
from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
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
# Topics whose settings are told at once: some milliseconds.
DESCRIBED_AT_ONCE = 50

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


class Creation:
    """A request whose topics the coordinator is asked for, some at a time.

    Calls are made with bound methods. Two functions that name each other would be a cycle that keeps the
    request until a collection.
    """

    def __init__(self, exchange: ApiExchange, results: dict[str, Result], asked: list[CreateTopic]) -> None:
        self._exchange = exchange
        self._results = results
        self._deadline_ms = exchange.broker.monotonic_ms() + max(0, exchange.body.timeout_ms)
        self._default = exchange.broker.config.num_partitions
        self._partitions = sum(topic.partitions_asked(self._default) for topic in asked)
        self._left = asked
        self._asked: list[CreateTopic] = []
        self._throttle_ms = 0

    def ask(self) -> None:
        exchange = self._exchange
        self._asked, self._left = self._left[:ASKED_AT_ONCE], self._left[ASKED_AT_ONCE:]
        partitions = sum(topic.partitions_asked(self._default) for topic in self._asked)
        ask_coordinator(
            exchange,
            CreateTopics(
                self._asked,
                validate_only=exchange.body.validate_only,
                account=exchange.account(strict=exchange.version >= FIRST_STRICT_VERSION),
                beside=self._partitions - partitions,
            ),
            CreatedTopics,
            self._answered,
            self._deadline_ms - exchange.broker.monotonic_ms(),
        )

    def _answered(self, answer: CreatedTopics | Unanswered) -> None:
        self._exchange.finish(self._take(answer), max(self._throttle_ms, answer.throttle_ms))

    def _take(self, answer: CreatedTopics | Unanswered) -> Generator[None, None, CreateTopicsResponse | None]:
        self._throttle_ms = max(self._throttle_ms, answer.throttle_ms)
        if isinstance(answer, Unanswered):
            # Topics that nobody has been asked for yet do not come.
            for topic in (*self._asked, *self._left):
                self._results[topic.name] = refused(topic.name, answer.code, answer.message)
            return CreateTopicsResponse(topics=list(self._results.values()))
        found = {topic.name: topic for topic in answer.topics}
        for done, topic in enumerate(self._asked, start=1):
            self._results[topic.name] = result(self._exchange, found[topic.name])
            if self._exchange.has_had_its_share(done, DESCRIBED_AT_ONCE):
                yield
        if self._left:
            self.ask()
            return None
        return CreateTopicsResponse(topics=list(self._results.values()))


def in_order(asked: list[CreateTopic]) -> list[CreateTopic]:
    """Return the topics in an order in which those of one name are asked for together.

    Names that are given more than once are refused: two of each suffice for that.
    """
    times = Counter(topic.name for topic in asked)
    if len(times) == len(asked):
        return asked
    twice = {topic.name: topic for topic in asked if times[topic.name] > 1}
    once = [topic for topic in asked if times[topic.name] == 1]
    return [topic for topic in twice.values() for _ in range(2)] + once


@api(ApiKey.CREATE_TOPICS, 2, 7, name="CreateTopics", failed=failed, elements_max=TOPICS_MAX)
def handle(exchange: ApiExchange) -> Generator[None, None, CreateTopicsResponse | None]:
    """Creates topics, or checks whether it could."""
    results: dict[str, Result] = {}
    asked: list[CreateTopic] = []
    may_create_all = exchange.broker.authorization.allows_cluster(exchange, CREATE_CLUSTER, is_told=False)
    for done, wanted in enumerate(exchange.body.topics, start=1):
        if exchange.has_had_its_share(done, LOOKUPS_PER_PIECE):
            yield
        if not may_create_all and not exchange.allows(CREATE_TOPIC, wanted.name):
            code = CREATE_TOPIC.denied
            results[wanted.name] = refused(wanted.name, code, code.message)
            continue
        try:
            asked.append(checked(wanted))
        except ApiError as error:
            results[wanted.name] = refused(wanted.name, error.code, error.message)
    # A name gets one answer.
    good = in_order([topic for topic in asked if topic.name not in results])
    if not good:
        return CreateTopicsResponse(topics=list(results.values()))
    Creation(exchange, results, good).ask()
    return None
