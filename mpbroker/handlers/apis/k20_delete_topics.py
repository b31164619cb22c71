"""DeleteTopics (key 20), versions 1-6: deletes topics, by name or (v6) by id.

The coordinator has the rules. The answer comes when the deletion is durable and the partitions can no longer
be reached. After `timeout_ms` it is REQUEST_TIMED_OUT, and the deletion continues. The files are deleted
later. (Kafka: ControllerApis.deleteTopics.)
"""

from __future__ import annotations

from typing import TypeAlias

from mpbroker.handlers.api_parts.coordinator_questions import Unanswered, ask_coordinator
from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.handlers.requests.limits import TOPICS_MAX
from mpbroker.handlers.requests.permissions import DELETE_CLUSTER, DELETE_TOPIC, DESCRIBE_TOPIC
from mpbroker.ipc.calls import DeletedTopics, DeleteTopics
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ZERO_UUID, DeleteTopicsRequest, DeleteTopicsResponse

FIRST_VERSION_WITH_IDS = 6
FIRST_VERSION_WITH_DISABLED_ERROR = 3
# From this version on clients understand THROTTLING_QUOTA_EXCEEDED (KIP-599).
FIRST_STRICT_VERSION = 5

Wanted: TypeAlias = DeleteTopicsRequest.DeleteTopicState
Result: TypeAlias = DeleteTopicsResponse.DeletableTopicResult


def wanted_topics(exchange: ApiExchange) -> list[Wanted]:
    if exchange.version >= FIRST_VERSION_WITH_IDS:
        topics: list[Wanted] = exchange.body.topics
        return topics
    return [Wanted(name=name) for name in exchange.body.topic_names]


def refused(wanted: Wanted, code: ErrorCode, message: str | None = None) -> Result:
    text = code.message if message is None else message
    return Result(name=wanted.name, topic_id=wanted.topic_id, error_code=code, error_message=text)


def failed(exchange: ApiExchange, code: ErrorCode) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(responses=[refused(w, code) for w in wanted_topics(exchange)])


def refused_to(exchange: ApiExchange, wanted: Wanted) -> Result | None:
    """Return the result of a topic that the client may not delete, None if it may or there is none.

    (Kafka: ControllerApis.deleteTopics.)
    """
    metadata = exchange.broker.metadata
    if wanted.name is None:
        topic = metadata.by_id.get(wanted.topic_id)
        if topic is None or exchange.allows(DELETE_TOPIC, topic.name):
            return None
        # An id does not tell its name to a client that may not see the topic.
        may_see = exchange.broker.authorization.allows(exchange, DESCRIBE_TOPIC, topic.name, is_told=False)
        return refused(Wanted(topic.name if may_see else None, wanted.topic_id), DELETE_TOPIC.denied)
    if not exchange.allows(DESCRIBE_TOPIC, wanted.name):
        return refused(wanted, DELETE_TOPIC.denied)
    if wanted.name not in metadata.by_name or exchange.allows(DELETE_TOPIC, wanted.name):
        return None
    return refused(wanted, DELETE_TOPIC.denied)


def deleted(
    exchange: ApiExchange, results: list[Result], asked: list[Wanted], answer: DeletedTopics | Unanswered
) -> None:
    # A name or an id gets one answer, however often it was given.
    each_once = list({(w.name, w.topic_id): w for w in asked}.values())
    if isinstance(answer, DeletedTopics):
        found: dict[str | bytes | None, Result] = {}
        for topic in answer.topics:
            one = Result(topic.name, topic.topic_id, topic.error, topic.message)
            found[topic.name] = found[topic.topic_id] = one
        results += [found[w.name if w.topic_id == ZERO_UUID else w.topic_id] for w in each_once]
    else:
        results += [refused(w, answer.code, answer.message) for w in each_once]
    exchange.reply(DeleteTopicsResponse(responses=results), answer.throttle_ms)


@api(ApiKey.DELETE_TOPICS, 1, 6, name="DeleteTopics", failed=failed, elements_max=TOPICS_MAX)
def handle(exchange: ApiExchange) -> DeleteTopicsResponse | None:
    """Deletes topics, by name or by id."""
    if not exchange.broker.config.delete_topic_enable:
        old = exchange.version < FIRST_VERSION_WITH_DISABLED_ERROR
        return failed(exchange, ErrorCode.INVALID_REQUEST if old else ErrorCode.TOPIC_DELETION_DISABLED)
    results: list[Result] = []
    good: list[Wanted] = []
    may_all = exchange.broker.authorization.allows_cluster(exchange, DELETE_CLUSTER, is_told=False)
    for topic in wanted_topics(exchange):
        if (topic.topic_id != ZERO_UUID) == (topic.name is not None):
            text = "Name a topic either by its name or by its id."
            results.append(refused(topic, ErrorCode.INVALID_REQUEST, text))
        elif not may_all and (denied := refused_to(exchange, topic)) is not None:
            results.append(denied)
        else:
            good.append(topic)
    if not good:
        return DeleteTopicsResponse(responses=results)
    ask_coordinator(
        exchange,
        DeleteTopics(
            names=[w.name for w in good if w.name is not None],
            ids=[w.topic_id for w in good if w.topic_id != ZERO_UUID],
            account=exchange.account(strict=exchange.version >= FIRST_STRICT_VERSION),
        ),
        DeletedTopics,
        lambda answer: deleted(exchange, results, good, answer),
        exchange.body.timeout_ms,
    )
    return None
