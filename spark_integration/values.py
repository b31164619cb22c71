"""Decodes columns of values of any format into columns of structs, and separates malformed values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import c_float
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from math import isinf
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

from mpbroker.registry.schemas import UNREADABLE, Convert, SchemaError

CORRUPT: Final = "_corrupt"
"""The field that a permissive decoder adds: null for a good record, else the error and the bytes."""

CORRUPT_TYPE: Final = pa.struct([pa.field("error", pa.string()), pa.field("data", pa.binary())])

_SHOWN_BYTES = 24
_DOUBLE_BITS = 64
_EXPONENT_MAX = 1000
TYPES_MAX: Final = 20_000
# Arrow makes nulls of missing fields; below a null struct it would leave zeros.
_NO_FIELDS: Final[Mapping[str, Any]] = {}


class TypeCount:
    """Limits the number of Spark types for a schema. A type that is used twice counts twice."""

    def __init__(self) -> None:
        self._left = TYPES_MAX

    def add(self) -> None:
        """Count a type. Raises SchemaError if there are too many."""
        self._left -= 1
        if self._left < 0:
            raise SchemaError(f"the schema becomes more than {TYPES_MAX:,} types of Spark's")


class Mode(StrEnum):
    """The treatment of records that cannot be decoded, named as in Spark's own sources."""

    PERMISSIVE = "PERMISSIVE"
    FAILFAST = "FAILFAST"


class MalformedRecord(ValueError):
    """A record cannot be decoded, and the mode is FAILFAST."""


def decode_column(column: pa.Array, decode: Convert, kind: pa.StructType, mode: Mode) -> pa.StructArray:
    """Make a struct for each value of a binary column, null for null. Raises MalformedRecord.

    `decode` returns a dict for the bytes of one value, or raises one of UNREADABLE. `kind` is the result's
    type, with the field `_corrupt` at its end if the mode is PERMISSIVE.
    """
    data = column.to_pylist()
    rows: list[Any] = []
    errors: dict[int, str] = {}
    for number, value in enumerate(data):
        try:
            rows.append(None if value is None else decode(value))
        except UNREADABLE as error:
            errors[number] = _reason(error)
            rows.append(_NO_FIELDS)
    is_permissive = mode is Mode.PERMISSIVE
    fields = list(kind)[:-1] if is_permissive else list(kind)
    values = _typed(rows, pa.struct(fields), errors)
    if errors and not is_permissive:
        number = min(errors)
        shown = data[number][:_SHOWN_BYTES].hex()
        more = "…" if len(data[number]) > _SHOWN_BYTES else ""
        raise MalformedRecord(
            f"a record of {len(data[number])} bytes cannot be decoded: {errors[number]} (hex {shown}{more}). "
            "Mode PERMISSIVE keeps such records in the field _corrupt"
        )
    children = [values.field(index) for index in range(len(fields))]
    if is_permissive:
        corrupt = [
            {"error": errors[number], "data": data[number]} if number in errors else None
            for number in range(len(data))
        ]
        children.append(pa.array(corrupt, CORRUPT_TYPE) if errors else pa.nulls(len(data), CORRUPT_TYPE))
    is_null = pa.array([value is None for value in data], pa.bool_())
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=is_null)


def _typed(rows: list[Any], kind: pa.StructType, errors: dict[int, str]) -> pa.StructArray:
    """Make an array of the rows.

    In a row that does not fit the type, all fields are null; `errors` gets the reason.
    """
    try:
        return pa.array(rows, kind)
    except (*UNREADABLE, pa.ArrowException):
        for number, row in enumerate(rows):
            try:
                pa.array([row], kind)
            except (*UNREADABLE, pa.ArrowException) as error:
                errors[number] = _reason(error)
                rows[number] = _NO_FIELDS
    return pa.array(rows, kind)


def _reason(error: BaseException) -> str:
    text = str(error)
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}".rstrip(": ")


def converter(kind: pa.DataType, leaf: Callable[[pa.DataType], Convert | None]) -> Convert | None:
    """Return a conversion from a decoded value to one that Arrow takes for the type.

    Returns None if Arrow takes the value as it is. `leaf` decides for types without children.
    """
    if pa.types.is_struct(kind):
        inner = {field.name: convert for field in kind if (convert := converter(field.type, leaf))}
        return _in_struct(inner) if inner else None
    if pa.types.is_map(kind):
        return _in_map(converter(kind.key_type, leaf), converter(kind.item_type, leaf))
    if pa.types.is_list(kind):
        each = converter(kind.value_type, leaf)
        return _in_list(each) if each else None
    convert = leaf(kind)
    return unless_null(convert) if convert else None


def unless_null(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _in_struct(inner: Mapping[str, Convert]) -> Convert:
    def convert(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise TypeError(f"a record was expected, not {type(value).__name__}")
        return {**value, **{name: one(value[name]) for name, one in inner.items() if name in value}}

    return convert


def _in_map(key: Convert | None, item: Convert | None) -> Convert:
    def convert(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise TypeError(f"a map was expected, not {type(value).__name__}")
        return [(key(k) if key else k, item(v) if item else v) for k, v in value.items()]

    return convert


def _in_list(each: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, list):
            raise TypeError(f"an array was expected, not {type(value).__name__}")
        return [each(one) for one in value]

    return convert


def without_pairs(kind: pa.DataType) -> Convert | None:
    """Return a conversion of Arrow's own values, in which maps are lists of pairs, to values with dicts.

    Returns None if the type has no maps.
    """
    if pa.types.is_struct(kind):
        inner = {field.name: convert for field in kind if (convert := without_pairs(field.type))}
        return unless_null(_in_struct(inner)) if inner else None
    if pa.types.is_map(kind):
        item = without_pairs(kind.item_type)
        return unless_null(lambda pairs: {key: item(one) if item else one for key, one in pairs})
    if pa.types.is_list(kind):
        each = without_pairs(kind.value_type)
        return _in_list(each) if each else None
    return None


def of_text(kind: pa.DataType) -> Convert | None:
    """Return the conversion for a type that a format writes as text: a time (ISO 8601), date or decimal.

    The conversion to a time refuses numbers, which may be in s or ms. The conversion to a decimal refuses
    floats, which are not exact. For integers and floats, return a conversion that refuses bools, and numbers
    that Arrow would cut to another one. For other types, return None.
    """
    if pa.types.is_timestamp(kind):
        return _zoned if kind.tz else _unzoned
    if pa.types.is_date(kind):
        return _day
    if pa.types.is_decimal(kind):
        return _decimal
    if pa.types.is_integer(kind):
        return _integer
    if pa.types.is_floating(kind):
        return _float if kind.bit_width < _DOUBLE_BITS else _number
    return None


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise TypeError("a number was expected, not bool")
    return value


def _integer(value: Any) -> Any:
    # What is left of 1e-999999999 by division would be rounded to 0.
    exact = _decimal(value) if isinstance(value, Decimal) else value
    if isinstance(exact, (float, Decimal)) and exact % 1:
        raise ValueError(f"an integer was expected, not {value}")
    return _number(value)


def _float(value: Any) -> Any:
    if isinstance(value, float) and isinf(c_float(value).value) and not isinf(value):
        raise ValueError(f"{value} is too large for a float")
    return _number(value)


def _decimal(value: Any) -> Decimal:
    if isinstance(value, (str, int, Decimal)) and not isinstance(value, bool):
        found = Decimal(value)
        # Arrow crashes the process for an exponent such as -999,999,999.
        if abs(found.adjusted()) > _EXPONENT_MAX:
            raise ValueError(f"{value} is beyond all decimals")
        return found
    raise TypeError(f"a decimal is text or an integer, not {type(value).__name__}")


def _time(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    raise TypeError(f"a time is a timestamp or ISO 8601 text, not {type(value).__name__}")


def _zoned(value: Any) -> datetime:
    found = _time(value)
    if found.tzinfo is None:
        raise ValueError(f"{value} has no time zone, and its column is a timestamp")
    return found


def _unzoned(value: Any) -> datetime:
    found = _time(value)
    if found.tzinfo is not None:
        raise ValueError(f"{value} has a time zone, and its column is a timestamp_ntz")
    return found


def _day(value: Any) -> date:
    if isinstance(value, str):
        return date.fromisoformat(value)
    raise TypeError(f"a date is ISO 8601 text, not {type(value).__name__}")
