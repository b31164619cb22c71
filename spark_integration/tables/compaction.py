"""Makes few large files of a table's many small ones. Each commit of the tables job adds some.

Readers see the old files or the new ones. The snapshot is a *replace*: it says that no row has changed, so
readers of changes pass over it. It has no offsets, since it covers none.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.types import LongType
from pyiceberg.utils.properties import property_as_int
from pyspark.sql import SparkSession

from spark_integration.tables.data_files import ORDER, RowFiles, Written, data_file, row_files
from spark_integration.tables.snapshots import replace, try_once

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

# Iceberg's property of a table; its own default is four times as much.
TARGET: Final = "write.target-file-size-bytes"
TARGET_BYTES: Final = 128 << 20
# So many small files are worth a compaction, or fewer that fill a file.
FILES_MIN: Final = 20
# What one call rewrites at most: the job appends nothing meanwhile.
PASS_BYTES: Final = 1 << 30
# Rows of a row group, as Arrow has them: what a task has in memory, besides the bytes of one file.
ROW_GROUP_BYTES: Final = 64 << 20
_TRIES: Final = 3


class Compacted(NamedTuple):
    """The result of a compaction: all numbers are 0 if there was nothing to do."""

    files_before: int = 0
    files_after: int = 0
    bytes: int = 0


def compact(spark: SparkSession, table: Table) -> Compacted:
    """Compact what is due, a task of Spark for each new file.

    Nothing changes if another program has replaced or deleted one of the files, or keeps committing. Raises
    PySparkException, StoreError, CommitStateUnknownException.
    """
    target = property_as_int(table.properties, TARGET, TARGET_BYTES)
    assert target is not None
    chosen = groups(table, target)
    if not chosen:
        return Compacted()
    tasks = [(pickle.dumps([file.file_path for file in group]),) for group in chosen]
    frame = spark.createDataFrame(tasks, "paths binary").repartition(len(tasks))
    rewriting = Rewriting(row_files(table))
    rows = frame.mapInArrow(rewriting, "written binary").collect()
    old = [file for group in chosen for file in group]
    made = [data_file(table, pickle.loads(row[0])) for row in rows]
    if not try_replace(table, old, made):
        for file in made:
            table.io.delete(file.file_path)
        return Compacted()
    return Compacted(len(old), len(made), sum(one.file_size_in_bytes for one in old))


def groups(table: Table, target_bytes: int, files_min: int = FILES_MIN) -> list[list[DataFile]]:
    """Return the small files that are to become one each, of one partition and in the order of offsets."""
    offset_id = table.schema().find_field("_offset").field_id
    partitions: dict[Any, list[tuple[int, DataFile]]] = {}
    for file in _plain_files(table):
        if file.spec_id == table.spec().spec_id and file.file_size_in_bytes < target_bytes * 3 // 4:
            bound = (file.lower_bounds or {}).get(offset_id)
            # Without bounds, as somebody may set the table's metrics, files come in any order.
            first = 0 if bound is None else int(from_bytes(LongType(), bound))
            partitions.setdefault(file.partition, []).append((first, file))
    found, left = [], PASS_BYTES
    for small in partitions.values():
        ordered = [file for _, file in sorted(small, key=lambda one: one[0])]
        for group in _filled(ordered, target_bytes):
            size = sum(file.file_size_in_bytes for file in group)
            if (len(group) >= files_min or size >= target_bytes) and size <= left:
                found.append(group)
                left -= size
    return found


def _filled(files: Iterable[DataFile], target_bytes: int) -> Iterator[list[DataFile]]:
    """Split files into groups: each but the last one has at least `target_bytes`."""
    group: list[DataFile] = []
    size = 0
    for file in files:
        group.append(file)
        size += file.file_size_in_bytes
        if size >= target_bytes:
            yield group
            group, size = [], 0
    if group:
        yield group


def _plain_files(table: Table) -> Iterator[DataFile]:
    """Yield the files from which no row was deleted, as other writers do that."""
    for task in table.scan().plan_files():
        if not task.delete_files:
            yield task.file


@dataclass(frozen=True)
class Rewriting:
    """Makes one file of several. Executors get it pickled: it has no credentials."""

    files: RowFiles

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rewrite the groups that `mapInArrow` gives; yield one row for each new file."""
        for batch in batches:
            for paths in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pylist(
                    [{"written": pickle.dumps(self.rewrite(pickle.loads(paths)))}]
                )

    def rewrite(self, urls: Sequence[str]) -> Written:
        """Write the rows of files to a new one, durably, with the columns that the table has now.

        Row groups are sorted as files are. The files follow each other in the log, and so do row groups.
        """
        url = f"{urls[0].rpartition('/')[0]}/{uuid.uuid4()}.parquet"
        sink = BytesIO()
        with pq.ParquetWriter(sink, self.files.schema, compression="zstd") as writer:
            for rows in self._row_groups(urls):
                writer.write_table(rows.sort_by(list(ORDER)), row_group_size=rows.num_rows)
        return self.files.put(url, sink.getvalue())

    def _row_groups(self, urls: Sequence[str]) -> Iterator[pa.Table]:
        schema, waiting, size = self.files.schema, [], 0
        for url in urls:
            for rows in self.files.batches(url):
                waiting.append(rows)
                size += rows.nbytes
                if size >= ROW_GROUP_BYTES:
                    yield pa.Table.from_batches(waiting, schema)
                    waiting, size = [], 0
        if waiting:
            yield pa.Table.from_batches(waiting, schema)


def try_replace(table: Table, old: Sequence[DataFile], made: Sequence[DataFile]) -> bool:
    """Replace files, on top of what others have appended. Return False if that cannot be done."""
    for _ in range(_TRIES):
        there = {file.file_path for file in _plain_files(table.refresh())}
        if any(file.file_path not in there for file in old):
            return False
        try_once(table)
        try:
            replace(table, old, made)
        except CommitFailedException:
            continue
        return True
    return False
