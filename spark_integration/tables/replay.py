"""Writes the records of a raw table back into a topic: keys, values, headers and times, in their order.

A replay goes in steps. Before a step is written, its offsets become an object beside the table's files,
created only if it is absent: `replay/<name>/<number>.json`. The next job after a kill repeats the newest
step, and so does a second job at the same time. Thus each record is written at least once; with the sink's
exactlyOnce exactly once, because the sink knows by the step's number whether the step was committed.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.types import BinaryType
from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.pandas.types import from_arrow_schema

from spark_integration.jobs.frame import JobError, Notice, Silent, watched
from spark_integration.tables.catalog import open_catalog
from spark_integration.tables.data_files import RowFiles, row_files
from spark_integration.tables.planning import limited
from spark_integration.tables.rows import FROM, OURS
from spark_integration.tables.settings import Settings
from spark_integration.tables.spans import Covered, Span, covered
from spark_integration.tables.store_io import LOCATION, name_in, store_of

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

    from mpbroker.remote.store.object_store import ObjectStore

FORMAT: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}").fullmatch
_COLUMNS: Final = {**FROM, "value": "value"}
_ROWS: Final = pa.schema(
    {
        "_topic_id": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
        "key": pa.binary(),
        "value": pa.binary(),
    }
)


@dataclass(frozen=True)
class ReplaySettings:
    """The table whose records are written, and their target.

    The progress is kept under `name`. `to_topic` is by default the topic that the table has.
    `keep_partitions` writes into partitions of the same numbers, which have to exist. `options` are the
    sink's.
    """

    table: str
    options: dict[str, str] = field(default_factory=dict, repr=False)
    name: str = "replay"
    to_topic: str | None = None
    keep_partitions: bool = False
    exactly_once: bool = False


@dataclass(frozen=True)
class Replayed:
    """The records and steps that a call of `replay` has written, and the topic that has them."""

    records: int
    steps: int
    topic: str


class ReplayStep(msgspec.Struct, frozen=True):
    """A step, as in its object: the offsets to write, and those that are done.

    `id` is a part of the sink's id. The first step has the number 0.
    """

    format: int
    id: str
    topic: str
    number: int = -1
    done: tuple[Span, ...] = ()
    spans: tuple[Span, ...] = ()

    def reached(self) -> Covered:
        """Return the offsets that are done after this step."""
        return Covered(self.topic, self.done).with_spans(self.spans)

    def following(self, until: Covered, most_offsets: int) -> ReplayStep:
        """Return the step after this one, of a table that has `until`. It has no spans if nothing is left."""
        done = self.reached()
        spans = limited(ahead(done, until), most_offsets)
        return ReplayStep(FORMAT, self.id, self.topic, self.number + 1, done.spans, tuple(spans))


class ReplaySteps:
    """The steps of one replay of a table, as objects beside the table's files."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    @classmethod
    def of_table(cls, table: Table, name: str) -> ReplaySteps:
        """Return the steps of the replay of this name. Raises JobError if it is not a name."""
        if not _NAME(name):
            raise JobError(f"a name is of letters, digits, '.', '_' and '-', at most 100; not '{name}'")
        location = table.io.properties[LOCATION]
        return cls(store_of(location), name_in(location, f"{table.location().rstrip('/')}/replay/{name}/"))

    def newest(self) -> ReplayStep | None:
        """Return the step that was begun last. Raises JobError, StoreError."""
        found = [one.name for one in self._store.list(self._prefix)]
        return self._read(found[-1]) if found else None

    def begin(self, step: ReplayStep) -> ReplayStep:
        """Begin a step. Return it, or the one that another job has begun under its number.

        Raises JobError, StoreError.
        """
        name = f"{self._prefix}{step.number:010d}.json"
        return step if self._store.create(name, msgspec.json.encode(step)) else self._read(name)

    def _read(self, name: str) -> ReplayStep:
        try:
            step = msgspec.json.decode(self._store.get(name), type=ReplayStep)
        except msgspec.DecodeError as error:
            raise JobError(f"{name} is not a step of a replay: {error}. Use another --name") from error
        if step.format != FORMAT:
            raise JobError(f"{name} has format {step.format}, this version knows {FORMAT} only")
        return step


def replay(
    spark: SparkSession, settings: Settings, what: ReplaySettings, notice: Notice | None = None
) -> Replayed:
    """Write what the table has now, and this replay has not written.

    Raises JobError, StoreError, PySparkException, and what the catalog raises.
    """
    load = partial(open_catalog(settings.lake).load_table, what.table)
    steps, first, until = checked_replay(settings, what)
    total, records, shown = sum(span.end - span.start for span in until.spans), 0, notice or Silent()

    def write(step: ReplayStep) -> None:
        nonlocal records
        # Upkeep deletes files that a table loaded an hour ago has.
        records += _write(_frame(spark, load(), step.spans), what, step)
        shown.progress(records, total)

    with watched(spark, shown, lambda: (records, total)):
        written = in_steps(steps, first, until, settings.job.offsets_per_commit, write)
    return Replayed(records, written, first.topic)


def checked_replay(settings: Settings, what: ReplaySettings) -> tuple[ReplaySteps, ReplayStep, Covered]:
    """Return the steps of a replay, the one to begin with, and what the table has. It needs no Spark session.

    Raises JobError if the replay cannot be, StoreError, and what the catalog raises.
    """
    load = partial(open_catalog(settings.lake).load_table, what.table)
    try:
        steps = ReplaySteps.of_table(load(), what.name)
    except NoSuchTableError as error:
        raise JobError(f"table {what.table}: {error}") from error
    # The table is loaded after the step, so that it has what the step has: also what another job has begun.
    newest, table = steps.newest(), load()
    _check_raw(table)
    until = covered(table)
    if until is None:
        raise JobError(f"table {what.table} has no records of a topic yet")
    first = newest or ReplayStep(FORMAT, uuid.uuid4().hex, what.to_topic or until.topic)
    check_goes_on(first, what.to_topic or until.topic, until)
    return steps, first, until


def check_goes_on(step: ReplayStep, topic: str, until: Covered) -> None:
    """Check that the replay can go on with a step, into this topic, of a table that has `until`.

    Raises JobError.
    """
    if step.topic != topic:
        raise JobError(f"the replay of this name writes to {step.topic}, not to {topic}: use another --name")
    ends = until.ends()
    for key, done in step.reached().ends().items():
        if key not in ends or ends[key].end < done.end:
            raise JobError(
                f"offsets up to {done.end} of {until.topic}-{done.partition} are written, and a restore has "
                "removed some of them from the table: use another --name, and another topic"
            )


def in_steps(
    steps: ReplaySteps,
    step: ReplayStep,
    until: Covered,
    most_offsets: int,
    write: Callable[[ReplayStep], None],
) -> int:
    """Write what is left of `until`, from `step` on; return the number of steps.

    Raises JobError, StoreError.
    """
    written = 0
    while True:
        if step.spans:
            write(step)
            written += 1
        following = step.following(until, most_offsets)
        if not (step.spans or following.spans):
            return written
        step = steps.begin(following)


def ahead(done: Covered, until: Covered) -> list[Span]:
    """Return the offsets of `until` after those that are done."""
    ends = {key: span.end for key, span in done.ends().items()}
    for span in until.spans:
        ends.setdefault(span.key, span.start)
    return [Span(*key, ends[key], last.end) for key, last in until.ends().items() if last.end > ends[key]]


def _check_raw(table: Table) -> None:
    """Check that values are as they were in the topic. Raises JobError."""
    columns = {field.name: field.field_type for field in table.schema().fields if field.name not in OURS}
    if columns != {"value": BinaryType()}:
        raise JobError(
            f"table {'.'.join(table.name())} has decoded values, of which records cannot be made again: only "
            "tables of format raw are written back"
        )


@dataclass(frozen=True)
class Records:
    """Reads the records of a step from the table's files. Executors get it pickled: it has no credentials."""

    files: RowFiles
    spans: tuple[Span, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the files that `mapInArrow` names, by the names of the source's columns."""
        for batch in batches:
            for url in batch.column(0).to_pylist():
                for rows in self.files.batches(url):
                    yield self.of(rows)

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return those rows of a batch that are in the spans."""
        logs = pa.array([_key(span.topic_id, span.partition) for span in self.spans])
        numbers = rows.column("_partition_index").cast(pa.string())
        ids = pc.fill_null(rows.column("_topic_id").cast(pa.string()), "")
        # Null for the rows of other partitions, which no filter takes.
        span = pc.index_in(pc.binary_join_element_wise(ids, numbers, "/"), logs)
        starts = pa.array([one.start for one in self.spans], pa.int64()).take(span)
        ends = pa.array([one.end for one in self.spans], pa.int64()).take(span)
        offsets = rows.column("_offset")
        kept = rows.filter(pc.and_(pc.greater_equal(offsets, starts), pc.less(offsets, ends)))
        return kept.select(list(_COLUMNS)).rename_columns(list(_COLUMNS.values())).cast(_ROWS)


def _key(topic_id: str | None, partition: int) -> str:
    return f"{topic_id or ''}/{partition}"


def _frame(spark: SparkSession, table: Table, spans: tuple[Span, ...]) -> DataFrame:
    """Return the records of a step, a task for each file that may have some. Raises JobError."""
    low, high = min(span.start for span in spans), max(span.end for span in spans)
    urls = []
    for task in table.scan(row_filter=f"_offset >= {low} and _offset < {high}").plan_files():
        if task.delete_files:
            raise JobError(
                f"another writer has deleted rows of {task.file.file_path} by files of deletes: rewrite the "
                "table's data files (Iceberg's rewrite_data_files), then start the replay again"
            )
        urls.append((task.file.file_path,))
    files = spark.createDataFrame(urls, "url string").repartition(max(len(urls), 1))
    return files.mapInArrow(Records(row_files(table), spans), from_arrow_schema(_ROWS))


def _write(frame: DataFrame, what: ReplaySettings, step: ReplayStep) -> int:
    """Write the records of a step; return their number. One task writes a former partition, in its order."""
    columns = ["key", "value", "headers", "timestamp", *(["partition"] if what.keep_partitions else ())]
    ordered = frame.repartition("partition").sortWithinPartitions("_topic_id", "partition", "offset")
    options = {**what.options, "topic": step.topic}
    if what.exactly_once:
        name = f"replay-{step.id}"
        options = {"sinkId": name, **options, "exactlyOnce": "true", "sinkBatch": f"{name}:{step.number}"}
    counted = Observation()
    rows = ordered.select(*columns).observe(counted, F.count(F.lit(1)).alias("records"))
    rows.write.format("mpbroker").mode("append").options(**options).save()
    return int(counted.get["records"])
