"""Makes Arrow batches of records, with exactly the schema that the caller gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa  # type: ignore[import-untyped]

from mpbroker.reading.errors import CorruptLog
from mpbroker.records.aborted import AbortedRanges
from mpbroker.records.arrow_batches import SCHEMA as RECORD_SCHEMA
from mpbroker.records.arrow_batches import Constant, arrow_batches

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Rows of an Arrow batch at most. Larger batches leave a core's cache between Python and the JVM (4 MiB cost a
# tenth); smaller ones pay more overhead.
MAX_ROWS = 20_000
MAX_BYTES = 1 << 20


SCHEMA: Final = pa.schema(
    [
        RECORD_SCHEMA.field("key"),
        RECORD_SCHEMA.field("value"),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        *(RECORD_SCHEMA.field(name) for name in ("offset", "timestamp", "timestampType", "headers")),
    ]
)
"""All columns, in the order of Spark's Kafka source."""


class Columns:
    """Decodes byte ranges of one partition; all batches share their `topic` and `partition` columns."""

    def __init__(self, schema: pa.Schema, topic: str, partition: int, *, check_crcs: bool) -> None:
        self._schema = schema
        self._check_crcs = check_crcs
        self._name = f"{topic}-{partition}"
        self._never_null = [field.name for field in self._schema if not field.nullable]
        self._constants: Mapping[str, Constant] = {
            "topic": _Repeated(pa.scalar(topic, pa.string())),
            "partition": _Repeated(pa.scalar(partition, pa.int32())),
        }

    def decode(
        self,
        data: Buffer,
        position: int,
        end: int,
        start_offset: int,
        end_offset: int,
        aborted: AbortedRanges | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records in data[position:end] whose offsets are in [start_offset, end_offset).

        Records of the `aborted` transactions are left out. Raises CorruptBatch, CorruptLog.
        """
        batches = arrow_batches(
            data,
            self._schema,
            start=position,
            end=end,
            lo_offset=start_offset,
            hi_offset=end_offset,
            constants=self._constants,
            max_rows=MAX_ROWS,
            max_bytes=MAX_BYTES,
            check_crc=self._check_crcs,
            aborted=aborted,
        )
        # Unlike a loop's variable, `map` keeps no batch while the next one is decoded.
        yield from map(self._checked, batches)

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for name in self._never_null:
            if batch.column(name).null_count:
                raise CorruptLog(
                    f"{self._name} has records whose {name} is null, but it is NOT NULL in the given schema. "
                    f"Make column {name} nullable"
                )
        return batch


class _Repeated:
    """Makes columns that repeat one value: slices of an array of MAX_ROWS values."""

    def __init__(self, value: pa.Scalar) -> None:
        self._array = pa.repeat(value, MAX_ROWS)

    def __call__(self, rows: int) -> pa.Array:
        return self._array.slice(0, rows)
