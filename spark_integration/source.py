"""Defines the data source that `spark.read.format("mpbroker")` finds.

PySpark imports this in several kinds of processes, so modules that plan or read are imported only where used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import datasource as spark
from pyspark.sql.types import StructType

from mpbroker.reading.conditions import Condition, Operator, pruning_of
from mpbroker.reading.errors import OptionError
from mpbroker.reading.options import ReadOptions, check_options, parse_options
from spark_integration.schema import DECODES, VALUE, check_schema, schema_for
from spark_integration.workers import end_in_silence

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from mpbroker.reading.plan import TaskRange
    from mpbroker.reading.stream import Stream
    from spark_integration.decoding import Decoding

_WITH_A_VALUE: Final[dict[type[spark.Filter], Operator]] = {
    spark.EqualTo: "=",
    spark.EqualNullSafe: "<=>",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
    spark.In: "in",
    spark.StringStartsWith: "starts",
    spark.StringEndsWith: "ends",
    spark.StringContains: "contains",
}

# The JVM reader sets this option of a stream. (Java: LogStreamScan.)
DESCRIBE_PLANS: Final = "describeplans"

AdmissionControl: type
try:
    from pyspark.sql.streaming import datasource as limits

    AdmissionControl = limits.SupportsTriggerAvailableNow
except ImportError:
    # Spark 4.1 has no limits for Python sources: each of its batches takes all records.
    AdmissionControl = object

end_in_silence()


class MpbrokerDataSource(spark.DataSource):
    """Reads and writes topics of mpbroker or Apache Kafka, in batch queries and in streaming queries."""

    @classmethod
    def name(cls) -> str:
        return "mpbroker"

    def schema(self) -> StructType | str:
        # `load` calls this, unless it is given a schema. It does not tell batches from streams.
        check_options(self.options)
        return schema_for(self.options)

    def reader(self, schema: StructType) -> spark.DataSourceReader:
        # Spark refuses a reader with pushFilters unless spark.sql.python.filterPushdown.enabled is true.
        pushes = parse_options(dict(self.options)).filter_pushdown
        return (FilteringReader if pushes else MpbrokerReader)(self.options, schema)

    # PySpark passes the arguments by name.

    def streamReader(self, schema: StructType) -> spark.DataSourceStreamReader:  # noqa: N802
        try:
            return MpbrokerStreamReader(self.options, schema)
        except Exception as error:  # noqa: BLE001 - the reader raises it when Spark asks
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> spark.DataSourceWriter:
        from spark_integration.sink import batch_writer

        return batch_writer(schema, self.options, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> spark.DataSourceStreamWriter:  # noqa: ARG002, N802
        from spark_integration.sink import stream_writer

        return stream_writer(schema, self.options)


class MpbrokerReader(spark.DataSourceReader):
    """Plans and reads a batch query.

    The reader travels to every task, so it holds options, schema, how to decode values, and nothing else.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._decoding = check_schema(schema, options)
        self._options = parse_options(dict(options))
        self._schema = schema

    def partitions(self) -> list[SparkTask]:
        return self.plan_tasks()

    def plan_tasks(self, conditions: Sequence[Condition] = ()) -> list[SparkTask]:
        from mpbroker.reading.catalogs import open_catalog
        from mpbroker.reading.plan import plan

        with closing(open_catalog(self._options)) as catalog:
            return [SparkTask(one) for one in plan(catalog, self._options, pruning_of(conditions)[0])]

    def read(self, partition: spark.InputPartition | None) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self._schema, self._options, self._decoding)


class FilteringReader(MpbrokerReader):
    """Plans a batch query so that its filters limit what is read. Used if the option filterPushdown is on."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        self._conditions: tuple[Condition, ...] = ()

    def pushFilters(self, filters: list[spark.Filter]) -> Iterable[spark.Filter]:  # noqa: N802
        """Take the query's filters, and return those that Spark still has to evaluate."""
        known = [(one, condition) for one in filters if (condition := _condition_of(one)) is not None]
        self._conditions = tuple(condition for _, condition in known)
        _, exact = pruning_of(self._conditions)
        fulfilled = {id(one) for (one, _), decided in zip(known, exact, strict=True) if decided}
        return [one for one in filters if id(one) not in fulfilled]

    def partitions(self) -> list[SparkTask]:
        return self.plan_tasks(self._conditions)


def _condition_of(found: spark.Filter) -> Condition | None:
    """Return the filter as a condition on one column; None for any other filter."""
    if isinstance(found, spark.Not):
        inner = _condition_of(found.child)
        return None if inner is None else inner._replace(negated=not inner.negated)
    attribute: tuple[str, ...] = getattr(found, "attribute", ())
    if len(attribute) != 1:
        return None
    if isinstance(found, spark.IsNull | spark.IsNotNull):
        return Condition(attribute[0], "null", negated=isinstance(found, spark.IsNotNull))
    operator = _WITH_A_VALUE.get(type(found))
    if operator is None:
        return None
    value = getattr(found, "value")  # noqa: B009 - each of these classes has one, their base has none
    return Condition(attribute[0], operator, tuple(value) if operator == "in" else value)


class MpbrokerStreamReader(spark.DataSourceStreamReader, AdmissionControl):  # type: ignore[misc]
    """Answers Spark's calls while a streaming query runs, by the rules of `mpbroker.reading.stream`.

    It lives in a child process of the driver. Tasks get a copy without the open stream.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        given = dict(options)
        self._is_described = given.pop(DESCRIBE_PLANS, None) is not None
        self._decoding = check_schema(schema, given)
        self._options = parse_options(given, streaming=True)
        self._schema = schema
        self._run: Stream | None = None
        if AdmissionControl is object and self._options.is_limited:
            raise OptionError("this Spark cannot limit a batch: leave …PerTrigger away, or use Spark 4.2")
        if AdmissionControl is object and self._options.commit_group_id is not None:
            raise OptionError("commitGroupId needs Spark 4.2: this Spark does not say where a batch begins")

    # Names and arguments of these methods are Spark's.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._stream().initial()

    def getDefaultReadLimit(self) -> limits.ReadLimit:  # noqa: N802
        """Return one of the limits that the options set, or ReadAllAvailable if they set none.

        Spark cannot combine limits, so the stream itself applies all of them. For triggers that take
        everything, Spark passes ReadAllAvailable to `latestOffset`, whatever this returns.
        """
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return limits.ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return limits.ReadMinRows(options.min_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return limits.ReadMaxBytes(options.max_bytes_per_trigger)
        return limits.ReadAllAvailable()

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: limits.ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the end of the next batch. Spark 4.1 passes no arguments: the batch takes all records."""
        if start is None:
            return self._stream().next_end(self._stream().initial(), everything=True)
        if self._is_described and limit == limits.ReadMaxRows(0):
            return self._stream().now(start)
        return self._stream().next_end(start, everything=isinstance(limit, limits.ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._stream().latest()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._stream().prepare_available_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[spark.InputPartition]:
        """Return the tasks of a batch. If the JVM asked for the plan, return it as one partition instead.

        If only Python can run the plan, that partition says so, and the list has the tasks after it.
        """
        planned = self._stream().plan(start, end)
        tasks: list[spark.InputPartition] = [SparkTask(one) for one in planned]
        if not self._is_described:
            return tasks
        if self._decoding is not None:
            manifest: dict[str, Any] = {"declined": DECODES}
        else:
            from mpbroker.reading.manifest import manifest_of

            manifest = manifest_of(planned, _patient(self._options))
        description = spark.InputPartition(json.dumps(manifest).encode())
        return [description, *tasks] if "declined" in manifest else [description]

    def read(self, partition: spark.InputPartition | None) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self._schema, _patient(self._options), self._decoding)

    def commit(self, end: dict[str, Any]) -> None:
        self._stream().committed(end)

    def stop(self) -> None:
        if self._run is not None:
            self._run.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_run": None}

    def _stream(self) -> Stream:
        if self._run is None:
            from mpbroker.reading.stream import open_stream

            self._run = open_stream(self._options)
        return self._run


class RefusedStreamReader(spark.DataSourceStreamReader, AdmissionControl):  # type: ignore[misc]
    """Replaces a reader whose creation failed; raises the creation's error when Spark first calls it.

    Without this object PySpark would try to stop a missing reader, and report that failure first.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    def _refuse(self, *_arguments: object) -> Any:
        raise self._error

    initialOffset = latestOffset = partitions = read = _refuse  # type: ignore[assignment]  # noqa: N815
    getDefaultReadLimit = prepareForTriggerAvailableNow = _refuse  # noqa: N815


def _patient(options: ReadOptions) -> ReadOptions:
    """Return `options` with so many retries that tasks wait for a broker as long as Spark's Kafka source."""
    tries = math.ceil(options.request_timeout_ms / max(1, options.retry_interval_ms))
    return replace(options, retries=max(options.retries, tries))


@dataclass(frozen=True)
class SparkTask(spark.InputPartition):
    """A planned range in the form of PySpark's partitions."""

    range: TaskRange

    # InputPartition's own repr prints a field that dataclasses do not set.
    def __repr__(self) -> str:
        return str(self.range)


def read_task(
    partition: spark.InputPartition | None,
    schema: StructType,
    options: ReadOptions,
    decoding: Decoding | None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task.

    For an empty plan Spark runs a single task whose `partition` is no SparkTask. It yields no records.
    """
    import pyarrow as pa

    from mpbroker.reading.columns import SCHEMA
    from mpbroker.reading.read import read_range

    if isinstance(partition, SparkTask):
        # Spark compares this schema, NOT NULL included, with the one that it makes of its own.
        chosen = pa.schema([SCHEMA.field(one.name).with_nullable(one.nullable) for one in schema.fields])
        batches = read_range(partition.range, chosen, options)
        yield from batches if decoding is None else _decoded(batches, chosen, decoding, partition)


def _decoded(
    batches: Iterator[pa.RecordBatch], raw: pa.Schema, decoding: Decoding, task: SparkTask
) -> Iterator[pa.RecordBatch]:
    """Yield the batches with their values decoded. Raises MalformedRecord."""
    import pyarrow as pa

    from spark_integration.values import MalformedRecord

    place = raw.get_field_index(VALUE)
    schema = raw.set(place, raw.field(place).with_type(decoding.arrow))
    for batch in batches:
        columns = batch.columns
        try:
            columns[place] = decoding.decode(columns[place])
        except MalformedRecord as error:
            raise MalformedRecord(f"{task}: {error}") from error
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
