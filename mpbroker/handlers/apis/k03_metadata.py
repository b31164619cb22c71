"""Metadata (key 3), versions 0-13: brokers, topics and their partitions. May create the requested topics.

One broker is leader and in-sync replica of every partition, also beside a standby. Replicas that serve reads
(KIP-392) are not in sync: no acknowledgement waits for them, and they never lead. A partition whose log
directory is offline has no leader. Versions 0-3 always allow creation. v10 and v11 have a field for topic
ids but refuse them; v12 and later take names or ids. (Kafka: KafkaApis.handleTopicMetadataRequest,
DefaultAutoTopicCreationManager.)
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TypeAlias

from mpbroker.handlers.api_parts.acl_operations import cluster_operations, operations
from mpbroker.handlers.api_parts.cluster_nodes import cluster_nodes
from mpbroker.handlers.api_parts.coordinator_questions import try_ask_coordinator
from mpbroker.handlers.api_parts.partition_leaders import NO_LEADER, leader_of, replicas_of
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import LOOKUPS_PER_PIECE, TOPICS_MAX
from mpbroker.handlers.requests.metadata import Topic
from mpbroker.handlers.requests.permissions import CREATE_CLUSTER, CREATE_TOPIC, DESCRIBE_TOPIC
from mpbroker.ipc.calls import CreatedTopics, CreateTopic, CreateTopics
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ZERO_UUID, MetadataRequest, MetadataResponse
from mpbroker.protocol.topic_names import METADATA_TOPIC, problem_with
from mpbroker.security.acls import ResourceType

FIRST_VERSION_WITH_AUTO_CREATION_FLAG = 4
FIRST_VERSION_WITH_EMPTY_FOR_NONE = 1
FIRST_VERSION_WITH_IDS = 12

TopicAnswer: TypeAlias = MetadataResponse.MetadataResponseTopic
PartitionAnswer: TypeAlias = MetadataResponse.MetadataResponsePartition


def asked_for(request: MetadataRequest) -> Iterable[MetadataRequest.MetadataRequestTopic]:
    """Return each topic of the request once, even if the request repeats it. (Kafka makes a set.)"""
    return {(topic.topic_id, topic.name): topic for topic in request.topics or ()}.values()


def failed(context: RequestContext, code: ErrorCode) -> MetadataResponse:
    nullable = context.version >= FIRST_VERSION_WITH_IDS
    return MetadataResponse(
        topics=[
            TopicAnswer(error_code=code, name=t.name if nullable else t.name or "", topic_id=t.topic_id)
            for t in asked_for(context.body)
        ],
        error_code=code,
    )


def describe(context: RequestContext, topic: Topic) -> TopicAnswer:
    return TopicAnswer(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[describe_partition(context, topic, number) for number in sorted(topic.partitions)],
        topic_authorized_operations=operations(
            context, ResourceType.TOPIC, topic.name, context.body.include_topic_authorized_operations
        ),
    )


def describe_partition(context: RequestContext, topic: Topic, number: int) -> PartitionAnswer:
    node = context.broker.metadata.leader_id
    leader, epoch = leader_of(context.broker, topic, number)
    offline = leader == NO_LEADER
    return PartitionAnswer(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if offline else ErrorCode.NONE,
        partition_index=number,
        leader_id=leader,
        leader_epoch=epoch,
        replica_nodes=replicas_of(context.broker),
        isr_nodes=[node],
        offline_replicas=[node] if offline else [],
    )


def find(context: RequestContext, asked: MetadataRequest.MetadataRequestTopic) -> TopicAnswer:
    metadata = context.broker.metadata
    if asked.topic_id != ZERO_UUID:
        topic = metadata.by_id.get(asked.topic_id)
        if topic is None:
            return TopicAnswer(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id)
        if not context.allows(DESCRIBE_TOPIC, topic.name):
            return TopicAnswer(error_code=DESCRIBE_TOPIC.denied, name=None, topic_id=asked.topic_id)
        return describe(context, topic)
    name = asked.name or ""
    if not context.allows(DESCRIBE_TOPIC, name):
        return TopicAnswer(error_code=DESCRIBE_TOPIC.denied, name=name)
    topic = metadata.by_name.get(name)
    if topic is None:
        bad = problem_with(name) is not None or metadata.collides(name)
        code = ErrorCode.INVALID_TOPIC_EXCEPTION if bad else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return TopicAnswer(error_code=code, name=name)
    return describe(context, topic)


def missing(context: RequestContext) -> Generator[None, None, list[str]]:
    """Return the unknown topic names to create; an empty list unless client and broker allow creation.

    A broker that does not lead creates none: clients ask again, and sooner or later the one that leads.
    """
    request = context.body
    allowed = context.version < FIRST_VERSION_WITH_AUTO_CREATION_FLAG or request.allow_auto_topic_creation
    broker = context.broker
    if not (allowed and broker.config.auto_create_topics_enable and broker.leading.leads()):
        return []
    metadata = broker.metadata
    names = (t.name for t in request.topics or () if t.topic_id == ZERO_UUID and t.name is not None)
    found = []
    for done, name in enumerate(dict.fromkeys(names), start=1):
        if (
            name not in metadata.by_name
            and name != METADATA_TOPIC
            and problem_with(name) is None
            and not metadata.collides(name)
            and broker.authorization.allows(context, DESCRIBE_TOPIC, name, is_logged=False)
        ):
            found.append(name)
        if context.should_yield(done, LOOKUPS_PER_PIECE):
            yield
    return found


def creatable(
    context: RequestContext, names: list[str]
) -> Generator[None, None, tuple[list[str], dict[str, int]]]:
    """Return the names of topics that the client may create, and the error for each other name."""
    if context.broker.authorization.allows_cluster(context, CREATE_CLUSTER, is_logged=False):
        return names, {}
    allowed, denied = yield from context.split(CREATE_TOPIC, names, str)
    return allowed, dict.fromkeys(denied, int(CREATE_TOPIC.denied))


def described(context: RequestContext) -> Generator[None, None, list[TopicAnswer]]:
    """Describe the requested topics, in pieces of about equally many partitions."""
    broker, request = context.broker, context.body
    wants_all = request.topics is None or (
        not request.topics and context.version < FIRST_VERSION_WITH_EMPTY_FOR_NONE
    )
    topics: list[TopicAnswer] = []
    done = 0
    for one in sorted(broker.metadata.by_name) if wants_all else asked_for(request):
        if not isinstance(one, str):
            topics.append(find(context, one))
        elif (topic := broker.metadata.by_name.get(one)) is not None and (
            broker.authorization.allows(context, DESCRIBE_TOPIC, one, is_logged=False)
        ):
            topics.append(describe(context, topic))
        else:
            continue
        done += 1 + len(topics[-1].partitions)
        if done >= LOOKUPS_PER_PIECE:
            done, context.takes_long = 0, True
            yield
    return topics


def answer(
    context: RequestContext, errors: dict[str, int] | None = None
) -> Generator[None, None, MetadataResponse]:
    """Build the response. `errors`: the error code of each topic that could not be created, by name."""
    broker, request = context.broker, context.body
    nodes = cluster_nodes(context)
    topics = yield from described(context)
    for topic in topics:
        if topic.error_code and errors and topic.name in errors:
            topic.error_code = errors[topic.name]
    return MetadataResponse(
        brokers=[MetadataResponse.MetadataResponseBroker(*node) for node in nodes],
        cluster_id=broker.metadata.cluster_id,
        controller_id=broker.metadata.leader_id,
        topics=topics,
        cluster_authorized_operations=cluster_operations(
            context, request.include_cluster_authorized_operations
        ),
    )


@api(ApiKey.METADATA, 0, 13, name="Metadata", failed=failed, elements_max=TOPICS_MAX)
def handle(context: RequestContext) -> Generator[None, None, MetadataResponse | None]:
    """Describes brokers, topics and partitions; creates missing topics that are named, where allowed."""
    asked = context.body.topics or ()
    if context.version < FIRST_VERSION_WITH_IDS and any(
        t.name is None or t.topic_id != ZERO_UUID for t in asked
    ):
        return failed(context, ErrorCode.INVALID_REQUEST)
    wanted = yield from missing(context)
    names, errors = yield from creatable(context, wanted)
    if not names:
        return (yield from answer(context, errors))
    question = CreateTopics(
        [CreateTopic(name) for name in names], automatic=True, account=context.account(strict=False)
    )
    found = yield from try_ask_coordinator(context, question, CreatedTopics)
    if isinstance(found, CreatedTopics):
        errors |= {t.name: t.error for t in found.topics if t.error}
    else:
        # A client that asks for metadata knows no controller errors; this one makes it retry.
        errors |= dict.fromkeys(names, int(ErrorCode.LEADER_NOT_AVAILABLE))
    response = yield from answer(context, errors)
    context.respond(response, found.throttle_ms)
    return None
