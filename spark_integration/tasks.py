"""The tasks of a query as PySpark takes them, and the records that each reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from mpbroker.reading.options import ReadOptions
from spark_integration.schema import VALUE

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from mpbroker.reading.plan import TaskRange
    from spark_integration.decoding import Decoding


@dataclass(frozen=True)
class SparkTask(InputPartition):
    """A planned range in the form of PySpark's partitions."""

    range: TaskRange

    # InputPartition's own repr prints a field that dataclasses do not set.
    def __repr__(self) -> str:
        return str(self.range)


def read_task(
    partition: InputPartition | None, schema: StructType, options: ReadOptions, decoding: Decoding | None
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task.

    Yields none for a partition that is not ours: Spark makes one for the single task of an empty plan.
    """
    import pyarrow as pa

    from mpbroker.reading.columns import SCHEMA
    from mpbroker.reading.read import read_range

    if isinstance(partition, SparkTask):
        # Spark compares this schema, NOT NULL included, with the one that it makes of its own.
        chosen = pa.schema([SCHEMA.field(one.name).with_nullable(one.nullable) for one in schema.fields])
        batches = read_range(partition.range, chosen, options)
        yield from batches if decoding is None else _decoded(batches, chosen, decoding, partition)


def _decoded(
    batches: Iterator[pa.RecordBatch], raw: pa.Schema, decoding: Decoding, task: SparkTask
) -> Iterator[pa.RecordBatch]:
    """Yield the batches with their values decoded. Raises MalformedRecord."""
    import pyarrow as pa

    from spark_integration.values import MalformedRecord

    place = raw.get_field_index(VALUE)
    schema = raw.set(place, raw.field(place).with_type(decoding.arrow))
    for batch in batches:
        columns = batch.columns
        try:
            columns[place] = decoding.decode(columns[place])
        except MalformedRecord as error:
            raise MalformedRecord(f"{task}: {error}") from error
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
