"""DeleteTopics (key 20), versions 1-6: deletes topics, by name or (v6) by id.

The coordinator decides. The response comes when the deletion is durable and the partitions can no longer be
reached. After `timeout_ms` the response is REQUEST_TIMED_OUT, and the deletion continues. The files are
deleted later. (Kafka: ControllerApis.deleteTopics.)
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias

from mpbroker.handlers.api_parts.coordinator_questions import try_ask_coordinator
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
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


def wanted_topics(context: RequestContext) -> list[Wanted]:
    if context.version >= FIRST_VERSION_WITH_IDS:
        topics: list[Wanted] = context.body.topics
        return topics
    return [Wanted(name=name) for name in context.body.topic_names]


def refused(wanted: Wanted, code: ErrorCode, message: str | None = None) -> Result:
    text = code.message if message is None else message
    return Result(name=wanted.name, topic_id=wanted.topic_id, error_code=code, error_message=text)


def failed(context: RequestContext, code: ErrorCode) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(responses=[refused(w, code) for w in wanted_topics(context)])


def refused_to(context: RequestContext, wanted: Wanted) -> Result | None:
    """Return the refusal for a topic that the client may not delete; None if it may, or there is no topic.

    (Kafka: ControllerApis.deleteTopics.)
    """
    metadata = context.broker.metadata
    if wanted.name is None:
        topic = metadata.by_id.get(wanted.topic_id)
        if topic is None or context.allows(DELETE_TOPIC, topic.name):
            return None
        # A client that may not see the topic does not get its name for its id.
        may_see = context.broker.authorization.allows(context, DESCRIBE_TOPIC, topic.name, is_logged=False)
        return refused(Wanted(topic.name if may_see else None, wanted.topic_id), DELETE_TOPIC.denied)
    if not context.allows(DESCRIBE_TOPIC, wanted.name):
        return refused(wanted, DELETE_TOPIC.denied)
    if wanted.name not in metadata.by_name or context.allows(DELETE_TOPIC, wanted.name):
        return None
    return refused(wanted, DELETE_TOPIC.denied)


@api(ApiKey.DELETE_TOPICS, 1, 6, name="DeleteTopics", failed=failed, elements_max=TOPICS_MAX)
def handle(context: RequestContext) -> Generator[None, None, DeleteTopicsResponse | None]:
    """Deletes topics, by name or by id."""
    if not context.broker.config.delete_topic_enable:
        old = context.version < FIRST_VERSION_WITH_DISABLED_ERROR
        return failed(context, ErrorCode.INVALID_REQUEST if old else ErrorCode.TOPIC_DELETION_DISABLED)
    results: list[Result] = []
    good: list[Wanted] = []
    may_all = context.broker.authorization.allows_cluster(context, DELETE_CLUSTER, is_logged=False)
    for topic in wanted_topics(context):
        if (topic.topic_id != ZERO_UUID) == (topic.name is not None):
            text = "Name a topic either by its name or by its id."
            results.append(refused(topic, ErrorCode.INVALID_REQUEST, text))
        elif not may_all and (denied := refused_to(context, topic)) is not None:
            results.append(denied)
        else:
            good.append(topic)
    if not good:
        return DeleteTopicsResponse(responses=results)
    question = DeleteTopics(
        names=[w.name for w in good if w.name is not None],
        ids=[w.topic_id for w in good if w.topic_id != ZERO_UUID],
        account=context.account(strict=context.version >= FIRST_STRICT_VERSION),
    )
    answer = yield from try_ask_coordinator(context, question, DeletedTopics, context.body.timeout_ms)
    # A name or an id gets one answer, however often it was given.
    each_once = list({(w.name, w.topic_id): w for w in good}.values())
    if isinstance(answer, DeletedTopics):
        found: dict[str | bytes | None, Result] = {}
        for one in answer.topics:
            found[one.name] = found[one.topic_id] = Result(one.name, one.topic_id, one.error, one.message)
        results += [found[w.name if w.topic_id == ZERO_UUID else w.topic_id] for w in each_once]
    else:
        results += [refused(w, answer.code, answer.message) for w in each_once]
    context.respond(DeleteTopicsResponse(responses=results), answer.throttle_ms)
    return None
