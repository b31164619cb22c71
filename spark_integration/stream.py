"""Answers Spark's calls while a streaming query runs, by the rules of `mpbroker.reading.stream`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import datasource as limits
from pyspark.sql.types import StructType

from mpbroker.reading.options import ReadOptions, parse_options
from spark_integration.schema import check_schema
from spark_integration.source import SparkTask, read_task

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from mpbroker.reading.stream import Stream


class MpbrokerStreamReader(DataSourceStreamReader, limits.SupportsTriggerAvailableNow):
    """One run of a query, in a child process of the driver. Tasks get a copy that has the options only."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._decoding = check_schema(schema, options)
        self._options = parse_options(dict(options), streaming=True)
        self._schema = schema
        self._run: Stream | None = None

    # Names and arguments of these methods are Spark's.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._stream().initial()

    def getDefaultReadLimit(self) -> limits.ReadLimit:  # noqa: N802
        """Return one of the limits: Spark knows no combined ones, so the stream goes by its own.

        Without any limit it is ReadAllAvailable, which Spark also hands to `latestOffset` for triggers that
        take everything.
        """
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return limits.ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return limits.ReadMinRows(options.min_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return limits.ReadMaxBytes(options.max_bytes_per_trigger)
        return limits.ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: limits.ReadLimit) -> dict[str, Any]:  # noqa: N802
        return self._stream().next_end(start, everything=isinstance(limit, limits.ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._stream().latest()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._stream().prepare_available_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[SparkTask]:
        return [SparkTask(one) for one in self._stream().plan(start, end)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self._schema, _patient(self._options), self._decoding)

    def commit(self, end: dict[str, Any]) -> None:
        self._stream().committed(end)

    def stop(self) -> None:
        if self._run is not None:
            self._run.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_run": None}

    def _stream(self) -> Stream:
        if self._run is None:
            from mpbroker.reading.stream import open_stream

            self._run = open_stream(self._options)
        return self._run


def _patient(options: ReadOptions) -> ReadOptions:
    """Return options for tasks, which wait kafkaConsumer.pollTimeoutMs for a broker as Kafka's do."""
    tries = math.ceil(options.request_timeout_ms / max(1, options.retry_interval_ms))
    return replace(options, retries=max(options.retries, tries))
