"""Turns JSON with a JSON Schema into Spark rows and back.

A part of the schema that allows one type gets Spark's type for it. A part that allows several types, or
contains itself, becomes a string with JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from math import inf, isfinite
from typing import Any, Final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from mpbroker.registry import framing
from mpbroker.registry.json_schema import checker, document
from mpbroker.registry.schemas import Convert, Kind, Schema, SchemaError, SchemaId, Schemas
from spark_integration.values import TypeCount, converter, of_text

WHOLE_VALUE: Final = "value"
_TYPES: Final[Mapping[str, DataType]] = {
    "integer": LongType(),
    "number": DoubleType(),
    "boolean": BooleanType(),
}
_FORMATS: Final[Mapping[str, DataType]] = {"date-time": TimestampType(), "date": DateType()}
_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")


def type_of(schema: Schema) -> tuple[StructType, bool]:
    """Return a struct type for a schema, and whether the struct was made to hold another type.

    A type that is no struct becomes the only field, `value`, of a struct. Raises SchemaError.
    """
    whole = document(schema.text)
    found = _Types({name: document(text) for name, text in schema.references}).of(whole, whole, ())
    if isinstance(found, StructType):
        return found, False
    return StructType([StructField(WHOLE_VALUE, found)]), True


class _Types:
    """Maps the parts of a schema to Spark's types. `others`: the documents that the schema may refer to."""

    def __init__(self, others: Mapping[str, Any]) -> None:
        self._others = others
        self._count = TypeCount()

    def of(self, part: Any, inside: Any, within: tuple[str, ...]) -> DataType:
        """Map a part of the document `inside`; `within` has the references that led to it."""
        self._count.add()
        if not isinstance(part, dict):
            return StringType()
        if isinstance(reference := part.get("$ref"), str):
            if reference in within:
                return StringType()
            target, there = self._resolved(reference, inside)
            return self.of(target, there, (*within, reference))
        for name in ("oneOf", "anyOf"):
            if name in part:
                others = [one for one in part[name] if one != {"type": "null"}]
                return self.of(others[0], inside, within) if len(others) == 1 else StringType()
        kinds = part.get("type")
        kinds = [one for one in (kinds if isinstance(kinds, list) else [kinds]) if one != "null"]
        match kinds:
            case ["object"] if part.get("properties"):
                named = part["properties"].items()
                return StructType([StructField(name, self.of(one, inside, within)) for name, one in named])
            case ["object"] if isinstance(part.get("additionalProperties"), dict):
                return MapType(StringType(), self.of(part["additionalProperties"], inside, within))
            case ["array"] if isinstance(part.get("items"), dict):
                return ArrayType(self.of(part["items"], inside, within))
            case ["string"]:
                return _FORMATS.get(str(part.get("format")), StringType())
            case [str() as kind]:
                return _TYPES.get(kind, StringType())
        return StringType()

    def _resolved(self, reference: str, inside: Any) -> tuple[Any, Any]:
        name, _, pointer = reference.partition("#")
        found = there = self._others.get(name) if name else inside
        for step in pointer.split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, dict) else None
        if found is None:
            raise SchemaError(f"JSON Schema: it refers to {reference}, which is neither in it nor registered")
        return found, there


def framed_decoder(schemas: Schemas, kind: pa.StructType, *, is_whole: bool) -> Convert:
    """Return a decoder of values that name their schema in `schemas`, into rows of an Arrow type.

    `is_whole`: a row has the one field `value`.
    """
    convert, parse = converter(kind, _exact_leaf), msgspec.json.Decoder(float_hook=_inexact).decode

    @lru_cache(maxsize=4096)
    def known(schema_id: SchemaId) -> Schema:
        return schemas.by_id(schema_id, Kind.JSON)

    def decode(data: bytes) -> Any:
        framed = framing.read(data)
        # Raises UnknownSchema, which makes a corrupt record.
        known(framed.schema_id)
        value = parse(data[framed.data_start :])
        if is_whole:
            value = {WHOLE_VALUE: value}
        elif not isinstance(value, dict):
            raise TypeError(f"an object was expected, not {type(value).__name__}")
        return convert(value) if convert else value

    return decode


def plain_decoder(kind: pa.StructType) -> Convert:
    """Return a decoder of JSON objects that name no schema into rows of an Arrow type.

    Numbers are exact: a decimal may be a number of any form.
    """
    convert, parse = converter(kind, _exact_leaf), msgspec.json.Decoder(float_hook=Decimal).decode

    def decode(data: bytes) -> Any:
        value = parse(data)
        if not isinstance(value, dict):
            raise TypeError(f"an object was expected, not {type(value).__name__}")
        return convert(value) if convert else value

    return decode


def _inexact(text: str) -> float | Decimal:
    """Return a number as a float, unless that would make 0 or infinity of another number."""
    found = float(text)
    return found if found and isfinite(found) else Decimal(text)


def _exact_leaf(kind: pa.DataType) -> Convert | None:
    leaf = _leaf(kind)
    if leaf is None or not pa.types.is_floating(kind):
        return leaf
    return lambda value: leaf(_finite(value))


def _finite(value: Any) -> Any:
    """Return the float of an exact number. Raises OverflowError if it is too large for one."""
    found = float(value) if isinstance(value, Decimal) else value
    if found in (inf, -inf):
        raise OverflowError(f"{value} is too large for a double")
    return found


def _leaf(kind: pa.DataType) -> Convert | None:
    return _text if pa.types.is_string(kind) else of_text(kind)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _ENCODER.encode(value).decode()


def encoder(schema: Schema) -> Callable[[Any], bytes]:
    """Return a function that encodes a row (a dict) as JSON, framed by the schema's id, without nulls.

    Raises SchemaError.
    """
    check, prefix = checker(schema), framing.prefix(schema.id)

    def encode(row: Any) -> bytes:
        text = _ENCODER.encode(_without_nulls(row))
        check(msgspec.json.decode(text))
        return prefix + text

    return encode


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value
