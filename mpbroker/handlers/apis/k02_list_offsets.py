"""ListOffsets (key 2), versions 1-11: the offset of a time, or of the beginning or end of a partition.

Special times: -1 latest (high watermark, or last stable offset if read_committed), -2 earliest, -3 the record
with the largest timestamp (v7), -4 earliest local (v8, the same as -2), -5 latest tiered (v9) and -6 earliest
pending upload (v11). There are no records for the last two. (Kafka: KafkaApis.handleListOffsetRequest,
UnifiedLog.fetchOffsetByTimestamp; KIP-79, KIP-405, KIP-734, KIP-1005.)
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TypeAlias

from mpbroker.handlers.apis import api
from mpbroker.handlers.broker import ApiExchange, check_leader_epoch
from mpbroker.handlers.fetch.partition_readers import bound_of
from mpbroker.handlers.requests.metadata import Topic
from mpbroker.handlers.requests.permissions import DESCRIBE_TOPIC
from mpbroker.ipc.table import Partition
from mpbroker.log.format.leader_epochs import epoch_of
from mpbroker.log.read.reader import NOTHING_FOUND, FoundOffset, SegmentGone
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
)
from mpbroker.records.errors import CorruptBatch

log = logging.getLogger("mpbroker.handlers")

FIRST_VERSION_OF = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
TRIES = 3

Answer: TypeAlias = ListOffsetsResponse.ListOffsetsPartitionResponse
Wanted: TypeAlias = ListOffsetsRequest.ListOffsetsPartition


def failed(exchange: ApiExchange, code: ErrorCode) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsResponse.ListOffsetsTopicResponse(
                t.name, [Answer(partition_index=p.partition_index, error_code=code) for p in t.partitions]
            )
            for t in exchange.body.topics
        ]
    )


def search(exchange: ApiExchange, topic: Topic, now: Partition, timestamp_ms: int) -> FoundOffset:
    """Find the record for a time, or the one with the largest timestamp.

    Raises ApiError if the partition cannot be read.
    """
    for _ in range(TRIES):
        bound = bound_of(now, exchange.body.isolation_level)
        try:
            reader = exchange.broker.reader(topic, now)
            if timestamp_ms == MAX_TIMESTAMP:
                return reader.max_timestamp(bound, now.log_start_offset)
            return reader.find_timestamp(timestamp_ms, now.log_start_offset, bound)
        except SegmentGone:
            # The table had the new log start before the segment was deleted.
            found = exchange.broker.partition(topic, now.partition)
            if isinstance(found, ErrorCode):
                raise ApiError(found) from None
            now = found[1]
        except CorruptBatch as error:
            log.error("%s-%d: %s", topic.name, now.partition, error)
            raise ApiError(ErrorCode.CORRUPT_MESSAGE) from error
        except (OSError, ValueError) as error:
            # ValueError: the damaged ranges are not known.
            log.error("%s-%d cannot be read: %s", topic.name, now.partition, error)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR) from error
    raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def offset_at(exchange: ApiExchange, topic: Topic, now: Partition, timestamp_ms: int) -> FoundOffset:
    if timestamp_ms < EARLIEST and exchange.version < FIRST_VERSION_OF.get(
        timestamp_ms, exchange.version + 1
    ):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    if timestamp_ms == LATEST:
        return FoundOffset(-1, bound_of(now, exchange.body.isolation_level).offset)
    if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        return FoundOffset(-1, now.log_start_offset)
    if timestamp_ms in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NOTHING_FOUND
    return search(exchange, topic, now, timestamp_ms)


def epoch_of_answer(
    exchange: ApiExchange, topic: Topic, now: Partition, timestamp_ms: int, offset: int
) -> int:
    """Return the epoch that wrote the offset. Only a log from a cluster has had more than the first one."""
    if offset < 0:
        return -1
    if timestamp_ms == LATEST or now.leader_epoch == 0:
        return now.leader_epoch
    try:
        epochs = exchange.broker.readers.get(topic.name, now).epochs()
    except (OSError, ValueError) as error:
        log.error("%s-%d: its leader epochs cannot be read: %s", topic.name, now.partition, error)
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR) from error
    return epoch_of(epochs, offset)


def look_up(exchange: ApiExchange, topic: Topic | None, wanted: Wanted) -> Answer:
    """Answer for one partition. Raises ApiError if it has no offset to tell."""
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    found = exchange.broker.partition(topic, wanted.partition_index)
    if isinstance(found, ErrorCode):
        raise ApiError(found)
    now = found[1]
    problem = check_leader_epoch(wanted.current_leader_epoch, now)
    if problem is not None:
        raise ApiError(problem)
    timestamp_ms, offset = offset_at(exchange, topic, now, wanted.timestamp)
    return Answer(
        partition_index=wanted.partition_index,
        timestamp=timestamp_ms,
        offset=offset,
        leader_epoch=epoch_of_answer(exchange, topic, now, wanted.timestamp, offset),
    )


def answer(exchange: ApiExchange, topic: Topic | None, wanted: Wanted, twice: bool) -> Answer:
    try:
        if twice:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        return look_up(exchange, topic, wanted)
    except ApiError as error:
        return Answer(partition_index=wanted.partition_index, error_code=error.code)


def pieces(exchange: ApiExchange) -> Iterator[None]:
    """Answer for one partition per piece: a search may read from the disk."""
    seen: dict[tuple[str, int], int] = {}
    for asked in exchange.body.topics:
        for wanted in asked.partitions:
            key = asked.name, wanted.partition_index
            seen[key] = seen.get(key, 0) + 1
    response, done = ListOffsetsResponse(), 0
    for asked in exchange.body.topics:
        topic = exchange.broker.metadata.by_name.get(asked.name)
        may = exchange.allows(DESCRIBE_TOPIC, asked.name)
        answers: list[Answer] = []
        for wanted in asked.partitions:
            twice = seen[asked.name, wanted.partition_index] > 1
            answers.append(
                answer(exchange, topic, wanted, twice)
                if may
                else Answer(partition_index=wanted.partition_index, error_code=DESCRIBE_TOPIC.denied)
            )
            done += 1
            if exchange.has_had_its_share(done):
                yield
        response.topics.append(ListOffsetsResponse.ListOffsetsTopicResponse(asked.name, answers))
    exchange.reply(response)


@api(ApiKey.LIST_OFFSETS, 1, 11, name="ListOffsets", failed=failed)
def handle(exchange: ApiExchange) -> None:
    """The offset of a time, or of the beginning or end of a partition."""
    exchange.work_off(pieces(exchange))
