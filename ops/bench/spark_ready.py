"""A data source whose batches cost nothing, to measure PySpark's own time for the same number of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from mpbroker.reading.columns import MAX_ROWS, SCHEMA
from spark_integration.schema import schema_for

TASKS = 2


class ReadyBatches(DataSource):
    """Yields rows like mpbroker's source. Options: `records`, `valueBytes`, and that source's `columns`."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> StructType | str:
        return schema_for({"columns": self.options["columns"]} if "columns" in self.options else {})

    def reader(self, schema: StructType) -> DataSourceReader:
        return Reader(int(self.options["records"]), int(self.options["valueBytes"]), schema)


@dataclass(frozen=True)
class Part(InputPartition):
    records: int


class Reader(DataSourceReader):
    def __init__(self, records: int, value_bytes: int, schema: StructType) -> None:
        self._records, self._value_bytes, self._schema = records, value_bytes, schema

    def partitions(self) -> list[Part]:
        return [
            Part(self._records * (number + 1) // TASKS - self._records * number // TASKS)
            for number in range(TASKS)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        batch = self._batch()
        for left in range(partition.records, 0, -MAX_ROWS):
            yield batch.slice(0, min(left, MAX_ROWS))

    def _batch(self) -> pa.RecordBatch:
        cells = {
            "key": [b"%08d" % number for number in range(MAX_ROWS)],
            "value": [bytes(self._value_bytes)] * MAX_ROWS,
            "topic": ["bench"] * MAX_ROWS,
            "partition": [0] * MAX_ROWS,
            "offset": list(range(MAX_ROWS)),
            "timestamp": [1_700_000_000_000_000] * MAX_ROWS,
            "timestampType": [0] * MAX_ROWS,
            "headers": [None] * MAX_ROWS,
        }
        schema = pa.schema([SCHEMA.field(one.name) for one in self._schema.fields])
        return pa.RecordBatch.from_pydict({name: cells[name] for name in schema.names}, schema=schema)
