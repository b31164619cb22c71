"""Audits whether a log is whole: gaps, duplicates and checksums of every batch.

The files are read by as many tasks as there are segments.

A gap is a range of offsets that no batch contains. Compaction may have removed offsets below the cleaner's
checkpoint; a gap above the checkpoint is a hole. Control records and aborted records are not gaps, because
their batches exist. A duplicate is a batch with the same producer id, epoch and sequence as another batch of
the partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from mpbroker.reading.headers import HEADERS, ReadableLog, Segment, headers, readable_logs
from spark_integration.jobs.frame import Notice, Silent, Source

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

# Findings of each kind that are listed; all are counted.
LISTED: Final = 1000
BUCKETS: Final = 120
_SECOND_MS: Final = 1000
_WIDTHS_MS: Final = tuple(
    seconds * _SECOND_MS for seconds in (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 21_600, 86_400, 604_800)
)
_DDL: Final = (
    "topic string, `partition` int, file string, position long, bytes long, firstOffset long, "
    "lastOffset long, records int, firstTimeMs long, lastTimeMs long, isControl boolean, producerId long, "
    "producerEpoch int, sequence int, codec int, fault string"
)


@dataclass
class PartitionAudit:
    """The results of an audit for a partition.

    `compacted` counts the offsets that compaction removed, `missing` the offsets in holes.
    """

    topic: str
    partition: int
    log_start: int
    end: int
    segments: int
    batches: int = 0
    records: int = 0
    control_batches: int = 0
    bytes: int = 0
    first_time_ms: int | None = None
    last_time_ms: int | None = None
    compacted: int = 0
    missing: int = 0
    duplicates: int = 0
    faults: int = 0


@dataclass(frozen=True)
class Gap:
    """Offsets [start, end) that are in no batch. `kind` is compaction or hole."""

    topic: str
    partition: int
    start: int
    end: int
    kind: str


@dataclass(frozen=True)
class Duplicate:
    """A batch that occurs `times` times, identified by producer id, epoch and sequence."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    sequence: int
    times: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True)
class Fault:
    """Bytes that are no whole batch."""

    topic: str
    partition: int
    file: str
    position: int
    text: str


@dataclass
class Audit:
    """The findings of an audit.

    `throughput` counts the records of each topic in intervals of `bucket_ms`, from `begins_ms` on.
    """

    partitions: list[PartitionAudit]
    gaps: list[Gap] = field(default_factory=list)
    duplicates: list[Duplicate] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    begins_ms: int = 0
    bucket_ms: int = _SECOND_MS
    throughput: dict[str, list[int]] = field(default_factory=dict)
    repeated_keys: dict[str, int] | None = None

    @property
    def is_whole(self) -> bool:
        """Return whether nothing is missing, duplicated or damaged."""
        return not any(one.missing or one.duplicates or one.faults for one in self.partitions)

    def document(self) -> dict[str, Any]:
        """Return the audit as a document for JSON."""
        return {"is_whole": self.is_whole, **asdict(self)}


def audit(spark: SparkSession, source: Source, notice: Notice | None = None, *, keys: bool = False) -> Audit:
    """Read every batch and return the findings.

    With `keys`, also count records whose key an earlier record of the topic has.

    Raises SourceUnavailable, OptionError, PySparkException.
    """
    from mpbroker.reading.options import parse_options

    whole = readable_logs(parse_options(source.options(**{"kafka.isolation.level": "read_uncommitted"})))
    found = Audit([PartitionAudit(*log[:4], len(log.segments)) for log in whole])
    segments = [segment for log in whole for segment in log.segments]
    if segments:
        frame = batches(spark, segments).persist()
        try:
            (notice or Silent()).progress(0, sum(log.end - log.start for log in whole))
            _fill(found, frame, whole)
        finally:
            frame.unpersist()
    if keys and any(one.faults for one in found.partitions):
        (notice or Silent()).say("keys are not counted: the records of damaged batches cannot be read")
    elif keys:
        found.repeated_keys = _repeated_keys(spark, source)
    (notice or Silent()).progress(sum(one.records for one in found.partitions), None)
    return found


def batches(spark: SparkSession, segments: Sequence[Segment]) -> DataFrame:
    """Return the headers of the batches as a table, with one task for each segment."""
    wanted = list(segments)

    def scan(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from headers(wanted[number])

    # Spark checks the batches against this schema, so both must have the same columns.
    assert len(HEADERS) == _DDL.count(",") + 1
    return spark.range(0, len(wanted), 1, len(wanted)).mapInArrow(scan, _DDL)


def _fill(found: Audit, frame: DataFrame, whole: Sequence[ReadableLog]) -> None:
    by_name = {(one.topic, one.partition): one for one in found.partitions}
    bounds = {(log.topic, log.partition): log for log in whole}
    _numbers(frame, by_name)
    for gap in _gaps(frame, bounds):
        one = by_name[gap.topic, gap.partition]
        if gap.kind == "compaction":
            one.compacted += gap.end - gap.start
        else:
            one.missing += gap.end - gap.start
        found.gaps.append(gap)
    found.gaps = sorted(found.gaps, key=lambda gap: (gap.kind != "hole", gap.topic, gap.partition, gap.start))
    found.gaps = found.gaps[:LISTED]
    _duplicates(found, frame, by_name)
    rows = frame.where("fault is not null").orderBy("topic", "partition", "file", "position").limit(LISTED)
    found.faults = [
        Fault(row.topic, row.partition, row.file, row.position, row.fault) for row in rows.collect()
    ]
    _throughput(found, frame)


def _numbers(frame: DataFrame, by_name: Mapping[tuple[str, int], PartitionAudit]) -> None:
    data = F.col("isControl") == F.lit(False)
    covered = F.col("lastOffset") - F.col("firstOffset") + 1
    rows = frame.groupBy("topic", "partition").agg(
        F.count("firstOffset").alias("batches"),
        F.coalesce(F.sum(F.when(data, F.col("records"))), F.lit(0)).alias("records"),
        F.count_if(F.col("isControl")).alias("control_batches"),
        F.coalesce(F.sum("bytes"), F.lit(0)).alias("bytes"),
        F.min(F.when(data, F.col("firstTimeMs"))).alias("first_time_ms"),
        F.max(F.when(data, F.col("lastTimeMs"))).alias("last_time_ms"),
        F.count("fault").alias("faults"),
        # Records that compaction took out of batches.
        F.coalesce(F.sum(F.when(data, covered - F.col("records"))), F.lit(0)).alias("compacted"),
    )
    for row in rows.collect():
        one = by_name[row.topic, row.partition]
        for name in rows.columns[2:]:
            setattr(one, name, row[name])


def _gaps(frame: DataFrame, bounds: Mapping[tuple[str, int], ReadableLog]) -> Iterator[Gap]:
    """Yield the gaps between batches, before the first and after the last."""
    in_order = Window.partitionBy("topic", "partition").orderBy("firstOffset")
    there = frame.where("firstOffset is not null")
    ahead = there.withColumn("start", F.lag("lastOffset").over(in_order) + 1)
    rows = ahead.where("start < firstOffset").select("topic", "partition", "start", "firstOffset").collect()
    for topic, number, start, end in sorted(map(tuple, rows)):
        yield from _classified(bounds[topic, number], start, end)
    ends = there.groupBy("topic", "partition").agg(F.min("firstOffset"), F.max("lastOffset")).collect()
    seen = {(row[0], row[1]): (row[2], row[3] + 1) for row in ends}
    for one, log in sorted(bounds.items()):
        first, next_offset = seen.get(one, (log.end, log.end))
        yield from _classified(log, log.start, first)
        yield from _classified(log, next_offset, log.end)


def _classified(log: ReadableLog, start: int, end: int) -> Iterator[Gap]:
    """Split a gap at the cleaner's checkpoint: compaction removed the part below, the rest is a hole."""
    start = max(start, log.start)
    middle = min(max(log.cleaned, start), end)
    if middle > start:
        yield Gap(log.topic, log.partition, start, middle, "compaction")
    if end > middle:
        yield Gap(log.topic, log.partition, middle, end, "hole")


def _duplicates(found: Audit, frame: DataFrame, by_name: Mapping[tuple[str, int], PartitionAudit]) -> None:
    numbered = ("topic", "partition", "producerId", "producerEpoch", "sequence")
    there = frame.where("producerId >= 0 and sequence >= 0 and not isControl").groupBy(*numbered)
    several = there.agg(F.count("*").alias("times"), F.min("firstOffset"), F.max("firstOffset"))
    several = several.where("times > 1").persist()
    try:
        for row in several.groupBy("topic", "partition").agg(F.sum(F.col("times") - 1)).collect():
            by_name[row[0], row[1]].duplicates = row[2]
        listed = several.orderBy(*numbered).limit(LISTED).collect()
    finally:
        several.unpersist()
    found.duplicates = [Duplicate(*row) for row in listed]


def _throughput(found: Audit, frame: DataFrame) -> None:
    """Count records in about 120 intervals of a round length."""
    times = [
        (one.first_time_ms, one.last_time_ms)
        for one in found.partitions
        if one.first_time_ms is not None and one.last_time_ms is not None
    ]
    if not times:
        return
    first, last = min(low for low, _ in times), max(high for _, high in times)
    widths = [width for width in _WIDTHS_MS if (last - first) // width < BUCKETS]
    found.bucket_ms = widths[0] if widths else (last - first) // BUCKETS + 1
    found.begins_ms = first - first % found.bucket_ms
    number = F.floor((F.col("lastTimeMs") - found.begins_ms) / found.bucket_ms)
    rows = frame.where("not isControl").groupBy("topic", number.alias("bucket")).agg(F.sum("records"))
    count = (last - found.begins_ms) // found.bucket_ms + 1
    for topic, bucket, records in sorted(map(tuple, rows.collect())):
        found.throughput.setdefault(topic, [0] * count)[min(max(bucket, 0), count - 1)] += records


def _repeated_keys(spark: SparkSession, source: Source) -> dict[str, int]:
    """Return how many records of each topic have a key that an earlier record has, too."""
    frame = spark.read.format("mpbroker").options(**source.options(columns="topic,key")).load()
    keys = frame.where("key is not null").groupBy("topic", "key").agg((F.count("*") - 1).alias("again"))
    rows = keys.groupBy("topic").agg(F.sum("again")).collect()
    return {row[0]: row[1] for row in sorted(rows)}
