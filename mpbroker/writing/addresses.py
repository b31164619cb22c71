"""Turns Arrow columns into the native encoder's input: the addresses of their buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from mpbroker.records.addresses import Binary, Headers, Numbers

_SMALL = {pa.large_binary(): pa.binary(), pa.large_string(): pa.string()}
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


def plain(column: pa.Array) -> pa.Array:
    """Return the column with offsets of 32 bits.

    Spark sends such offsets unless spark.sql.execution.arrow.useLargeVarTypes is on.
    """
    if column.type in _SMALL:
        return column.cast(_SMALL[column.type])
    if pa.types.is_large_list(column.type) or pa.types.is_list(column.type):
        return column if column.type.equals(HEADERS) else column.cast(HEADERS)
    return column


def binary(column: pa.Array | None) -> Binary | None:
    """Return the addresses of a column of bytes or text. The column has to live as long as they are used."""
    if column is None or pa.types.is_null(column.type):
        return None
    validity, offsets, data = column.buffers()
    return _address(validity), _address(offsets), _address(data), column.offset


def numbers(column: pa.Array | None) -> Numbers | None:
    """Return the addresses of a column of numbers or times.

    The column has to live as long as they are used.
    """
    if column is None or pa.types.is_null(column.type):
        return None
    validity, data = column.buffers()
    return _address(validity), _address(data), column.offset


def headers(column: pa.Array | None) -> tuple[Headers | None, list[pa.Array]]:
    """Return the addresses of a column of HEADERS, and the arrays within it that have to live as long."""
    if column is None or pa.types.is_null(column.type):
        return None, []
    validity, lists = column.buffers()[:2]
    entries = column.values
    keys, values = entries.field(0), entries.field(1)
    key, value = binary(keys), binary(values)
    assert key is not None
    assert value is not None
    entry_validity = _address(entries.buffers()[0])
    found = (_address(validity), _address(lists), column.offset, entry_validity, entries.offset, key, value)
    return found, [entries, keys, values]


def _address(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else buffer.address
