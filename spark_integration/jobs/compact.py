"""Rewrites an archive's many small files as few large ones; readers see the old or the new ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from spark_integration.jobs.archive import as_microseconds, counted, file_schema
from spark_integration.jobs.frame import JobError, Notice, Silent, watched
from spark_integration.jobs.lake import Lake, Run, joined, opened

FILE_BYTES: Final = 128 << 20


@dataclass(frozen=True)
class Compacted:
    """The result of a compaction; all numbers are 0 if there was nothing to do."""

    runs: int = 0
    files_before: int = 0
    files_after: int = 0
    records: int = 0


def compact(
    spark: SparkSession, target: Path, file_bytes: int = FILE_BYTES, notice: Notice | None = None
) -> Compacted:
    """Replace all runs whose average file size is below half of `file_bytes` by one run.

    The new run is sorted by partition and offset. Raises JobError, PySparkException, OSError.
    """
    with opened(target) as lake:
        return _compact(spark, lake, file_bytes, notice or Silent())


def small_runs(runs: Sequence[Run], file_bytes: int) -> list[Run]:
    """Return the runs worth rewriting: none if there is only one and it was compacted before."""
    found = []
    for run in runs:
        sizes = [file.stat().st_size for file in run.files()]
        if not sizes or sum(sizes) < len(sizes) * file_bytes // 2:
            found.append(run)
    return [] if len(found) == 1 and found[0].state.is_compacted else found


def _compact(spark: SparkSession, lake: Lake, file_bytes: int, notice: Notice) -> Compacted:
    chosen = small_runs(lake.runs(), file_bytes)
    files = [file for run in chosen for file in run.files()]
    if not files:
        return Compacted()
    columns = [part.partition("=")[0] for part in files[0].parent.relative_to(chosen[0].path).parts]
    total = sum(run.state.records for run in chosen)
    place = lake.new_place()
    try:
        with watched(spark, notice, lambda: (0, total)):
            _rewrite(spark, chosen, columns, place, file_bytes)
        _check(spark, chosen, place)
        run = lake.replace(chosen, place)
    finally:
        lake.drop(place)
    notice.progress(total, total)
    return Compacted(len(chosen), len(files), len(run.files()), total)


def _rewrite(
    spark: SparkSession, chosen: Sequence[Run], columns: Sequence[str], place: Path, file_bytes: int
) -> None:
    with_files = [run for run in chosen if run.files()]
    size = sum(file.stat().st_size for run in with_files for file in run.files())
    order = [*columns, "partition", "offset"]
    reader = spark.read.schema(file_schema(columns)).option("basePath", str(with_files[0].path.parent))
    frame = reader.parquet(*(str(run.path) for run in with_files)).drop("run")
    parts = max(1, math.ceil(size / file_bytes))
    placed = frame.repartitionByRange(parts, *order) if parts > 1 else frame.coalesce(1)
    writer = placed.sortWithinPartitions(*order).write.mode("append").partitionBy(*columns)
    with as_microseconds(spark):
        writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(str(place))


def _check(spark: SparkSession, chosen: Sequence[Run], place: Path) -> None:
    """Raise JobError unless the new files have as many records of each partition as the chosen runs."""
    wanted: dict[tuple[str, int], int] = {}
    for span in joined([span for run in chosen for span in run.state.spans]):
        if span.records:
            wanted[span.topic, span.partition] = wanted.get((span.topic, span.partition), 0) + span.records
    found = {one: records for one, (records, _, _) in counted(spark, place).items()}
    if found != wanted:
        raise JobError(
            f"the compacted files have other records than the runs: {found} instead of {wanted}. The archive "
            "is unchanged; check it for files that other programs have changed"
        )
