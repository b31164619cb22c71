"""DeleteRecords (key 21), versions 0-2: deletes the records below an offset (-1: the high watermark).

The log worker moves the log start offset, and answers when the new one is on disk. Whole segments below that
offset are deleted at once. In the segment that has the offset, earlier records stay but cannot be read. If a
partition is named twice, the last offset counts. A deletion of records that are not durable yet waits for
them, at most for the request's timeout. (Kafka: KafkaApis.handleDeleteRecordsRequest,
Partition.deleteRecordsOnLeader; KIP-107.)
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple, TypeAlias

from mpbroker.handlers.api_parts.durability_waits import (
    LogEnd,
    is_durable,
    log_end_to_wait_for,
    wait_until_durable,
)
from mpbroker.handlers.api_parts.log_questions import ask_owners
from mpbroker.handlers.apis import api
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.limits import LOOKUPS_PER_PIECE
from mpbroker.handlers.requests.metadata import Topic
from mpbroker.handlers.requests.permissions import DELETE_TOPIC
from mpbroker.ipc import calls
from mpbroker.ipc.calls import DeleteBefore, DeletedRecords, DeleteRecords
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DeleteRecordsRequest, DeleteRecordsResponse

Result: TypeAlias = DeleteRecordsResponse.DeleteRecordsPartitionResult
Wanted: TypeAlias = DeleteRecordsRequest.DeleteRecordsPartition

NOTHING = ALL = -1


def refused(wanted: Wanted, code: ErrorCode) -> Result:
    return Result(wanted.partition_index, NOTHING, code)


def response_of(context: RequestContext, results: list[Result]) -> DeleteRecordsResponse:
    """Build the response from `results` in the order of the request's partitions."""
    left = iter(results)
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsResponse.DeleteRecordsTopicResult(t.name, [next(left) for _ in t.partitions])
            for t in context.body.topics
        ]
    )


def failed(context: RequestContext, code: ErrorCode) -> DeleteRecordsResponse:
    return response_of(context, [refused(p, code) for t in context.body.topics for p in t.partitions])


class Deletion(NamedTuple):
    """The question for a log worker, the result to fill in, and the log end that must be durable first."""

    before: DeleteBefore
    result: Result
    end: LogEnd | None


def checked(context: RequestContext, topic: Topic | None, wanted: Wanted) -> Deletion | ErrorCode:
    """Return the deletion to ask a log worker for, or the error to answer at once."""
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic.internal:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    found = context.broker.partition(topic, wanted.partition_index)
    if isinstance(found, ErrorCode):
        return found
    if topic.config.cleanup_policy == ("compact",):
        return ErrorCode.POLICY_VIOLATION
    image, now = found
    end = log_end_to_wait_for(context.broker, image, now)
    if end is not None and not (wanted.offset == ALL or now.high_watermark < wanted.offset <= end.offset):
        end = None
    before = DeleteBefore(image.slot, image.slot_generation, wanted.offset)
    return Deletion(before, Result(wanted.partition_index, NOTHING, ErrorCode.NONE), end)


def deleted(asked: list[Result], answer: calls.Message) -> None:
    """Fill in the results of the partitions that a log worker's answer covers."""
    if isinstance(answer, DeletedRecords):
        for result, one in zip(asked, answer.partitions, strict=True):
            result.error_code, result.low_watermark = one.error, one.log_start
    else:
        for result in asked:
            # The log worker died; every client retries.
            result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER


def each_once(context: RequestContext) -> Generator[None]:
    named: list[DeleteRecordsRequest.DeleteRecordsTopic] = context.body.topics
    topics: dict[str, dict[int, Wanted]] = {}
    for done, topic in enumerate(named, start=1):
        if context.should_yield(done, LOOKUPS_PER_PIECE):
            yield
        topics.setdefault(topic.name, {}).update((one.partition_index, one) for one in topic.partitions)
    named[:] = (
        DeleteRecordsRequest.DeleteRecordsTopic(name, list(partitions.values()))
        for name, partitions in topics.items()
    )


@api(ApiKey.DELETE_RECORDS, 0, 2, name="DeleteRecords", failed=failed)
def handle(context: RequestContext) -> Generator[None, None, DeleteRecordsResponse]:
    """Deletes the records of partitions below an offset."""
    yield from each_once(context)
    done = 0
    results: list[Result] = []
    deletions: list[Deletion] = []
    for named in context.body.topics:
        topic = context.broker.metadata.by_name.get(named.name)
        may = context.allows(DELETE_TOPIC, named.name)
        for one in named.partitions:
            done += 1
            if context.should_yield(done, LOOKUPS_PER_PIECE):
                yield
            found = checked(context, topic, one) if may else DELETE_TOPIC.denied
            if isinstance(found, ErrorCode):
                results.append(refused(one, found))
            else:
                results.append(found.result)
                deletions.append(found)
    if ends := [one.end for one in deletions if one.end is not None]:
        # Records that are not durable yet are not deleted.
        code = yield from wait_until_durable(context, ends, context.body.timeout_ms)
        for one in deletions:
            if one.end is not None and not is_durable(context.broker, one.end):
                one.result.error_code = code
    wanted = [(one.before, one.result) for one in deletions if not one.result.error_code]
    if wanted:
        yield from ask_owners(context, wanted, DeleteRecords, deleted)
    return response_of(context, results)
