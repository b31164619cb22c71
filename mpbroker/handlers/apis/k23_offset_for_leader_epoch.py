"""OffsetForLeaderEpoch (key 23), versions 2-4: the offset at which an epoch's records end.

After a change of the leader, consumers ask whether the records they have read are still in the log. A single
broker never begins an epoch, but it may serve a log directory with several epochs. (Kafka:
KafkaApis.handleOffsetForLeaderEpochRequest, LeaderEpochFileCache.endOffsetFor; KIP-101, KIP-320.)
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import TypeAlias

from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import check_leader_epoch
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.metadata import Topic
from mpbroker.handlers.requests.permissions import CLUSTER_ACTION, DESCRIBE_TOPIC
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from mpbroker.storage.leader_epochs import EpochEnd, end_of

log = logging.getLogger("mpbroker.handlers")

Answer: TypeAlias = OffsetForLeaderEpochResponse.EpochEndOffset
Wanted: TypeAlias = OffsetForLeaderEpochRequest.OffsetForLeaderPartition


def failed(context: RequestContext, code: ErrorCode) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                t.topic, [Answer(code, p.partition) for p in t.partitions]
            )
            for t in context.body.topics
        ]
    )


def look_up(context: RequestContext, topic: Topic | None, wanted: Wanted) -> EpochEnd | ErrorCode:
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    found = context.broker.partition(topic, wanted.partition)
    if isinstance(found, ErrorCode):
        return found
    now = found[1]
    problem = check_leader_epoch(wanted.current_leader_epoch, now)
    if problem is not None:
        return problem
    if wanted.leader_epoch == now.leader_epoch:
        return EpochEnd(wanted.leader_epoch, now.log_end_offset)
    try:
        epochs = context.broker.readers.get(topic.name, now).epochs()
    except (OSError, ValueError) as error:
        log.error("%s-%d: its leader epochs cannot be read: %s", topic.name, wanted.partition, error)
        return ErrorCode.KAFKA_STORAGE_ERROR
    return end_of(epochs, wanted.leader_epoch, now.log_end_offset)


def answer(context: RequestContext, topic: Topic | None, wanted: Wanted) -> Answer:
    found = look_up(context, topic, wanted)
    if isinstance(found, ErrorCode):
        return Answer(found, wanted.partition)
    return Answer(ErrorCode.NONE, wanted.partition, found.epoch, found.offset)


@api(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, name="OffsetForLeaderEpoch", failed=failed)
def handle(context: RequestContext) -> Generator[None, None, OffsetForLeaderEpochResponse]:
    """Returns the offsets at which the records of leader epochs end."""
    response, done = OffsetForLeaderEpochResponse(), 0
    may_ask_all = context.broker.authorization.allows_cluster(context, CLUSTER_ACTION, is_logged=False)
    for asked in context.body.topics:
        topic = context.broker.metadata.by_name.get(asked.topic)
        may = may_ask_all or context.allows(DESCRIBE_TOPIC, asked.topic)
        answers: list[Answer] = []
        for wanted in asked.partitions:
            answers.append(
                answer(context, topic, wanted) if may else Answer(DESCRIBE_TOPIC.denied, wanted.partition)
            )
            done += 1
            if context.should_yield(done):
                yield
        response.topics.append(OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(asked.topic, answers))
    return response
