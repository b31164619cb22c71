"""The data source that `spark.read.format("mpbroker")` finds.

PySpark imports this in several kinds of processes: what plans or reads is imported only where it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Never

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_integration.errors import OptionError, SourceUnavailable
from spark_integration.options import ReadOptions, parse_options
from spark_integration.schema import check_schema, schema_for

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from spark_integration.plan import Catalog, TaskRange


class MpbrokerDataSource(DataSource):
    """Topics of mpbroker, or of Apache Kafka, as a batch source."""

    @classmethod
    def name(cls) -> str:
        return "mpbroker"

    def schema(self) -> StructType:
        return schema_for(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        check_schema(schema)
        return MpbrokerReader(self.options, schema)

    # PySpark gives the arguments by their names.

    def streamReader(self, schema: StructType) -> Never:  # noqa: ARG002, N802
        _not_built("streaming source")

    def writer(self, schema: StructType, overwrite: bool) -> Never:  # noqa: ARG002
        _not_built("sink")

    def streamWriter(self, schema: StructType, overwrite: bool) -> Never:  # noqa: ARG002, N802
        _not_built("streaming sink")


def _not_built(what: str) -> Never:
    """Without it Spark's own words: NOT_IMPLEMENTED, below a page of its frames."""
    raise OptionError(
        f"format mpbroker has no {what}: it is for batch queries (spark.read). Use Spark's own Kafka source, "
        "format('kafka') with kafka.bootstrap.servers: mpbroker speaks its protocol"
    )


class MpbrokerReader(DataSourceReader):
    """Travels to every task, so it holds options and schema and nothing else."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_options(dict(options))
        self._schema = schema

    def partitions(self) -> list[TaskRange]:
        from spark_integration.plan import plan

        with closing(open_catalog(self._options)) as catalog:
            return plan(catalog, self._options)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """For an empty plan Spark runs one task all the same, with a partition that is none of ours."""
        from spark_integration.columns import Columns
        from spark_integration.plan import TaskRange
        from spark_integration.read_local import is_here, read_local

        if not isinstance(partition, TaskRange):
            return
        options = self._options
        columns = Columns(self._schema, partition.topic, partition.partition, check_crcs=options.check_crcs)
        files = partition.files
        if files is not None and is_here(files):
            yield from read_local(partition, files, columns, fail_on_data_loss=options.fail_on_data_loss)
        elif files is None or (options.read_mode == "auto" and options.bootstrap_servers is not None):
            from spark_integration.read_remote import read_remote

            yield from read_remote(partition, columns, options)
        else:
            raise SourceUnavailable(
                f"{files.directory} is not on this host. Give kafka.bootstrap.servers too "
                "(and readMode auto), so that tasks on other hosts can fetch"
            )


def open_catalog(options: ReadOptions) -> Catalog:
    """Files if they are here, unless the user wants otherwise."""
    from spark_integration.local import LocalCatalog, log_dirs_are_here

    if options.read_mode == "remote":
        local = False
    elif options.read_mode == "local" or options.bootstrap_servers is None:
        local = True
    else:
        local = bool(options.log_dirs) and log_dirs_are_here(options.log_dirs)
    if local:
        return LocalCatalog(options.log_dirs)
    from spark_integration.remote import RemoteCatalog

    return RemoteCatalog(options)
