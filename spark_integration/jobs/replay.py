"""Writes an archive back into topics: keys, values, headers and timestamps, each partition in its old order.

A replay writes the records of one run of the archive in each step. A step is recorded before it is written,
as offsets and not as files, because the archive may be compacted in between. After a job was killed, the next
job repeats the recorded step. Thus each record is written at least once; with the sink's exactlyOnce exactly
once, because the sink knows by the step's number whether the step was committed.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from spark_integration.jobs.archive import file_schema
from spark_integration.jobs.frame import JobError, Notice, Silent, watched
from spark_integration.jobs.lake import FORMAT, Lake, Log, Run, Span, joined, locked, sync

_PREFIX = "_replay-"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True)
class ReplaySettings:
    """The records to write, and their target.

    The archive keeps the progress of a replay under its `name`. `topics` are replayed; if empty, all are.
    `to_topic` gets all records; without it, topics keep their names. `keep_partitions` writes into the
    partition of the same number, which has to exist. `options` are the sink's.
    """

    archive: Path
    options: dict[str, str] = field(default_factory=dict, repr=False)
    name: str = "replay"
    topics: tuple[str, ...] = ()
    to_topic: str | None = None
    keep_partitions: bool = False
    exactly_once: bool = False


@dataclass(frozen=True)
class Replayed:
    """The records and steps that a call of `replay` has written."""

    records: int = 0
    steps: int = 0


class Progress(msgspec.Struct, frozen=True):
    """A replay's progress, as in its file. `id` is a part of the sink's id, `step` the next step's number."""

    format: int
    id: str
    topics: tuple[str, ...]
    to_topic: str | None
    step: int = 0
    done: tuple[Span, ...] = ()
    next: tuple[Span, ...] = ()

    def finished(self) -> Progress:
        """Return the progress after the next step was written."""
        done = joined([*self.done, *self.next])
        return msgspec.structs.replace(self, step=self.step + 1, done=done, next=())


def replay(spark: SparkSession, settings: ReplaySettings, notice: Notice | None = None) -> Replayed:
    """Write what the replay `settings.name` has not written. Raises JobError, PySparkException, OSError."""
    if not _NAME.fullmatch(settings.name):
        raise JobError(f"a name is of letters, digits, '.', '_' and '-', at most 100; not '{settings.name}'")
    if not (settings.archive / "data").is_symlink():
        raise JobError(
            f"{settings.archive} is not an archive. Name the --to directory of mpbroker spark archive"
        )
    with locked(settings.archive, f"{_PREFIX}{settings.name}.lock"):
        return _replay(spark, settings, notice or Silent())


def _replay(spark: SparkSession, settings: ReplaySettings, notice: Notice) -> Replayed:
    file = settings.archive / f"{_PREFIX}{settings.name}.json"
    progress = _read(file, settings)
    generation, runs = _now(settings.archive)
    total = sum(run.state.records for run in runs if _ahead(run, progress, settings))
    records = steps = 0
    while progress.next or (spans := _next(runs, progress, settings)):
        if not progress.next:
            progress = msgspec.structs.replace(progress, next=spans)
            _save(file, progress)
        chosen = [generation / run.path.name for run in runs if _overlaps(run, progress.next)]
        with watched(spark, notice, lambda: (records, total)):  # noqa: B023 - it ends in this turn
            _write(_frame(spark, chosen, progress.next), settings, progress)
        records += sum(span.records for span in progress.next)
        progress = progress.finished()
        _save(file, progress)
        steps += 1
        notice.progress(records, total)
    return Replayed(records, steps)


def _now(archive: Path) -> tuple[Path, list[Run]]:
    """Return the directory of the runs that readers see, and these runs.

    The directory is not removed until the archive has been compacted twice.
    """
    lake = Lake(archive)
    while True:
        generation, runs = lake.data.resolve(), lake.runs()
        if lake.data.resolve() == generation:
            return generation, runs


def _next(runs: list[Run], progress: Progress, settings: ReplaySettings) -> tuple[Span, ...]:
    """Return the unwritten offsets of the first run that has any; an empty tuple if no run has."""
    return next((spans for run in runs if (spans := _ahead(run, progress, settings))), ())


def _ahead(run: Run, progress: Progress, settings: ReplaySettings) -> tuple[Span, ...]:
    ends = {span.log: span.end for span in progress.done}
    found = []
    for span in run.state.spans:
        start = max(span.start, ends.get(span.log, 0))
        if span.records and _is_wanted(span.topic, settings) and span.end > start:
            found.append(Span(*span.log, start, span.end, min(span.records, span.end - start)))
    return tuple(found)


def _overlaps(run: Run, wanted: tuple[Span, ...]) -> bool:
    spans = {span.log: span for span in run.state.spans if span.records}
    return any(
        one.log in spans and spans[one.log].start < one.end and spans[one.log].end > one.start
        for one in wanted
    )


def _is_wanted(topic: str, settings: ReplaySettings) -> bool:
    return not settings.topics or topic in settings.topics


def _frame(spark: SparkSession, paths: list[Path], wanted: tuple[Span, ...]) -> DataFrame:
    """Return the records below `paths` whose topic, topic id, partition and offset are in `wanted`."""
    # With one schema Spark takes no topic named 0001 for a number. Dates and hours are not needed here.
    reader = spark.read.schema(file_schema(("topic",))).option("basePath", str(paths[0].parent))
    frame = reader.parquet(*map(str, paths))
    edges = [F.lit(part) for span in wanted for part in (_key(span.log), [span.start, span.end])]
    key = F.concat_ws("/", F.col("topic"), F.coalesce("topicId", F.lit("")), F.col("partition"))
    edge = F.create_map(*edges)[key]
    return frame.where((F.col("offset") >= edge[0]) & (F.col("offset") < edge[1]))


def _key(log: Log) -> str:
    topic, topic_id, number = log
    return f"{topic}/{topic_id or ''}/{number}"


def _write(frame: DataFrame, settings: ReplaySettings, progress: Progress) -> None:
    columns = ["topic", "key", "value", "headers", "timestamp"]
    if settings.keep_partitions:
        columns.append("partition")
    # One task writes each former partition, in its order.
    order = ("topic", "topicId", "partition", "offset")
    ordered = frame.repartition("topic", "partition").sortWithinPartitions(*order)
    chosen = ordered.select(*columns)
    if settings.to_topic is not None:
        chosen = chosen.withColumn("topic", F.lit(settings.to_topic))
    options = dict(settings.options)
    if settings.exactly_once:
        name = f"replay-{progress.id}"
        options = {"sinkId": name, **options, "exactlyOnce": "true", "sinkBatch": f"{name}:{progress.step}"}
    chosen.write.format("mpbroker").mode("append").options(**options).save()


def _read(file: Path, settings: ReplaySettings) -> Progress:
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Progress)
    except FileNotFoundError:
        return Progress(FORMAT, uuid.uuid4().hex, settings.topics, settings.to_topic)
    except msgspec.DecodeError as error:
        raise JobError(f"{file} cannot be read: {error}. Remove it to replay everything again") from error
    if found.format != FORMAT:
        raise JobError(f"{file} has format {found.format}, this version knows {FORMAT} only")
    if (found.topics, found.to_topic) != (settings.topics, settings.to_topic):
        before = f"{', '.join(found.topics) or 'all'} to {found.to_topic or 'those of their names'}"
        raise JobError(
            f"the replay named {settings.name} began with other topics, from {before}. "
            "Give this one another name"
        )
    return found


def _save(file: Path, progress: Progress) -> None:
    making = file.with_suffix(".tmp")
    making.write_bytes(msgspec.json.format(msgspec.json.encode(progress)))
    sync(making)
    making.rename(file)
    sync(file.parent)
