"""Fetches a task's range over the Kafka protocol.

The fetched bytes are the same as in the files, and the same decoder reads them. The next fetch is sent before
Spark processes the records of the last fetch.

A topic is identified by its id, so that a recreated topic of the same name is recognised (KIP-516). A broker
with ids but without Fetch v13 (Kafka 2.8 to 3.0) is asked for the id after each fetch. With a broker without
ids (before 2.8) a recreated topic is detected only if the fetched offset is beyond the topic's end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mpbroker.client.cluster import Asked
from mpbroker.client.consumer import Consumer, Fetched, Limits
from mpbroker.client.errors import ApiFailed, ClientError, ConnectionLost
from mpbroker.protocol.errors import ErrorCode
from mpbroker.reading.columns import Columns
from mpbroker.reading.errors import CorruptLog, SourceUnavailable
from mpbroker.reading.options import ReadOptions
from mpbroker.reading.plan import TaskRange, report_loss
from mpbroker.reading.remote_catalog import Brokers, RemoteCatalog
from mpbroker.records.aborted import from_fetch
from mpbroker.records.batch import frame_at
from mpbroker.records.errors import CorruptBatch

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]


# The answers of brokers for a topic that does not exist, by its name or by its id.
_UNKNOWN_TOPIC = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)


class OffsetIsGone(Exception):
    """The offset was truncated or deleted; before Fetch v13, the topic may also have been recreated."""


class TopicIsGone(Exception):
    """The topic was deleted after the range was planned; a new topic may have the same name."""


class NothingCame(ClientError):
    """A fetch below the high watermark returned no records and no error.

    A partition may be moving, or a disk may be slow. A Kafka client then repeats the fetch.
    """

    retriable = True


class Batches(NamedTuple):
    """The whole record batches of a fetch from offset `start`, and the first offset after them.

    The first batch may begin before `start`. `aborted` has (producer id, first offset) of each aborted
    transaction with records in the batches.
    """

    records: memoryview
    start: int
    next_offset: int
    aborted: Sequence[tuple[int, int]]


def read_remote(task: TaskRange, columns: Columns, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the records of the range. Raises DataLoss, CorruptLog, SourceUnavailable."""
    brokers = Brokers(options)
    try:
        for fetched in _fetches(brokers, task, options):
            try:
                aborted = from_fetch(fetched.records, fetched.aborted)
                records = fetched.records
                yield from columns.decode(records, 0, len(records), fetched.start, task.end, aborted)
            except CorruptBatch as error:
                raise CorruptLog(f"the broker sent a damaged batch, reading {task}: {error}") from error
    except ClientError as error:
        raise SourceUnavailable(str(error)) from error
    finally:
        brokers.close()


def _fetches(brokers: Brokers, task: TaskRange, options: ReadOptions) -> Iterator[Batches]:
    """Yield the batches of all fetches of a range, in order. Send the next fetch before yielding a result."""
    limits = Limits(max_bytes=options.fetch_bytes, partition_max_bytes=options.fetch_bytes)
    consumer = brokers.consumer(task.topic, task.topic_id, limits)
    offset = task.start
    vain = 0
    under_way: list[Asked] | None = None
    while offset < task.end:
        try:
            fetched = _next(brokers, consumer, under_way, task, offset)
        except OffsetIsGone:
            under_way = None
            found = _after_the_loss(brokers, task, offset, options)
            vain = vain + 1 if found == offset else 0
            if vain > options.retries:
                raise SourceUnavailable(
                    f"Cannot fetch offset {offset} of {task}: the leader has it, and does not send it. "
                    "Run the query again"
                ) from None
            offset = found
            continue
        except TopicIsGone:
            report_loss(
                options.fail_on_data_loss,
                f"Cannot fetch offset {offset} of {task}: topic {task.topic} was deleted since the query was "
                "planned.",
            )
            return
        offset, vain = fetched.next_offset, 0
        under_way = _asked_ahead(consumer, task, offset) if offset < task.end else None
        yield fetched


def _next(
    brokers: Brokers, consumer: Consumer, under_way: list[Asked] | None, task: TaskRange, offset: int
) -> Batches:
    if under_way is not None:
        try:
            return _taken(brokers, consumer, under_way, task, offset)
        except (ConnectionLost, ApiFailed, NothingCame) as error:
            if not error.retriable:
                raise
            brokers.refresh([task.topic])
    try:
        return brokers.retried(lambda: _fetched(brokers, consumer, task, offset), [task.topic])
    except SourceUnavailable as error:
        if isinstance(error.__cause__, ApiFailed) and error.__cause__.code in _UNKNOWN_TOPIC:
            raise TopicIsGone from error
        raise


def _fetched(brokers: Brokers, consumer: Consumer, task: TaskRange, offset: int) -> Batches:
    """Send one fetch and wait for its response. Raises TopicIsGone."""
    try:
        return _taken(brokers, consumer, consumer.start({task.partition: offset}), task, offset)
    except ApiFailed as error:
        # A new or a deleted topic may be unknown. Under another id it is another topic.
        if error.code in _UNKNOWN_TOPIC and brokers.topic_id(task.topic) != task.topic_id:
            raise TopicIsGone from error
        raise


def _asked_ahead(consumer: Consumer, task: TaskRange, offset: int) -> list[Asked] | None:
    """Send the next fetch ahead of time. Return None if that failed; the caller sends it again later."""
    try:
        return consumer.start({task.partition: offset})
    except (ConnectionLost, ApiFailed):
        return None


def _taken(brokers: Brokers, consumer: Consumer, asked: list[Asked], task: TaskRange, offset: int) -> Batches:
    address = asked[0].node.address
    try:
        (part,) = consumer.finish(asked)
    except ValueError:
        raise SourceUnavailable(
            f"{address} answered a fetch of {task} without that partition. Check that "
            "kafka.bootstrap.servers leads to Kafka brokers and to nothing that changes their answers"
        ) from None
    if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        raise OffsetIsGone
    if part.error_code:
        raise ApiFailed(f"fetching {task}", part.error_code)
    if part.topic and task.topic_id is not None and brokers.topic_id(task.topic) != task.topic_id:
        # Before Fetch v13 a fetch names the topic. Ids are never reused: if the name has the planned id
        # afterwards, the records are of the planned topic.
        raise TopicIsGone
    fetched = _whole_batches(part, task, offset)
    if fetched.next_offset > offset:
        return fetched
    if part.high_watermark <= offset:
        # The range was planned below the high watermark, so the log was cut, or the topic recreated.
        raise OffsetIsGone
    raise NothingCame(f"{address} sent no record from offset {offset} on, reading {task}")


def _whole_batches(part: Fetched, task: TaskRange, start: int) -> Batches:
    view = memoryview(part.records).cast("B")
    position, next_offset = 0, -1
    try:
        while (frame := frame_at(view, position, False)) is not None:
            position += frame.length
            next_offset = frame.base_offset + frame.last_offset_delta + 1
    except CorruptBatch as error:
        raise CorruptLog(f"the broker sent a damaged batch, reading {task}: {error}") from error
    return Batches(view[:position], start, next_offset, part.aborted)


def _after_the_loss(brokers: Brokers, task: TaskRange, offset: int, options: ReadOptions) -> int:
    """Report that records at `offset` were deleted, and return the next offset to read. Raises DataLoss.

    If the leader has the offset, wait a moment, and return `offset`: the high watermark of a new leader may
    still be too low, and fetches get no records above it. (KIP-207.)
    """
    one = (task.topic, task.partition)
    start, end, _ = RemoteCatalog(options, brokers).bounds([one])[one]
    if start <= offset < end:
        time.sleep(options.retry_interval_ms / 1000)
        return offset
    report_loss(
        options.fail_on_data_loss,
        f"Cannot fetch offset {offset} of {task}: now its log start offset is {start}, and it can be read up "
        f"to {end}.",
    )
    return start if start > offset else task.end
