"""DeleteRecords (key 21), versions 0-2: deletes the records below an offset, -1 for all that can be read.

The log worker moves the log start offset and answers when that is on disk; segments below it go at once, the
rest of a segment stays in its file and cannot be read any more. Of a partition that is named twice the last
offset counts. There are no followers that the request's
timeout could be for. (Kafka: KafkaApis.handleDeleteRecordsRequest, Partition.deleteRecordsOnLeader; KIP-107.)
"""

from __future__ import annotations

from typing import TypeAlias

from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange
from mpbroker.handlers.log_questions import ask_owners
from mpbroker.handlers.metadata import Topic
from mpbroker.ipc import calls
from mpbroker.ipc.calls import DeleteBefore, DeletedRecords, DeleteRecords
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DeleteRecordsRequest, DeleteRecordsResponse

Result: TypeAlias = DeleteRecordsResponse.DeleteRecordsPartitionResult
Wanted: TypeAlias = DeleteRecordsRequest.DeleteRecordsPartition

NOTHING = -1


def refused(wanted: Wanted, code: ErrorCode) -> Result:
    return Result(wanted.partition_index, NOTHING, code)


def response_of(exchange: ApiExchange, results: list[Result]) -> DeleteRecordsResponse:
    """`results` in the order in which the partitions were asked for."""
    left = iter(results)
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsResponse.DeleteRecordsTopicResult(t.name, [next(left) for _ in t.partitions])
            for t in exchange.body.topics
        ]
    )


def failed(exchange: ApiExchange, code: ErrorCode) -> DeleteRecordsResponse:
    return response_of(exchange, [refused(p, code) for t in exchange.body.topics for p in t.partitions])


def checked(exchange: ApiExchange, topic: Topic | None, wanted: Wanted) -> DeleteBefore | ErrorCode:
    """What the log process is asked, or why it is not."""
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic.internal:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    found = exchange.broker.partition(topic, wanted.partition_index)
    if isinstance(found, ErrorCode):
        return found
    if topic.config.cleanup_policy == ("compact",):
        return ErrorCode.POLICY_VIOLATION
    return DeleteBefore(found[0].slot, found[0].slot_generation, wanted.offset)


def deleted(asked: list[Result], answer: calls.Message) -> None:
    """`asked`: those of the results that a log worker has an answer for."""
    if isinstance(answer, DeletedRecords):
        for result, one in zip(asked, answer.partitions, strict=True):
            result.error_code, result.low_watermark = one.error, one.log_start
    else:
        for result in asked:
            # It died; every client asks again.
            result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER


def each_once(named: list[DeleteRecordsRequest.DeleteRecordsTopic]) -> None:
    topics: dict[str, dict[int, Wanted]] = {}
    for topic in named:
        topics.setdefault(topic.name, {}).update((one.partition_index, one) for one in topic.partitions)
    named[:] = (
        DeleteRecordsRequest.DeleteRecordsTopic(name, list(partitions.values()))
        for name, partitions in topics.items()
    )


@api(ApiKey.DELETE_RECORDS, 0, 2, name="DeleteRecords", failed=failed)
def handle(exchange: ApiExchange) -> DeleteRecordsResponse | None:
    """Deletes the records of partitions below an offset."""
    each_once(exchange.body.topics)
    results: list[Result] = []
    wanted: list[tuple[DeleteBefore, Result]] = []
    for named in exchange.body.topics:
        topic = exchange.broker.metadata.by_name.get(named.name)
        for one in named.partitions:
            found = checked(exchange, topic, one)
            if isinstance(found, ErrorCode):
                results.append(refused(one, found))
                continue
            results.append(Result(one.partition_index, NOTHING, ErrorCode.NONE))
            wanted.append((found, results[-1]))
    if not wanted:
        return response_of(exchange, results)
    ask_owners(
        exchange, wanted, DeleteRecords, deleted, lambda: exchange.reply(response_of(exchange, results))
    )
    return None
