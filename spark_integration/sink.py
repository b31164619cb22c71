"""Writes topics for `df.write.format("mpbroker")` and `writeStream`, by the rules of Spark's Kafka sink.

The default is at least once, as in Spark: a failed task's records stay and are written again. With
exactlyOnce=true each attempt of a task leaves a transaction open, and the driver commits a batch's
transactions as one (mpbroker/writing/two_phase.py). (Spark: KafkaWriter, KafkaRowWriter.)
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from mpbroker.reading.errors import OptionError, SourceUnavailable
from mpbroker.writing.intents import JOB, Batch, Intent, Prepared
from mpbroker.writing.options import WriteOptions, parse_write_options

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from mpbroker.writing.kafka_sink import KafkaEnds, KafkaIntentLog

_TEXT: Final = (StringType, BinaryType)
_LOG = logging.getLogger("mpbroker.spark")
_COLUMNS: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "topic": (StringType,),
    "key": _TEXT,
    "value": _TEXT,
    "partition": (IntegerType,),
    "timestamp": (TimestampType,),
}


# Transactional ids of a stream repeat after this many batches; by then no attempt of the first is left.
_BATCHES_APART: Final = 16
# Local properties of the thread that runs a batch (Spark: StreamExecution, MicroBatchExecution).
_QUERY_ID, _BATCH_ID, _RUN_ID = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """A task's message to the driver. With exactlyOnce, `prepared` is None if the task wrote no rows."""

    rows: int
    batch: Batch | None = None
    prepared: Prepared | None = None
    skipped: bool = False


def batch_writer(schema: StructType, options: Mapping[str, str], *, overwrite: bool) -> DataSourceWriter:
    """Return the writer of `df.write`. Raises OptionError."""
    parsed = _checked(schema, options)
    if overwrite:
        raise OptionError(
            "Save mode Overwrite not allowed for Kafka. Allowed save modes are Append and ErrorIfExists "
            '(default): a topic is only ever appended to. Write with .mode("append")'
        )
    return BatchWriter(parsed, _known(parsed) if parsed.sink_batch is not None else None)


def stream_writer(schema: StructType, options: Mapping[str, str]) -> DataSourceStreamWriter:
    """Return the writer of one micro-batch, of any output mode, as in Spark's Kafka sink.

    Raises OptionError, ClientError, JobError.
    """
    parsed = _checked(schema, options)
    if parsed.sink_batch is not None:
        raise OptionError("sinkBatch is for df.write: the batches of a stream have numbers of their own")
    from spark_integration.jobs.mirror_targets import Targets

    if (targets := Targets.of(options)) is not None:
        try:
            targets.make(parsed, has_begun=True)
        except SourceUnavailable as error:
            # The batch itself retries its source.
            _LOG.warning("topics of the next batch are not checked: %s", error)
    return StreamWriter(parsed, _known(parsed) if parsed.exactly_once else None)


class BatchWriter(DataSourceArrowWriter):
    """Writes for `df.write`.

    Spark pickles the writer for every task, and for `commit` in the driver. `known` is the sink's latest
    `Intent` when the writer was made; None without the option sinkBatch.
    """

    def __init__(self, options: WriteOptions, known: Intent | None = None) -> None:
        self._options = options
        self._known = known
        # Transactional ids belong to this run of the job, whatever the job's number is.
        self._run = f"{JOB}{uuid.uuid4().hex}"
        self._job = Batch(*options.sink_batch) if options.sink_batch else Batch(self._run, 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self._options.exactly_once:
            return write_prepared(self._options, self._job, self._run, self._known, iterator)
        return write_task(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._options.exactly_once:
            _commit(self._options, self._job, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._options.exactly_once:
            _abort(self._options, self._job, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes one batch for `writeStream`. `known` is the sink's latest `Intent` when the writer was made."""

    def __init__(self, options: WriteOptions, known: Intent | None) -> None:
        self._options = options
        self._known = known

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if not self._options.exactly_once:
            return write_task(self._options, iterator)
        context = TaskContext.get()
        assert context is not None, "a task has a context"
        query, number = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if not query or not number:
            raise OptionError(
                "exactlyOnce=true: Spark set no batch id, so a retry could not be recognised. Write without "
                "exactlyOnce"
            )
        run = context.getLocalProperty(_RUN_ID) or query
        return write_prepared(self._options, Batch(query, int(number)), run, self._known, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        batch = _batch_of(messages)
        if self._options.exactly_once and batch is not None:
            assert batch.number == batchId, "tasks and driver speak of the same batch"
            _commit(self._options, batch, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        # Without a message of a task, this may be a query that the sink does not belong to. A task that fails
        # aborts its own transaction; those of killed tasks are aborted with the next batch.
        batch = _batch_of(messages)
        if self._options.exactly_once and batch is not None:
            _abort(self._options, batch, messages)


def write_task(options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> Written:
    """Write the rows of a task. Returns when all are acknowledged."""
    from mpbroker.writing.rows import RowWriter, open_cluster, write_all

    context = TaskContext.get()
    with closing(open_cluster(options)) as cluster:
        return Written(
            write_all(RowWriter(cluster, options, context.partitionId() if context else 0), batches)
        )


def write_prepared(
    options: WriteOptions, batch: Batch, run: str, known: Intent | None, batches: Iterator[pa.RecordBatch]
) -> Written:
    """Write the rows in a transaction that stays open, or skip them if `known` covers the batch.

    The transactional id belongs to this attempt alone. An attempt that fails aborts its transaction; the
    driver aborts the transactions of killed attempts. Raises SinkError, ClientError.
    """
    from mpbroker.client.errors import ClientError
    from mpbroker.client.transactions import Transactions
    from mpbroker.writing.kafka_sink import begun, prefix_of
    from mpbroker.writing.rows import RowWriter, open_cluster, write_all

    if known is not None and known.covers(batch):
        return Written(sum(one.num_rows for one in batches), batch, skipped=True)
    context = TaskContext.get()
    partition, attempt = (context.partitionId(), context.attemptNumber()) if context else (0, 0)
    # Without rows no transaction is begun: there would be nothing to end.
    first = next((one for one in batches if one.num_rows), None)
    if first is None:
        return Written(0, batch)
    name = f"{prefix_of(options.sink_id)}{run}/{batch.number % _BATCHES_APART}/{partition}/{attempt}"
    with closing(open_cluster(options)) as cluster:
        transaction = begun(Transactions(cluster), name, options.transaction_timeout_ms)
        try:
            rows = write_all(RowWriter(cluster, options, partition, transaction), chain([first], batches))
        except Exception:
            # An open transaction would hold up all readers of committed records.
            with suppress(ClientError):
                transaction.end(committed=False)
            raise
        return Written(rows, batch, Prepared(transaction.transactional_id, transaction.producer))


def _known(options: WriteOptions) -> Intent | None:
    with _driver_of(options) as (log, _):
        return log.latest(all_of_it=False)


def _commit(options: WriteOptions, batch: Batch, messages: Sequence[WriterCommitMessage | None]) -> None:
    from mpbroker.writing.two_phase import commit

    skipped = any(isinstance(one, Written) and one.skipped for one in messages)
    with _driver_of(options) as (log, ends):
        commit(log, ends, batch, _prepared(messages), skipped)


def _abort(options: WriteOptions, batch: Batch, messages: Sequence[WriterCommitMessage | None]) -> None:
    from mpbroker.writing.two_phase import abort

    with _driver_of(options) as (log, ends):
        abort(log, ends, batch, _prepared(messages))


def settle(given: Mapping[str, str]) -> None:
    """End the open transactions of a sink after its query has stopped. `given`: the options of the sink.

    Raises OptionError, SinkError, ClientError.
    """
    from mpbroker.writing.two_phase import settle as settled

    with _driver_of(parse_write_options(given)) as (log, ends):
        settled(log, ends)


@contextmanager
def _driver_of(options: WriteOptions) -> Iterator[tuple[KafkaIntentLog, KafkaEnds]]:
    from mpbroker.writing.kafka_sink import KafkaEnds, KafkaIntentLog
    from mpbroker.writing.rows import open_cluster

    with closing(open_cluster(options)) as cluster:
        yield KafkaIntentLog(cluster, options.sink_id), KafkaEnds(cluster, options.sink_id)


def _prepared(messages: Sequence[WriterCommitMessage | None]) -> list[Prepared]:
    return [one.prepared for one in messages if isinstance(one, Written) and one.prepared is not None]


def _batch_of(messages: Sequence[WriterCommitMessage | None]) -> Batch | None:
    """Return the batch of the tasks' messages; None if all tasks have failed, or there were none."""
    return next((one.batch for one in messages if isinstance(one, Written)), None)


def _checked(schema: StructType, given: Mapping[str, str]) -> WriteOptions:
    """Parse the options, and check the columns against them (Spark: KafkaWriter.validateQuery).

    Raises OptionError.
    """
    options = parse_write_options(given)
    if options.topic is None and "topic" not in schema.names:
        raise OptionError(
            "topic option required when no 'topic' attribute is present. "
            "Use the topic option for setting a topic."
        )
    if "value" not in schema.names:
        raise OptionError("Required attribute 'value' not found")
    for field in schema.fields:
        fits = isinstance(field.dataType, _COLUMNS.get(field.name, DataType))
        if field.name == "headers":
            fits = _are_headers(field.dataType)
        if not fits:
            raise OptionError(f"{field.name} attribute unsupported type {field.dataType.simpleString()}")
    return options


def _are_headers(kind: DataType) -> bool:
    """Return whether the type is array<struct<key:string,value:binary>>."""
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, type(field.dataType)) for field in kind.elementType.fields]
    return fields == [("key", StringType), ("value", BinaryType)]
