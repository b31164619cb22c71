"""A task's range fetched over the Kafka protocol: the same bytes as in the files, thus the same decoder.

The next fetch is under way while Spark takes the records of the last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from mpbroker.client.cluster import Asked
from mpbroker.client.errors import ApiFailed, ClientError, ConnectionLost
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode
from mpbroker.records.batch import frame_at
from mpbroker.records.errors import CorruptBatch
from spark_integration.columns import Columns
from spark_integration.errors import CorruptLog, SourceUnavailable
from spark_integration.options import ReadOptions
from spark_integration.plan import TaskRange, report_loss
from spark_integration.remote import Brokers, RemoteCatalog

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from typing_extensions import Buffer

FETCH_BYTES = 4 << 20
MAX_WAIT_MS = 500


class OffsetIsGone(Exception):
    """The log was cut, or made anew, or retention was faster."""


class Fetched(NamedTuple):
    """Whole batches, and the first offset behind them."""

    records: memoryview
    next_offset: int


def read_remote(task: TaskRange, columns: Columns, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Raises DataLoss, CorruptLog, SourceUnavailable."""
    brokers = Brokers(options)
    try:
        for fetched in _fetches(brokers, task, options):
            try:
                yield from columns.decode(fetched.records, 0, len(fetched.records), task.start, task.end)
            except CorruptBatch as error:
                raise CorruptLog(f"the broker sent a damaged batch, reading {task}: {error}") from error
    except ClientError as error:
        raise SourceUnavailable(str(error)) from error
    finally:
        brokers.close()


def _fetches(brokers: Brokers, task: TaskRange, options: ReadOptions) -> Iterator[Fetched]:
    """All fetches of a range, in order; each is asked for as soon as the one before has come."""
    offset = task.start
    under_way: Asked | None = None
    while offset < task.end:
        try:
            fetched = _next(brokers, under_way, task, offset)
        except OffsetIsGone:
            under_way = None
            offset = _behind_the_loss(task, offset, options)
            continue
        offset = fetched.next_offset
        under_way = _asked_ahead(brokers, task, offset) if offset < task.end else None
        yield fetched


def _next(brokers: Brokers, under_way: Asked | None, task: TaskRange, offset: int) -> Fetched:
    if under_way is not None:
        try:
            return _taken(brokers, under_way, task, offset)
        except (ConnectionLost, ApiFailed) as error:
            if not error.retriable:
                raise
            brokers.look_again(task.topic)
    return brokers.retried(lambda: _taken(brokers, _asked(brokers, task, offset), task, offset), task.topic)


def _asked_ahead(brokers: Brokers, task: TaskRange, offset: int) -> Asked | None:
    """None if that failed: then it is asked again when its turn comes."""
    try:
        return _asked(brokers, task, offset)
    except (ConnectionLost, ApiFailed):
        return None


def _asked(brokers: Brokers, task: TaskRange, offset: int) -> Asked:
    wanted = m.FetchRequest.FetchPartition(
        partition=task.partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES
    )
    request = m.FetchRequest(
        max_wait_ms=MAX_WAIT_MS,
        min_bytes=1,
        max_bytes=FETCH_BYTES,
        topics=[m.FetchRequest.FetchTopic(topic=task.topic, partitions=[wanted])],
    )
    return brokers.start(brokers.leader(task.topic, task.partition), request)


def _taken(brokers: Brokers, asked: Asked, task: TaskRange, offset: int) -> Fetched:
    response: m.FetchResponse = brokers.finish(asked)
    if response.error_code:
        raise ApiFailed(f"fetching {task}", response.error_code)
    try:
        ((part,),) = [topic.partitions for topic in response.responses]
    except ValueError:
        raise SourceUnavailable(
            f"{asked.node.address} answered a fetch of {task} with something else"
        ) from None
    if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        raise OffsetIsGone
    if part.error_code:
        raise ApiFailed(f"fetching {task}", part.error_code)
    fetched = _whole_batches(part.records or b"", task)
    if fetched.next_offset > offset:
        return fetched
    if part.high_watermark <= offset:
        # The range was planned below the high watermark: the log was cut or made anew.
        raise OffsetIsGone
    raise SourceUnavailable(f"{asked.node.address} sent no record from offset {offset} on, reading {task}")


def _whole_batches(records: Buffer, task: TaskRange) -> Fetched:
    view = memoryview(records).cast("B")
    position, next_offset = 0, -1
    try:
        while (frame := frame_at(view, position, False)) is not None:
            position += frame.length
            next_offset = frame.base_offset + frame.last_offset_delta + 1
    except CorruptBatch as error:
        raise CorruptLog(f"the broker sent a damaged batch, reading {task}: {error}") from error
    return Fetched(view[:position], next_offset)


def _behind_the_loss(task: TaskRange, offset: int, options: ReadOptions) -> int:
    """Where to go on when records were deleted before they could be read. Raises DataLoss."""
    catalog = RemoteCatalog(options)
    try:
        start, high_watermark = catalog.bounds([(task.topic, task.partition)])[task.topic, task.partition]
    finally:
        catalog.close()
    report_loss(
        options.fail_on_data_loss,
        f"Cannot fetch offset {offset} of {task}: now its log start offset is {start}, its high watermark "
        f"{high_watermark}.",
    )
    return start if start > offset else task.end
