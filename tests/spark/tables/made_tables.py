"""Tables in a directory that tests fill without the job: one file for each commit, as the job writes them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform
from pyiceberg.types import (
    BinaryType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from spark_integration.tables import snapshots
from spark_integration.tables.catalog import LakeSettings, open_catalog
from spark_integration.tables.data_files import Written, data_file, row_files
from spark_integration.tables.spans import ERROR_ROWS, OFFSETS, Covered, Span

NAME = ("lake", "orders")
SCHEMA = Schema(
    NestedField(1, "_partition_index", IntegerType(), required=False),
    NestedField(2, "_offset", LongType(), required=False),
    NestedField(3, "_timestamp", TimestamptzType(), required=False),
    NestedField(4, "_error", StringType(), required=False),
    NestedField(5, "value", BinaryType(), required=False),
    NestedField(6, "_headers", ListType(7, StructType(NestedField(8, "key", StringType()))), required=False),
)
BY_DAY = PartitionSpec(PartitionField(3, 1000, DayTransform(), "_timestamp_day"))
MIDNIGHT = datetime(2026, 11, 30, tzinfo=UTC)


def lake(directory: Path) -> Catalog:
    directory.mkdir(exist_ok=True)
    return open_catalog(LakeSettings(directory.as_uri()))


def made_table(catalog: Catalog, **properties: str) -> Table:
    return catalog.create_table(NAME, SCHEMA, partition_spec=BY_DAY, properties=properties)


def written(table: Table, start: int, end: int, *, day: int = 30, error: str | None = None) -> Written:
    """Write offsets [start, end) of both partitions to a file; commit nothing."""
    at = MIDNIGHT.replace(day=day)
    rows = [
        {"_partition_index": number, "_offset": offset, "_timestamp": at, "_error": error, "value": b"v"}
        for number in (1, 0)
        for offset in range(start, end)
    ]
    files = row_files(table)
    (found,) = files.files(iter([pa.RecordBatch.from_pylist(rows, files.schema)]))
    return found


def append(table: Table, start: int, end: int, *, day: int = 30, error: str | None = None) -> None:
    """Commit such a file, and the offsets that the table has then."""
    covered = Covered("orders", tuple(Span(None, number, 0, end) for number in (0, 1)))
    errors = {ERROR_ROWS: str(2 * (end - start))} if error else {}
    commit(table, written(table, start, end, day=day, error=error), {OFFSETS: covered.text(), **errors})


def commit(table: Table, file: Written, properties: dict[str, str]) -> None:
    """Append a file; without properties, as another writer does."""
    with table.transaction() as transaction:
        snapshots.append(transaction, [data_file(table, file)], properties)


def offsets(table: Table) -> list[tuple[int, int]]:
    """Return (partition, offset) of each row, sorted."""
    rows = table.refresh().scan(selected_fields=("_partition_index", "_offset")).to_arrow().to_pylist()
    return sorted((row["_partition_index"], row["_offset"]) for row in rows)
