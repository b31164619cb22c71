"""Brings tables up to their topics, again and again: each record once, by the offsets in the tables.

The table is the only state. A job that is killed anywhere continues where the newest snapshot ends, and two
jobs do no harm: of two commits one is refused, and its job plans anew.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import parse_transform
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from mpbroker.reading.catalogs import open_catalog as open_topics
from mpbroker.reading.errors import LOSS_ADVICE, DataLoss, SourceUnavailable
from mpbroker.reading.plan import Catalog
from spark_integration.jobs.frame import JobError, Notice, Silent, sentence_of, watched
from spark_integration.tables import values
from spark_integration.tables.catalog import open_catalog
from spark_integration.tables.commit import Batch, Overtaken, commit
from spark_integration.tables.data_files import TIMESTAMP, Written, write
from spark_integration.tables.planning import Step, epochs_of, id_text, plan_step
from spark_integration.tables.progress import TableProgress
from spark_integration.tables.settings import Settings, TableSettings, expanded
from spark_integration.tables.spans import NO_EPOCH, Covered, covered
from spark_integration.tables.turns import Outcome, Turns
from spark_integration.tables.upkeep import Upkeep

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog as IcebergCatalog
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

# How old what is known of topics may be when a commit is planned.
LOOK_EVERY_S: Final = 5.0
# Iceberg's ids of partition fields begin there.
_FIRST_PARTITION_FIELD: Final = 1000
_PROPERTIES: Final = {
    "write.parquet.compression-codec": "zstd",
    # A table of one commit a minute would have a thousand manifests after a day.
    "commit.manifest-merge.enabled": "true",
}
_LOG = logging.getLogger("mpbroker.spark")


@dataclass
class Done:
    """Counts of a job since its start."""

    rows: int = 0
    error_rows: int = 0
    commits: int = 0


class TablesJob:
    """The job. It needs a session of Spark."""

    def __init__(self, spark: SparkSession, settings: Settings, notice: Notice | None = None) -> None:
        """Open the catalog. Raises StoreRefused, OptionError."""
        self._spark = spark
        self._settings = settings
        self._notice = notice or Silent()
        self._topics = _Topics(settings)
        self._tables: Sequence[TableSettings] = ()
        self._clashes: Sequence[str] = ()
        # A catalog of pyiceberg is used by one thread.
        self._catalogs = threading.local()
        self._catalogs.own = open_catalog(settings.lake)
        self._run = uuid.uuid4().hex
        self._numbers = count(1)
        self._upkeep = Upkeep(spark, self._notice)
        self._progress: dict[str, TableProgress] = {}
        # By table: the offsets that are being written.
        self._under_way: dict[str, int] = {}
        self._lock = threading.Lock()
        self.done = Done()

    def run(self, is_stopped: Callable[[], bool] = lambda: False, *, once: bool = False) -> None:
        """Go on until `is_stopped`; with `once`, until all that is there now is in the tables.

        A table that cannot be written is named, and tried again after the interval. Raises JobError at the
        end of `once` if there is one; SourceUnavailable, OptionError if nothing can be read at all, the
        former only for `once`.
        """
        job = self._settings.job
        turns = Turns(self._turn, job.tables_at_once, job.interval_s)
        with closing(self._topics):
            failed = turns.run(partial(self._look, once=once), is_stopped, once=once)
        failed = [*self._clashes, *failed]
        if once and failed and not is_stopped():
            raise JobError(f"not up to date: {'; '.join(failed)}")

    def _look(self, *, once: bool) -> Sequence[TableSettings]:
        """Return the tables of the topics that there are now."""
        # A table's turn comes with a catalog that knows its topic, too.
        self._topics.renew()
        try:
            with self._topics.catalog() as topics:
                names = list(topics.topics())
        except SourceUnavailable as error:
            if once:
                raise
            self._notice.say(f"{error}; trying again in {self._settings.job.interval_s:g} s")
            return self._tables
        self._tables, self._clashes = expanded(self._settings, names)
        for problem in self._clashes:
            self._notice.say(problem)
        return self._tables

    def _turn(self, table: TableSettings, at_once: int) -> Outcome:
        """Make one commit to a table that has something to get; it is one of so many at this time."""
        try:
            return Outcome(self._step(table, at_once))
        except Exception as error:  # noqa: BLE001 - what catalogs and Spark raise has nothing in common
            _LOG.debug("table %s", table.name, exc_info=True)
            problem = f"{table.name}: {sentence_of(error)}"
            self._notice.say(problem)
            self._progress_of(table).failed(sentence_of(error))
            return Outcome(False, problem)

    def _step(self, declared: TableSettings, at_once: int) -> bool:
        """Make one commit, if there is something to get; return whether nothing is left after it."""
        table = self._table(declared)
        before = covered(table) or Covered(declared.topic)
        if before.topic != declared.topic:
            raise JobError(f"the table has topic {before.topic}, not {declared.topic}: name another one")
        with self._topics.catalog() as topics:
            step = self._plan(before, declared, topics)
        self._report(step)
        if not (step.spans or step.cut):
            self._progress_of(declared).reached(table, step.topic_id)
            return True
        try:
            table, files = self._written(table, declared, step, at_once)
            self._check_ids(declared.topic, step)
            batch = Batch(self._run, next(self._numbers), before, step.spans, files, step.cut)
            table = commit(partial(self._catalog.load_table, declared.name), batch)
        except Overtaken as error:
            self._notice.say(f"{error}: planning again")
            return False
        error_rows = sum(one.error_rows for one in files)
        with self._lock:
            self.done.commits += 1
            self.done.rows += sum(one.footer.num_rows for one in files)
            self.done.error_rows += error_rows
        self._notice.progress(*self._so_far())
        self._progress_of(declared).reached(table, step.topic_id, error_rows)
        self._upkeep.committed(table)
        return step.is_whole

    def _plan(self, before: Covered, declared: TableSettings, topics: Catalog) -> Step:
        """Plan the next commit. Raises SourceUnavailable, CorruptLog."""
        wanted = [(declared.topic, number) for number in topics.partitions(declared.topic)]
        topic_id = next(iter(topics.bounds(wanted[:1]).values())).topic_id
        known = epochs_of(before, topic_id)
        lineages = topics.lineages({one: known.get(one[1], NO_EPOCH) for one in wanted})
        bounds = _by_number(topics.bounds(wanted))
        most = self._settings.job.offsets_per_commit
        return plan_step(before, bounds, _by_number(lineages), most)

    def _report(self, step: Step) -> None:
        """Tell what a step waits for, has lost or replaces. Raises DataLoss."""
        for text in step.ahead:
            self._notice.say(f"{text}: waiting")
        if step.lost and self._settings.job.fail_on_data_loss:
            raise DataLoss(f"{'; '.join(step.lost)} were removed before the table had them. {LOSS_ADVICE}")
        for text in step.lost:
            self._notice.say(f"{text} were removed before the table had them")
        for (_, number), at in step.cut.items():
            self._notice.say(
                f"partition {number} was restored to offset {at}: rows from there on are replaced"
            )

    def _written(
        self, table: Table, declared: TableSettings, step: Step, at_once: int
    ) -> tuple[Table, Sequence[Written]]:
        """Write the rows of a step, after the changes of the table's schema that they need.

        Raises Overtaken if another writer has changed the table's schema since.
        """
        if not step.spans:
            return table, ()
        # With spark.scheduler.mode=FAIR Spark's tasks come from all pools in turn.
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", declared.name)
        how = values.value_settings(declared.values, self._settings.directory)
        frame = self._frame(declared.topic, step, at_once)
        ids = values.schema_ids(frame, how)
        plan = values.plan_rows(how, table.schema(), ids, [field.name for field in table.spec().fields])
        if plan.changes:
            try:
                with table.update_schema() as update:
                    update.union_by_name(plan.schema)
            except CommitFailedException as error:
                raise Overtaken(f"{declared.name}: another writer has changed the table") from error
            self._notice.say(f"{declared.name}: {'; '.join(plan.changes)}")
            table = self._catalog.load_table(declared.name)
        self._under_way[declared.name] = sum(span.end - span.start for span in step.spans)
        try:
            with watched(self._spark, self._notice, self._so_far):
                return table, write(frame, table, plan.rows.of)
        finally:
            del self._under_way[declared.name]

    def _so_far(self) -> tuple[int, int]:
        """Return how many rows are in tables, and how many will be after the commits under way."""
        return self.done.rows, self.done.rows + sum(list(self._under_way.values()))

    def _frame(self, topic: str, step: Step, at_once: int) -> DataFrame:
        options = {**self._settings.source, **step.edges(topic), "includeHeaders": "true"}
        frame = self._spark.read.format("mpbroker").options(**options).load()
        # More tasks than run at once would only make more files, and leave no core to other tables.
        frame = frame.coalesce(max(self._spark.sparkContext.defaultParallelism // at_once, 1))
        return frame.withColumn("_topic_id", F.lit(step.spans[0].topic_id).cast("string"))

    def _check_ids(self, topic: str, step: Step) -> None:
        """Check that the topic is still the one that was planned. Raises JobError."""
        numbers = [span.partition for span in step.spans]
        with closing(open_topics(self._settings.options())) as topics:
            there = set(topics.partitions(topic)).intersection(numbers)
            bounds = topics.bounds([(topic, number) for number in sorted(there)])
        ids = {number: id_text(found.topic_id) for (_, number), found in bounds.items()}
        if any(ids.get(span.partition, "") != span.topic_id for span in step.spans):
            raise JobError(f"topic {topic} was deleted or recreated while it was read: nothing was committed")

    @property
    def _catalog(self) -> IcebergCatalog:
        """Return the catalog of this thread."""
        if not hasattr(self._catalogs, "own"):
            self._catalogs.own = open_catalog(self._settings.lake)
        found: IcebergCatalog = self._catalogs.own
        return found

    def _table(self, declared: TableSettings) -> Table:
        """Load a table; make it if it is not there."""
        try:
            return self._catalog.load_table(declared.name)
        except NoSuchTableError:
            pass
        identifier = tuple(declared.name.split("."))
        schema = values.created(values.value_settings(declared.values, self._settings.directory))
        self._catalog.create_namespace_if_not_exists(identifier[:-1])
        return self._catalog.create_table_if_not_exists(
            identifier,
            schema,
            location=self._settings.lake.url(identifier),
            partition_spec=_spec(declared.partition_by, schema.find_field(TIMESTAMP).field_id),
            properties=_PROPERTIES,
        )

    def _progress_of(self, declared: TableSettings) -> TableProgress:
        if declared.name not in self._progress:
            self._progress[declared.name] = TableProgress(declared.name, self._settings.options())
        return self._progress[declared.name]


class _Topics:
    """Lends catalogs of topics, each to one thread at a time. They are some seconds old at most."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # With the times at which they were opened.
        self._idle: list[tuple[float, Catalog]] = []
        self._since_s = 0.0

    def renew(self) -> None:
        """Lend no catalog again that was opened before this call."""
        self._since_s = time.monotonic()

    @contextmanager
    def catalog(self) -> Iterator[Catalog]:
        """Lend an idle catalog, or a new one. Raises SourceUnavailable, OptionError."""
        opened_s, found = self._popped() or (time.monotonic(), open_topics(self._settings.options()))
        try:
            yield found
        finally:
            self._idle.append((opened_s, found))

    def _popped(self) -> tuple[float, Catalog] | None:
        with suppress(IndexError):
            while True:
                opened_s, found = self._idle.pop()
                if opened_s >= max(self._since_s, time.monotonic() - LOOK_EVERY_S):
                    return opened_s, found
                found.close()
        return None

    def close(self) -> None:
        """Close those that are idle."""
        while self._idle:
            self._idle.pop()[1].close()


def _spec(unit: str, source_id: int) -> PartitionSpec:
    if unit == "none":
        return PartitionSpec()
    field = PartitionField(source_id, _FIRST_PARTITION_FIELD, parse_transform(unit), f"{TIMESTAMP}_{unit}")
    return PartitionSpec(field)


def _by_number(found: Mapping[tuple[str, int], Any]) -> dict[int, Any]:
    return {number: one for (_, number), one in found.items()}
