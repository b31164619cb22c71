"""Decodes memory to pyarrow record batches; the package's only module that imports pyarrow at the top."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

from mpbroker.records.aborted import AbortedRanges
from mpbroker.records.arrow import COLUMNS, BinaryBuffers, FixedBuffers, HeaderBuffers, decode_range
from mpbroker.records.compression import DEFAULT_LIMIT_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer

HEADER_TYPE: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", pa.list_(HEADER_TYPE)),
    ]
)
"""All columns that can be decoded. The caller gives other columns of a schema as constants."""

MAX_ROWS: Final = 20_000
MAX_BYTES: Final = 4 << 20

Constant = Callable[[int], pa.Array]
"""A function that returns a constant column, such as the topic, with the given number of rows."""


def _binary(buffers: BinaryBuffers, rows: int, kind: pa.DataType) -> pa.Array:
    parts = [buffers.validity, buffers.offsets, buffers.data]
    return pa.Array.from_buffers(kind, rows, parts, buffers.nulls)


def _headers(buffers: HeaderBuffers, rows: int, kind: pa.ListType) -> pa.Array:
    key = _binary(buffers.key, buffers.header_count, kind.value_type.field(0).type)
    value = _binary(buffers.value, buffers.header_count, kind.value_type.field(1).type)
    entries = pa.Array.from_buffers(kind.value_type, buffers.header_count, [None], 0, children=[key, value])
    return pa.Array.from_buffers(
        kind, rows, [buffers.validity, buffers.lists], buffers.nulls, children=[entries]
    )


def _column(buffers: FixedBuffers | BinaryBuffers | HeaderBuffers, rows: int, kind: pa.DataType) -> pa.Array:
    if isinstance(buffers, BinaryBuffers):
        return _binary(buffers, rows, kind)
    if isinstance(buffers, HeaderBuffers):
        return _headers(buffers, rows, kind)
    return pa.Array.from_buffers(kind, rows, [None, buffers.data], 0)


def _check_schema(schema: pa.Schema, constants: Mapping[str, Constant]) -> None:
    for field in schema:
        if field.name in constants:
            continue
        if field.name not in COLUMNS:
            raise ValueError(f"column {field.name!r} neither comes from records nor is given as a constant")
        if field.type != SCHEMA.field(field.name).type:
            raise ValueError(f"column {field.name!r} is {SCHEMA.field(field.name).type}, not {field.type}")


def arrow_batches(
    data: Buffer,
    schema: pa.Schema = SCHEMA,
    *,
    start: int = 0,
    end: int | None = None,
    lo_offset: int = 0,
    hi_offset: int = (1 << 63) - 1,
    constants: Mapping[str, Constant] | None = None,
    max_rows: int = MAX_ROWS,
    max_bytes: int = MAX_BYTES,
    check_crc: bool = True,
    decompressed_limit: int = DEFAULT_LIMIT_BYTES,
    aborted: AbortedRanges | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records in data[start:end] with offsets in [lo_offset, hi_offset) as batches of `schema`.

    The schema may have any columns of SCHEMA and of the constants, in any order. Records of the `aborted`
    transactions are left out. This keeps no reference to a yielded batch. Raises CorruptBatch, and ValueError
    for a schema with other columns or types.
    """
    given: dict[str, Any] = dict(constants or {})
    _check_schema(schema, given)
    columns = frozenset(schema.names).difference(given)
    view = memoryview(data).cast("B")
    position, stop = start, len(view) if end is None else end
    while True:
        position, rows, buffers = decode_range(
            view,
            position,
            stop,
            lo_offset,
            hi_offset,
            max_rows,
            max_bytes,
            columns,
            check_crc=check_crc,
            decompressed_limit=decompressed_limit,
            aborted=aborted,
        )
        if rows == 0:
            return
        arrays = {
            field.name: _column(buffers[field.name], rows, field.type)
            for field in schema
            if field.name not in given
        }
        del buffers
        # A single batch of the log may have any number of records, and constants take memory for each row.
        for row in range(0, rows, max_rows):
            count = min(max_rows, rows - row)
            yield pa.RecordBatch.from_arrays(
                [
                    given[name](count) if name in given else arrays[name].slice(row, count)
                    for name in schema.names
                ],
                schema=schema,
            )
        del arrays
