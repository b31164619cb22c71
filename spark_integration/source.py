"""Defines the data source that `spark.read.format("mpbroker")` finds.

PySpark imports this in several kinds of processes, so modules that plan or read are imported only where used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from mpbroker.reading.options import parse_options, pushes_filters
from spark_integration.schema import check_schema, schema_for
from spark_integration.tasks import SparkTask, read_task
from spark_integration.workers import end_in_silence

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.datasource import Filter

    from mpbroker.reading.conditions import Condition

end_in_silence()


class MpbrokerDataSource(DataSource):
    """Topics of mpbroker, or of Apache Kafka: a source and a sink, of batches and of streams."""

    @classmethod
    def name(cls) -> str:
        return "mpbroker"

    def schema(self) -> StructType | str:
        return schema_for(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        # Spark refuses a reader with pushFilters unless spark.sql.python.filterPushdown.enabled is true.
        if pushes_filters(self.options):
            return FilteringReader(self.options, schema)
        return MpbrokerReader(self.options, schema)

    # PySpark passes the arguments by name.

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from spark_integration.stream import MpbrokerStreamReader

        return MpbrokerStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from spark_integration.sink import batch_writer

        return batch_writer(schema, self.options, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802
        from spark_integration.sink import stream_writer

        return stream_writer(schema, self.options)


class MpbrokerReader(DataSourceReader):
    """Plans and reads a batch query.

    The reader travels to every task, so it holds options, schema, how to decode values, and nothing else.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._decoding = check_schema(schema, options)
        self._options = parse_options(dict(options))
        self._schema = schema

    def partitions(self) -> list[SparkTask]:
        return self._planned()

    def _planned(self, conditions: Sequence[Condition] = ()) -> list[SparkTask]:
        from mpbroker.reading.catalogs import open_catalog
        from mpbroker.reading.conditions import pruning_of
        from mpbroker.reading.plan import plan

        with closing(open_catalog(self._options)) as catalog:
            return [SparkTask(one) for one in plan(catalog, self._options, pruning_of(conditions)[0])]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self._schema, self._options, self._decoding)


class FilteringReader(MpbrokerReader):
    """Takes the query's filters into its plan, with the option filterPushdown."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        self._conditions: tuple[Condition, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take the query's filters, and return those that Spark still has to evaluate."""
        from mpbroker.reading.conditions import pruning_of
        from spark_integration.filters import condition_of

        known = [(one, condition) for one in filters if (condition := condition_of(one)) is not None]
        self._conditions = tuple(condition for _, condition in known)
        _, exact = pruning_of(self._conditions)
        fulfilled = {id(one) for (one, _), decided in zip(known, exact, strict=True) if decided}
        return [one for one in filters if id(one) not in fulfilled]

    def partitions(self) -> list[SparkTask]:
        return self._planned(self._conditions)
