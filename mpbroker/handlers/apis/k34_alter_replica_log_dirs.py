"""AlterReplicaLogDirs (key 34), versions 1-2: moves partitions to another log directory of this broker.

The response comes when the log workers have begun the moves. From then on DescribeLogDirs describes the
future replica until it has replaced the current one. (Kafka: KafkaApis.handleAlterReplicaLogDirsRequest,
ReplicaManager.alterReplicaLogDirs; KIP-113.)
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias

from mpbroker.handlers.api_parts.log_questions import ask_workers
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.ipc import calls
from mpbroker.ipc.calls import MovePartition, MovePartitions, MovesBegun
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import AlterReplicaLogDirsResponse
from mpbroker.storage.names import LONGEST_TO_MOVE, log_worker_of, partition_name

Result: TypeAlias = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult
OfTopic: TypeAlias = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult


def failed(context: RequestContext, code: ErrorCode) -> AlterReplicaLogDirsResponse:
    topics: dict[str, OfTopic] = {}
    for topic in (topic for each in context.body.dirs for topic in each.topics):
        named = topics.setdefault(topic.name, OfTopic(topic.name))
        named.partitions += [Result(partition, code) for partition in topic.partitions]
    return AlterReplicaLogDirsResponse(results=list(topics.values()))


def checked(context: RequestContext, path: str, topic: str, partition: int) -> MovePartition | ErrorCode:
    """Return the move to ask a log worker for, or the error to answer at once."""
    broker = context.broker
    if len(partition_name(topic, partition).encode()) > LONGEST_TO_MOVE:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if path not in broker.config.log_dirs:
        return ErrorCode.LOG_DIR_NOT_FOUND
    number = broker.config.log_dirs.index(path)
    if broker.failed_dirs() >> number & 1:
        return ErrorCode.KAFKA_STORAGE_ERROR
    known = broker.metadata.by_name.get(topic)
    exists = known is not None and partition in known.partitions
    topic_id = known.topic_id if known is not None and exists else bytes(16)
    return MovePartition(topic, partition, topic_id, number)


def begun(asked: list[Result], answer: calls.Message) -> None:
    """Fill in the results of the partitions that a log worker's answer covers."""
    if isinstance(answer, MovesBegun):
        for result, error in zip(asked, answer.errors, strict=True):
            result.error_code = error
    else:
        for result in asked:
            # The log worker died. Its successor continues moves that had begun, and a retry does no harm.
            result.error_code = ErrorCode.REPLICA_NOT_AVAILABLE


@api(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2, name="AlterReplicaLogDirs", failed=failed)
def handle(context: RequestContext) -> Generator[None, None, AlterReplicaLogDirsResponse]:
    """Moves partitions to other log directories; clients can use the partitions meanwhile."""
    topics: dict[str, OfTopic] = {}
    wanted: list[tuple[MovePartition, Result]] = []
    for each in context.body.dirs:
        for topic in each.topics:
            for partition in topic.partitions:
                found = checked(context, each.path, topic.name, partition)
                result = Result(partition, ErrorCode.NONE)
                topics.setdefault(topic.name, OfTopic(topic.name)).partitions.append(result)
                if isinstance(found, ErrorCode):
                    result.error_code = found
                else:
                    wanted.append((found, result))
    if wanted:
        workers = len(context.broker.log_calls)
        yield from ask_workers(
            context,
            wanted,
            lambda one: log_worker_of(one.topic, one.partition, workers),
            MovePartitions,
            begun,
        )
    return AlterReplicaLogDirsResponse(results=list(topics.values()))
