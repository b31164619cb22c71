"""Writes rows as Parquet files of a table, on Spark's executors; nothing is committed here.

A file has rows of one partition of the table, sorted by the log's partition and offset, with Iceberg's field
ids. What a failed task leaves is named by no snapshot, and goes with the orphans.
"""

from __future__ import annotations

import pickle
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import TYPE_CHECKING, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from spark_integration.jobs.frame import JobError
from spark_integration.tables.rows import ERROR
from spark_integration.tables.store_io import LOCATION, name_in, store_of

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import DataFileStatistics
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.typedef import Record
    from pyspark.sql import DataFrame

# A file is written when so many bytes of rows, as Arrow has them, wait for it.
FILE_BYTES: Final = 128 << 20
# All rows that wait in a task: above it the largest file is written, whatever its size.
WAITING_BYTES: Final = 256 << 20
ORDER: Final = (("_partition_index", "ascending"), ("_offset", "ascending"))
TIMESTAMP: Final = "_timestamp"
# Partitionings by time, as Iceberg's transforms and as PyArrow's units.
UNITS: Final = ("hour", "day", "month")


@dataclass(frozen=True)
class Written:
    """A data file and its footer."""

    url: str
    size: int
    footer: pq.FileMetaData
    error_rows: int = 0


@dataclass(frozen=True)
class RowFiles:
    """Turns Arrow batches into files. Executors get it pickled: it has no credentials.

    `unit`: the unit of time by which the table is partitioned, "" if it is not. `decode` makes rows of the
    table of each batch.
    """

    location: str
    table_url: str
    schema: pa.Schema
    unit: str
    decode: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    file_bytes: int = FILE_BYTES

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write what `mapInArrow` gives; yield one row for each file."""
        for written in self.files(batches):
            yield pa.RecordBatch.from_pylist([{"written": pickle.dumps(written)}])

    def files(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Written]:
        """Write the rows; yield files as they are written."""
        waiting: dict[str, _Waiting] = defaultdict(_Waiting)
        for batch in batches:
            rows = batch if self.decode is None else self.decode(batch)
            for partition, part in self._parted(rows.select(self.schema.names).cast(self.schema)):
                waiting[partition].add(part)
                if waiting[partition].size >= self.file_bytes:
                    yield self._write(partition, waiting.pop(partition))
            while sum(one.size for one in waiting.values()) >= WAITING_BYTES:
                largest = max(waiting, key=lambda name: waiting[name].size)
                yield self._write(largest, waiting.pop(largest))
        for partition, rest in waiting.items():
            yield self._write(partition, rest)

    def write(self, rows: pa.Table, partition: str) -> Written:
        """Write one file, durably. Raises StoreError."""
        folder = f"data/{TIMESTAMP}_{self.unit}={partition}" if self.unit else "data"
        url = f"{self.table_url}/{folder}/{uuid.uuid4()}.parquet"
        sink = BytesIO()
        pq.write_table(rows.sort_by(list(ORDER)), sink, compression="zstd")
        errors = rows.num_rows - rows[ERROR].null_count if ERROR in rows.column_names else 0
        return self.put(url, sink.getvalue(), errors)

    def put(self, url: str, body: bytes, error_rows: int = 0) -> Written:
        """Put the bytes of a file into the store. Raises StoreError."""
        store_of(self.location).put(name_in(self.location, url), [body], len(body))
        return Written(url, len(body), pq.read_metadata(pa.BufferReader(body)), error_rows)

    def batches(self, url: str) -> Iterator[pa.RecordBatch]:
        """Read a file of the table, with the columns that the table has now.

        Raises JobError if somebody has renamed a column since, or made it anew; StoreError.
        """
        # Not by the table's FileIO, which has the properties of the catalog, and its secrets.
        body = store_of(self.location).get(name_in(self.location, url))
        file = pq.ParquetFile(pa.BufferReader(body))
        self._check_names(url, file.schema_arrow)
        row = pa.struct(list(self.schema))
        for batch in file.iter_batches():
            # The cast goes by names: it adds columns that are new, and widens, at any depth.
            yield pa.RecordBatch.from_struct_array(batch.to_struct_array().cast(row))

    def _check_names(self, url: str, of_file: pa.Schema) -> None:
        from pyiceberg.io.pyarrow import pyarrow_to_schema

        file, table = pyarrow_to_schema(of_file), pyarrow_to_schema(self.schema)
        now = {one: table.find_column_name(one) for one in table.field_ids}
        for field_id in file.field_ids:
            name = file.find_column_name(field_id)
            if now.get(field_id) != name and (field_id in now or name in now.values()):
                raise JobError(
                    f"column {name} of {url} has another name or meaning in the table now: rewrite the "
                    "table's data files (Iceberg's rewrite_data_files)"
                )

    def _write(self, partition: str, waiting: _Waiting) -> Written:
        return self.write(pa.Table.from_batches(waiting.batches, self.schema), partition)

    def _parted(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Cut rows by the table's partitions; the names are those of directories."""
        if not self.unit:
            yield "", rows
            return
        values = pc.floor_temporal(rows.column(TIMESTAMP), unit=self.unit)
        for value in pc.unique(values):
            chosen = pc.is_null(values) if not value.is_valid else pc.equal(values, value)
            name = value.as_py().strftime("%Y-%m-%d-%H") if value.is_valid else "null"
            yield name[: {"hour": 13, "day": 10, "month": 7}[self.unit]], rows.filter(chosen)


@dataclass
class _Waiting:
    batches: list[pa.RecordBatch] = field(default_factory=list)
    size: int = 0

    def add(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self.batches.append(rows)
            self.size += rows.nbytes


def write(
    frame: DataFrame, table: Table, decode: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
) -> list[Written]:
    """Write a frame's rows as files of the table. Raises PySparkException, StoreError.

    Without `decode` the frame has the table's columns, by name.
    """
    rows = frame.mapInArrow(row_files(table, decode), "written binary").collect()
    return [pickle.loads(row[0]) for row in rows]


def row_files(table: Table, decode: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None) -> RowFiles:
    """Return what writes files of a table: its location, present schema and partitioning."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    location = table.io.properties[LOCATION]
    schema = schema_to_pyarrow(table.schema())
    return RowFiles(location, table.location().rstrip("/"), schema, _unit(table), decode)


def data_file(table: Table, written: Written) -> DataFile:
    """Describe a written file to Iceberg. Its statistics come from the footer."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=written.url,
        file_format=FileFormat.PARQUET,
        partition=_partition(table, written.footer),
        file_size_in_bytes=written.size,
        sort_order_id=None,
        spec_id=table.metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **_statistics(table, written.footer).to_serialized_dict(),
    )


def _statistics(table: Table, footer: pq.FileMetaData) -> DataFileStatistics:
    """Return what Iceberg knows of a file's columns.

    Others may have renamed columns of the table since, or dropped them. A producer may send times that Python
    has not, after the year 9999 or before 1: columns of times have no bounds then.
    """
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        match_metrics_mode,
        parquet_path_to_id_mapping,
        pyarrow_to_schema,
    )
    from pyiceberg.types import DateType, TimestampType, TimestamptzType

    of_file = pyarrow_to_schema(footer.schema.to_arrow_schema())
    paths = parquet_path_to_id_mapping(of_file)
    plan = dict(compute_statistics_plan(of_file, table.properties))
    # Bounds have the types that columns have now.
    plan |= compute_statistics_plan(table.schema(), table.properties)
    try:
        return data_file_statistics_from_parquet_metadata(footer, plan, paths)
    except OverflowError:
        for field_id, one in plan.items():
            if isinstance(one.iceberg_type, DateType | TimestampType | TimestamptzType):
                plan[field_id] = replace(one, mode=match_metrics_mode("counts"))
        return data_file_statistics_from_parquet_metadata(footer, plan, paths)


def _partition(table: Table, footer: pq.FileMetaData) -> Record:
    """Return the partition of a file, which all its rows have, whatever metrics the table keeps."""
    from pyiceberg.typedef import Record
    from pyiceberg.types import TimestamptzType

    if not _unit(table):
        return Record()
    group = footer.row_group(0)
    columns = (group.column(number) for number in range(group.num_columns))
    times = next(one.statistics for one in columns if one.path_in_schema == TIMESTAMP)
    value = times.min_raw if times.has_min_max else None
    return Record(table.spec().fields[0].transform.transform(TimestamptzType())(value))


def _unit(table: Table) -> str:
    """Return the unit of time by which the table is partitioned, or "". Raises ValueError for another."""
    fields = table.spec().fields
    if not fields:
        return ""
    unit = str(fields[0].transform)
    column = table.schema().find_column_name(fields[0].source_id)
    if len(fields) > 1 or column != TIMESTAMP or unit not in UNITS:
        raise ValueError(
            f"{'.'.join(table.name())} is partitioned by {table.spec()}, not by {TIMESTAMP} alone"
        )
    return unit
