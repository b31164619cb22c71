"""ListOffsets (key 2), versions 1-11: the offset of a time, or of the beginning or end of a partition.

Special times: -1 latest (high watermark, or last stable offset if read_committed), -2 earliest, -3 the record
with the largest timestamp (v7), -4 earliest local (v8), -5 latest tiered (v9) and -6 earliest pending upload
(v11). For partitions that are not tiered, -4 is the same as -2, and nothing is found for -5 and -6. A search
that depends on the end of the log waits until that end is durable. (Kafka: KafkaApis.handleListOffsetRequest,
UnifiedLog.fetchOffsetByTimestamp; KIP-79, KIP-405, KIP-734, KIP-1005.) Unlike Kafka's, a search for the
largest timestamp finds remote records, too.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import NamedTuple, TypeAlias

from mpbroker.handlers.api_parts.durability_waits import LogEnd, log_end_to_wait_for, wait_until_durable
from mpbroker.handlers.api_parts.remote_offsets import (
    earliest_local,
    earliest_pending_upload,
    first_of_time,
    largest_time,
    latest_tiered,
)
from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import check_leader_epoch
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.fetch.partition_readers import bound_of
from mpbroker.handlers.requests.metadata import Topic
from mpbroker.handlers.requests.permissions import DESCRIBE_TOPIC
from mpbroker.ipc.table import Partition
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import ListOffsetsRequest, ListOffsetsResponse
from mpbroker.protocol.numbers import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    READ_UNCOMMITTED,
)
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.validation import Pieces
from mpbroker.storage.leader_epochs import epoch_of
from mpbroker.storage.reader import (
    Bound,
    FoundOffset,
    SegmentGone,
    offset_of_largest_time,
    offset_of_time,
)

log = logging.getLogger("mpbroker.handlers")

FIRST_VERSION_OF = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
# What follows from the names of a partition's files.
OF_FILES = {
    EARLIEST_LOCAL: earliest_local,
    LATEST_TIERED: latest_tiered,
    EARLIEST_PENDING_UPLOAD: earliest_pending_upload,
}
TRIES = 3
# The replica id of a consumer.
CONSUMER = -1

Answer: TypeAlias = ListOffsetsResponse.ListOffsetsPartitionResponse
Wanted: TypeAlias = ListOffsetsRequest.ListOffsetsPartition


def failed(context: RequestContext, code: ErrorCode) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsResponse.ListOffsetsTopicResponse(
                t.name, [Answer(partition_index=p.partition_index, error_code=code) for p in t.partitions]
            )
            for t in context.body.topics
        ]
    )


def visible(context: RequestContext, now: Partition) -> Bound:
    """Return the end of the records that the client may see. A replica's isolation level is ignored."""
    request = context.body
    return bound_of(now, request.isolation_level if request.replica_id == CONSUMER else READ_UNCOMMITTED)


def search(context: RequestContext, topic: Topic, now: Partition, timestamp_ms: int) -> Pieces[FoundOffset]:
    """Find the first record at or after a time, or for MAX_TIMESTAMP the record with the largest timestamp.

    Raises ApiError if the partition cannot be read.
    """
    for left in reversed(range(TRIES)):
        bound = visible(context, now)
        reader = partial(context.broker.reader, topic, now)
        if timestamp_ms == MAX_TIMESTAMP:
            pieces = offset_of_largest_time(reader, bound, now.log_start_offset)
        else:
            pieces = offset_of_time(reader, timestamp_ms, now.log_start_offset, bound)
        try:
            found = yield from context.pausing(pieces)
            if timestamp_ms == MAX_TIMESTAMP:
                return (yield from largest_time(context, topic, now, found))
            return (yield from first_of_time(context, topic, now, timestamp_ms, found))
        except CorruptBatch as error:
            log.error("%s-%d: %s", topic.name, now.partition, error)
            raise ApiError(ErrorCode.CORRUPT_MESSAGE) from error
        except (SegmentGone, OSError, ValueError) as error:
            is_gone = isinstance(error, SegmentGone) or (isinstance(error, FileNotFoundError) and left)
            if not is_gone:
                # ValueError: the damaged ranges are not known.
                log.error("%s-%d cannot be read: %s", topic.name, now.partition, error)
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR) from error
            # The table has had the new log start, or the other log directory, since before the deletion.
            again = context.broker.partition(topic, now.partition)
            if isinstance(again, ErrorCode):
                raise ApiError(again) from None
            now = again[1]
    raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def offset_at(
    context: RequestContext, topic: Topic, now: Partition, timestamp_ms: int
) -> Pieces[FoundOffset]:
    if timestamp_ms == LATEST:
        return FoundOffset(-1, visible(context, now).offset)
    if timestamp_ms == EARLIEST:
        return FoundOffset(-1, now.log_start_offset)
    if timestamp_ms not in OF_FILES:
        return (yield from search(context, topic, now, timestamp_ms))
    try:
        return OF_FILES[timestamp_ms](context, topic, now)
    except (OSError, ValueError) as error:
        log.error("%s-%d cannot be read: %s", topic.name, now.partition, error)
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR) from error


def epoch_of_answer(
    context: RequestContext, topic: Topic, now: Partition, timestamp_ms: int, offset: int
) -> int:
    """Return the leader epoch of the record at the offset; -1 if there is no offset. Raises ApiError."""
    if offset < 0:
        return -1
    if timestamp_ms == LATEST or now.leader_epoch == 0:
        return now.leader_epoch
    try:
        epochs = context.broker.readers.get(topic.name, now).epochs()
    except (OSError, ValueError) as error:
        log.error("%s-%d: its leader epochs cannot be read: %s", topic.name, now.partition, error)
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR) from error
    return epoch_of(epochs, offset)


class Waited(NamedTuple):
    """The log end that a search has waited for, and the error if it is not durable."""

    end: LogEnd
    error: ErrorCode


def look_up(
    context: RequestContext, topic: Topic | None, wanted: Wanted, waited: Waited | None
) -> Pieces[Answer | LogEnd]:
    """Return one partition's answer, or the log end to wait for first. Raises ApiError on failure."""
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    found = context.broker.partition(topic, wanted.partition_index)
    if isinstance(found, ErrorCode):
        raise ApiError(found)
    image, now = found
    problem = check_leader_epoch(wanted.current_leader_epoch, now)
    if problem is not None:
        raise ApiError(problem)
    asked = wanted.timestamp
    if asked < EARLIEST and context.version < FIRST_VERSION_OF.get(asked, context.version + 1):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    if waited is not None and now.high_watermark < waited.end.offset:
        raise ApiError(waited.error)
    # Later appends are not waited for.
    end = log_end_to_wait_for(context.broker, image, now) if waited is None else None
    if end is not None and asked in (LATEST, MAX_TIMESTAMP):
        return end
    timestamp_ms, offset = yield from offset_at(context, topic, now, asked)
    if end is not None and asked > LATEST and offset < 0:
        # A record of that time may be among those that are not durable.
        return end
    return Answer(
        partition_index=wanted.partition_index,
        timestamp=timestamp_ms,
        offset=offset,
        leader_epoch=epoch_of_answer(context, topic, now, asked, offset),
    )


class LookUp:
    """A requested partition, and the index of its answer in the list `answers`."""

    def __init__(self, answers: list[Answer], topic: Topic | None, wanted: Wanted) -> None:
        self._answers, self._place = answers, len(answers)
        self._topic = topic
        self._wanted = wanted
        answers.append(Answer(partition_index=wanted.partition_index))

    def refuse(self, code: ErrorCode) -> None:
        self._answers[self._place].error_code = code

    def answer(self, context: RequestContext, waited: Waited | None = None) -> Pieces[LogEnd | None]:
        """Fill in the answer and return None, or return the log end to wait for first."""
        try:
            found = yield from look_up(context, self._topic, self._wanted, waited)
        except ApiError as error:
            self.refuse(error.code)
            return None
        if isinstance(found, LogEnd):
            return found
        self._answers[self._place] = found
        return None


@api(ApiKey.LIST_OFFSETS, 1, 11, name="ListOffsets", failed=failed)
def handle(context: RequestContext) -> Pieces[ListOffsetsResponse]:
    """Returns the offset of a time, or of the beginning or end of a partition."""
    seen: dict[tuple[str, int], int] = {}
    for asked in context.body.topics:
        for wanted in asked.partitions:
            key = asked.name, wanted.partition_index
            seen[key] = seen.get(key, 0) + 1
    response, done = ListOffsetsResponse(), 0
    late: list[tuple[LookUp, LogEnd]] = []
    for asked in context.body.topics:
        topic = context.broker.metadata.by_name.get(asked.name)
        may = context.allows(DESCRIBE_TOPIC, asked.name)
        answers: list[Answer] = []
        for wanted in asked.partitions:
            one = LookUp(answers, topic, wanted)
            if not may:
                one.refuse(DESCRIBE_TOPIC.denied)
            elif seen[asked.name, wanted.partition_index] > 1:
                one.refuse(ErrorCode.INVALID_REQUEST)
            elif (end := (yield from one.answer(context))) is not None:
                late.append((one, end))
            done += 1
            if context.should_yield(done):
                yield
        response.topics.append(ListOffsetsResponse.ListOffsetsTopicResponse(asked.name, answers))
    if late:
        code = yield from wait_until_durable(context, [end for _, end in late], context.body.timeout_ms)
        for done, (one, end) in enumerate(late, start=1):
            yield from one.answer(context, Waited(end, code))
            if context.should_yield(done):
                yield
    return response
