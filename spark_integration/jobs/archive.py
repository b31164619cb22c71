"""Archives topics as Parquet, each record once: the records of a run become visible by one rename.

A run records the ids of its topics. After a topic was deleted and recreated, the next run begins at the start
of the new topic. If that happens during a run, the run is dropped. `lake` describes the directory, and what
a crash leaves in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from json import dumps
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import DateType, IntegerType, StringType, StructField, StructType

from mpbroker.protocol.uuids import uuid_text
from mpbroker.reading.catalogs import open_catalog
from mpbroker.reading.errors import DataLoss
from mpbroker.reading.options import TopicPartition
from mpbroker.reading.plan import selected
from spark_integration.jobs.frame import JobError, Notice, Silent, Source, watched
from spark_integration.jobs.lake import Lake, Log, Span, opened
from spark_integration.schema import FIELDS

RECORDS_PER_RUN: Final = 20_000_000
PARTITIONINGS: Final = {
    "topic": ("topic",),
    "topic,date": ("topic", "date"),
    "topic,date,hour": ("topic", "date", "hour"),
}
_DAY_US: Final = 86_400_000_000
_HOUR_US: Final = 3_600_000_000


@dataclass(frozen=True)
class ArchiveSettings:
    """The topics to archive, the target, and its partitioning.

    A job with more than `records_per_run` records makes several runs.
    """

    source: Source
    target: Path
    partition_by: tuple[str, ...] = PARTITIONINGS["topic,date"]
    records_per_run: int = RECORDS_PER_RUN


@dataclass
class Result:
    """The result of `archive`."""

    records: int = 0
    runs: int = 0
    topics: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Slice:
    """The offsets of one run, by partition, and the topics' ids when the offsets were chosen."""

    spans: Mapping[TopicPartition, tuple[int, int]]
    ids: Mapping[str, str | None]

    @property
    def offsets(self) -> int:
        return sum(end - start for start, end in self.spans.values())

    def edges(self) -> dict[str, str]:
        """Return the options that read exactly these offsets."""
        topics: dict[str, list[int]] = {}
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for (topic, number), (start, end) in sorted(self.spans.items()):
            topics.setdefault(topic, []).append(number)
            starts.setdefault(topic, {})[str(number)] = start
            ends.setdefault(topic, {})[str(number)] = end
        return {"assign": dumps(topics), "startingOffsets": dumps(starts), "endingOffsets": dumps(ends)}


def archive(spark: SparkSession, settings: ArchiveSettings, notice: Notice | None = None) -> Result:
    """Archive the present records.

    Raises JobError, OptionError, SourceUnavailable, DataLoss, PySparkException, OSError.
    """
    with opened(settings.target) as lake:
        return _Archiving(spark, settings, lake, notice or Silent()).run()


class _Archiving:
    def __init__(self, spark: SparkSession, settings: ArchiveSettings, lake: Lake, notice: Notice) -> None:
        self._spark = spark
        self._settings = settings
        self._lake = lake
        self._notice = notice
        self._result = Result()

    def run(self) -> Result:
        reached = dict(self._lake.ends())
        whole = self._ahead(reached)
        total = whole.offsets
        self._notice.progress(0, total)
        left = whole
        while left.offsets:
            now = cut(left, self._settings.records_per_run)
            self._one_run(now, total)
            left = without(left, now)
        return self._result

    def _ahead(self, reached: Mapping[Log, int]) -> Slice:
        """Return the offsets to archive: from the last run's end, or the log's start, to the readable end."""
        options = self._settings.source.parsed()
        with closing(open_catalog(options)) as catalog:
            bounds = catalog.bounds(selected(catalog, options))
        spans, ids = {}, {}
        for (topic, number), (log_start, end, raw_id) in bounds.items():
            topic_id = None if raw_id is None else uuid_text(raw_id)
            start, is_new = where_to_begin(reached, (topic, topic_id, number), log_start)
            if is_new and topic not in ids:
                self._notice.say(f"topic {topic} was recreated: its archive continues with the new one")
            ids[topic] = topic_id
            if start > end:
                self._went_back(topic, number, start, end)
            elif end > start:
                spans[topic, number] = (start, end)
        return Slice(spans, ids)

    def _went_back(self, topic: str, number: int, reached: int, end: int) -> None:
        text = (
            f"{topic}-{number} is archived up to offset {reached}, but may be read up to {end} only. After a "
            "crash of the broker start it first; a recreated topic is recognised by its id, which needs its "
            "files or a broker that knows ids"
        )
        if self._settings.source.fail_on_data_loss:
            raise DataLoss(text)
        self._notice.say(f"{text}. Continuing without it")

    def _one_run(self, now: Slice, total: int) -> None:
        place = self._lake.new_place()
        try:
            with watched(self._spark, self._notice, lambda: (self._result.records, total)):
                self._write(self._frame(now), place)
            spans = self._written(now, place)
            self._check_ids(now)
            if any(span.records for span in spans):
                self._lake.commit(place, spans)
                self._result.runs += 1
        finally:
            self._lake.drop(place)
        self._result.records += sum(span.records for span in spans)
        self._result.topics |= {span.topic for span in spans if span.records}
        self._notice.progress(self._result.records, total)

    def _frame(self, now: Slice) -> DataFrame:
        source = self._settings.source
        options = {**source.options(), "includeHeaders": "true"}
        for strategy in ("subscribe", "subscribePattern"):
            options.pop(strategy, None)
        frame = self._spark.read.format("mpbroker").options(**options, **now.edges()).load()
        names = [part for topic, text in sorted(now.ids.items()) for part in (topic, text)]
        ids = F.create_map(*(F.lit(part).cast("string") for part in names))
        frame = frame.withColumn("topicId", ids[F.col("topic")])
        made = {"date": _date(F.col("timestamp")), "hour": _hour(F.col("timestamp"))}
        for name in self._settings.partition_by:
            if name in made:
                frame = frame.withColumn(name, made[name])
        return frame

    def _write(self, frame: DataFrame, place: Path) -> None:
        writer = frame.write.mode("append").partitionBy(*self._settings.partition_by)
        with as_microseconds(self._spark):
            writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(str(place))

    def _written(self, now: Slice, place: Path) -> list[Span]:
        """Return each partition's offsets and number of records in the run's files. Raises JobError."""
        counts = counted(self._spark, place)
        spans = []
        for (topic, number), (start, end) in now.spans.items():
            records, first, last = counts.pop((topic, number), (0, start, start - 1))
            if first < start or last >= end or records > end - start:
                raise JobError(
                    f"the files of a run have {records} records of {topic}-{number}, offsets {first} to "
                    f"{last}, where [{start}, {end}) was asked for. Nothing of it was kept; report this"
                )
            if not self._settings.source.fail_on_data_loss:
                # Skipped records may come back (a disk, a directory), so the state never passes over them.
                end = last + 1
            if end > start:
                spans.append(Span(topic, now.ids[topic], number, start, end, records))
        if counts:
            raise JobError(f"the files of a run have records of {sorted(counts)}, which are not part of it")
        return spans

    def _check_ids(self, now: Slice) -> None:
        """Check that topic ids did not change during the run. Raises JobError."""
        options = self._settings.source.parsed()
        with closing(open_catalog(options)) as catalog:
            there = {one for one in selected(catalog, options) if one in now.spans}
            bounds = catalog.bounds(sorted(there))
        for topic, number in now.spans:
            found = bounds.get((topic, number))
            topic_id = None if found is None or found.topic_id is None else uuid_text(found.topic_id)
            if found is None or topic_id != now.ids[topic]:
                raise JobError(
                    f"topic {topic} was deleted or recreated while it was archived: nothing of this run was "
                    "kept. Run the job again"
                )


def where_to_begin(reached: Mapping[Log, int], log: Log, log_start: int) -> tuple[int, bool]:
    """Return the first offset to archive, and whether the topic was archived under another id before.

    If one of the two ids is unknown, the topic is taken to be the same topic as before.
    """
    topic, topic_id, number = log
    if log in reached:
        return reached[log], False
    known = {an_id for name, an_id, _ in reached if name == topic}
    if topic_id is None or known == {None}:
        ends = [end for (name, _, part), end in reached.items() if (name, part) == (topic, number)]
        return (ends[-1] if ends else log_start), False
    return log_start, bool(known) and topic_id not in known


def cut(whole: Slice, most: int) -> Slice:
    """Return the first `most` offsets or so of a slice, from each partition in proportion."""
    if whole.offsets <= most:
        return whole
    spans = {
        one: (start, start + max(1, (end - start) * most // whole.offsets))
        for one, (start, end) in whole.spans.items()
    }
    return Slice(spans, whole.ids)


def without(whole: Slice, done: Slice) -> Slice:
    """Return the part of a slice above the part that is done."""
    spans = {one: (done.spans[one][1], end) for one, (_, end) in whole.spans.items()}
    return Slice({one: (start, end) for one, (start, end) in spans.items() if end > start}, whole.ids)


def counted(spark: SparkSession, *places: Path) -> dict[TopicPartition, tuple[int, int, int]]:
    """Return (number of records, first offset, last offset) by partition, from the Parquet files of runs."""
    if not any(any(place.rglob("*.parquet")) for place in places):
        return {}
    # Without a schema Spark would take a topic named 0001 for a number.
    frame = spark.read.schema("topic string, `partition` int, `offset` long").parquet(*map(str, places))
    rows = frame.groupBy("topic", "partition").agg(F.count("*"), F.min("offset"), F.max("offset")).collect()
    return {(row[0], row[1]): (row[2], row[3], row[4]) for row in rows}


@contextmanager
def as_microseconds(spark: SparkSession) -> Iterator[None]:
    """Set Spark to write timestamps in the type that all readers of Parquet support, not as INT96."""
    name = "spark.sql.parquet.outputTimestampType"
    before = spark.conf.get(name)
    spark.conf.set(name, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        spark.conf.set(name, str(before))


def file_schema(partition_by: Sequence[str]) -> StructType:
    """Return the columns in the Parquet files, then the `partition_by` columns, which name directories."""
    of_directories = {
        "topic": FIELDS["topic"],
        "date": StructField("date", DateType()),
        "hour": StructField("hour", IntegerType()),
    }
    in_files = [field for name, field in FIELDS.items() if name not in partition_by]
    ids = StructField("topicId", StringType())
    return StructType([*in_files, ids, *(of_directories[name] for name in partition_by)])


def _date(timestamp: Column) -> Column:
    """Return the date in UTC, whatever the time zone of the session is."""
    return F.date_from_unix_date(F.floor(F.unix_micros(timestamp) / _DAY_US).cast("int"))


def _hour(timestamp: Column) -> Column:
    return F.pmod(F.floor(F.unix_micros(timestamp) / _HOUR_US), F.lit(24)).cast("int")


def partitioning(text: str) -> Sequence[str]:
    """Parse `topic`, `topic,date` or `topic,date,hour` into columns. Raises JobError."""
    if text not in PARTITIONINGS:
        raise JobError(f"--partition-by is {', '.join(PARTITIONINGS)}; not '{text}'")
    return PARTITIONINGS[text]
