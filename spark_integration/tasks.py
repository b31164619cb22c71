"""Tasks of a query as PySpark takes them, and what each of them reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from mpbroker.reading.options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from mpbroker.reading.plan import TaskRange


@dataclass(frozen=True)
class SparkTask(InputPartition):
    """A planned range as what PySpark takes for a partition."""

    range: TaskRange

    # InputPartition's own repr prints a field that dataclasses do not set.
    def __repr__(self) -> str:
        return str(self.range)


def read_task(
    partition: InputPartition | None, schema: StructType, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Yields the records of a task; none for a partition that is not ours, which Spark makes for the one task
    that it runs for an empty plan.
    """
    import pyarrow as pa

    from mpbroker.reading.columns import SCHEMA
    from mpbroker.reading.read import read_range

    if isinstance(partition, SparkTask):
        # Spark compares it, NOT NULL included, with the one that it makes of its schema itself.
        chosen = pa.schema([SCHEMA.field(one.name).with_nullable(one.nullable) for one in schema.fields])
        yield from read_range(partition.range, chosen, options)
