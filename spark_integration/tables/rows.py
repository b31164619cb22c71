"""Makes the rows of a table from records, in Spark's workers. They need no pyiceberg: its import is slow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple
from uuid import UUID

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from mpbroker.registry import framing
from mpbroker.registry.schemas import SchemaId
from spark_integration.decoding import Decoding
from spark_integration.values import CORRUPT, CORRUPT_TYPE

ERROR: Final = "_error"
RAW: Final = "_raw"
FROM: Final = {
    "_topic_id": "_topic_id",
    "_partition_index": "partition",
    "_offset": "offset",
    "_timestamp": "timestamp",
    "_headers": "headers",
    "_key": "key",
}
"""The columns of a table that come from the source's, by their names there."""

OURS: Final = frozenset((*FROM, ERROR, RAW))
# Values that name no schema may look as if each named another one.
SCHEMAS_MAX: Final = 1000
_ERROR_MAX: Final = 500
_FIRST_TIME: Final = datetime(1, 1, 1, tzinfo=UTC)
_LAST_TIME: Final = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


class Bytes(NamedTuple):
    """Leaves values as they are, in the column `value`."""

    def decode(self, values: pa.Array) -> pa.StructArray:
        return pa.StructArray.from_arrays([values, pa.nulls(len(values), CORRUPT_TYPE)], ["value", CORRUPT])


class Rows(NamedTuple):
    """Makes the rows of record batches: of the source's columns with headers, and `_topic_id`.

    `columns` are those of the table. `decoders` says, by the ids of schemas, how values are decoded, or why
    they cannot be; if values name no schema, the only id is None.
    """

    columns: pa.Schema
    decoders: Mapping[SchemaId | None, Decoding | Bytes | str]
    is_framed: bool

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a row for each record of a batch, in its order."""
        values = batch.column("value")
        found = self._framed(batch) if self.is_framed else self._decoded(self.decoders[None], values)
        errors = pc.utf8_slice_codeunits(found.column(ERROR), 0, _ERROR_MAX)
        made = {ERROR: errors, RAW: pc.if_else(errors.is_valid(), values, None)}
        made |= {name: batch.column(there) for name, there in FROM.items()}
        made["_timestamp"] = _known_times(made["_timestamp"])
        arrays = [
            made[field.name].cast(field.type) if field.name in made else found.column(field.name)
            for field in self.columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.columns)

    def _framed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Decode values that name their schema, all of one schema together."""
        framed = _with_prefix(batch)
        places: dict[SchemaId | str | None, list[int]] = {}
        for number, value in enumerate(framed):
            places.setdefault(_schema_of(value), []).append(number)
        pieces = []
        for schema_id, numbers in places.items():
            # None is of null values. A text says why a value names no schema.
            decoder: Decoding | Bytes | str | None = None if schema_id is None else str(schema_id)
            if isinstance(schema_id, SchemaId):
                many = f"schema {schema_id}: values name more than {SCHEMAS_MAX:,} schemas at once"
                decoder = self.decoders.get(schema_id, many)
            pieces.append(self._decoded(decoder, pa.array([framed[one] for one in numbers], pa.binary())))
        order = pa.array([number for numbers in places.values() for number in numbers], pa.int64())
        whole = pa.concat_batches(pieces) if pieces else self._decoded(None, batch.column("value"))
        return whole.take(pc.sort_indices(order))

    def _decoded(self, decoder: Decoding | Bytes | str | None, values: pa.Array) -> pa.RecordBatch:
        """Return the columns of values, and their errors. Without a decoder all columns are null."""
        fields = [field for field in self.columns if field.name not in OURS]
        if decoder is None or isinstance(decoder, str):
            arrays = [pa.nulls(len(values), field.type) for field in fields]
            errors = pa.repeat(pa.scalar(decoder, pa.string()), len(values))
        else:
            found = decoder.decode(values)
            arrays = found.cast(pa.struct(fields)).flatten()
            errors = pc.struct_field(found, [CORRUPT, "error"])
        return pa.RecordBatch.from_arrays([*arrays, errors], [*(field.name for field in fields), ERROR])


def _known_times(times: pa.Array) -> pa.Array:
    """Return times, null where Iceberg's libraries for Python have none: they could not say its partition."""
    outside = pc.or_(pc.less(times, _FIRST_TIME), pc.greater(times, _LAST_TIME))
    return pc.if_else(outside, None, times)


def ids_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield one batch with the ids of the schemas that values name, as text; see SCHEMAS_MAX."""
    ids: list[SchemaId] = []
    for batch in batches:
        named = {_schema_of(value) for value in _with_prefix(batch)}
        ids = lowest({*ids, *(one for one in named if isinstance(one, SchemaId))})
    yield pa.RecordBatch.from_arrays([pa.array(map(str, ids), pa.string())], ["id"])


def lowest(ids: Iterable[SchemaId]) -> list[SchemaId]:
    return sorted(ids, key=lambda one: (isinstance(one, UUID), one))[:SCHEMAS_MAX]


def _schema_of(value: bytes | None) -> SchemaId | str | None:
    """Return the id of a value's schema, None for null, or why it names none."""
    try:
        return None if value is None else framing.read(value).schema_id
    except framing.NotFramed as error:
        return str(error)


def _with_prefix(batch: pa.RecordBatch) -> list[bytes | None]:
    """Return values that begin with their framing; it may be in a header of the record."""
    values: list[bytes | None] = batch.column("value").to_pylist()
    names = batch.column("headers").flatten().field("key")
    if not pc.any(pc.equal(names, framing.VALUE_HEADER)).as_py():
        return values
    for number, headers in enumerate(batch.column("headers").to_pylist()):
        frame = framing.header_of(((one["key"], one["value"]) for one in headers or ()), is_key=False)
        value = values[number]
        if frame is not None and value is not None and isinstance(_schema_of(frame), UUID):
            values[number] = frame + value
    return values
