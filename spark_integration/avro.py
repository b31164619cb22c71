"""Turns Avro records into Spark rows: the types (Spark: SchemaConverters), and a decoder on fastavro."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import time
from functools import lru_cache
from io import BytesIO
from typing import Any, Final, NamedTuple

from fastavro import parse_schema, schemaless_reader
from fastavro.schema import SchemaParseException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_integration.avro_bounds import Bounds, bounds_of
from spark_integration.schema_registry import Directory, Registry
from spark_integration.values import Convert, unless_null

WHOLE_VALUE: Final = "value"
"""The only field of the result unless the schema is a record."""

_MAGIC = 0
_PREFIX_BYTES = 5
_PRECISION_MAX = 38
_PLAIN: Final[Mapping[str, DataType]] = {
    "null": NullType(),
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
    "fixed": BinaryType(),
    "enum": StringType(),
}
_LOGICAL: Final[Mapping[tuple[str, str], DataType]] = {
    ("int", "date"): DateType(),
    ("int", "time-millis"): IntegerType(),
    ("long", "time-micros"): LongType(),
    ("long", "timestamp-millis"): TimestampType(),
    ("long", "timestamp-micros"): TimestampType(),
    ("long", "local-timestamp-millis"): TimestampNTZType(),
    ("long", "local-timestamp-micros"): TimestampNTZType(),
}
# The Python type by which a value of a union shows its branch.
_KINDS: Final = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "string": str,
    "enum": str,
    "bytes": bytes,
    "fixed": bytes,
    "array": list,
    "map": dict,
    "record": dict,
}
# Pairs of branches that Spark merges into the wider type.
_WIDER: Final = ({"int", "long"}, {"float", "double"})


class AvroSchemaError(ValueError):
    """The text is no Avro schema, or Spark has no type for a part of it."""


class AvroType:
    """The Spark type of an Avro schema, and the conversion of fastavro's values into it."""

    def __init__(self, schema: Any) -> None:
        """Map `schema`, JSON as text or already parsed. Raises AvroSchemaError."""
        self.parsed = parsed(schema)
        self._names: dict[str, Any] = {}
        self._open: set[str] = set()
        spark, convert = self._of(self.parsed)
        if not isinstance(spark, StructType) or isinstance(self.parsed, list):
            whole = StructType([StructField(WHOLE_VALUE, spark)])
            self.spark: StructType = whole
            self.convert: Convert | None = lambda value: {WHOLE_VALUE: convert(value) if convert else value}
        else:
            self.spark, self.convert = spark, convert

    def _of(self, schema: Any) -> tuple[DataType, Convert | None]:
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            return (_PLAIN[schema], None) if schema in _PLAIN else self._named(schema)
        kind = schema["type"]
        if not isinstance(kind, str) or (kind not in _PLAIN and kind not in _KINDS):
            return self._of(kind)
        if "name" in schema:
            self._names[schema["name"]] = schema
        if kind in ("record", "error"):
            return self._record(schema)
        if kind == "array":
            spark, convert = self._of(schema["items"])
            return ArrayType(spark), _each(convert) if convert else None
        if kind == "map":
            spark, convert = self._of(schema["values"])
            return MapType(StringType(), spark), _pairs(convert)
        return _leaf(kind, schema)

    def _named(self, name: str) -> tuple[DataType, Convert | None]:
        if name not in self._names:
            raise AvroSchemaError(f"Avro schema: type {name} is not defined")
        return self._of(self._names[name])

    def _record(self, schema: Mapping[str, Any]) -> tuple[DataType, Convert | None]:
        name = schema["name"]
        if name in self._open:
            raise AvroSchemaError(f"Avro schema: {name} contains itself; Spark has no such types")
        self._open.add(name)
        found = {one["name"]: self._of(one["type"]) for one in schema["fields"]}
        self._open.remove(name)
        converts = {name: convert for name, (_, convert) in found.items() if convert}
        spark = StructType([StructField(name, kind) for name, (kind, _) in found.items()])
        return spark, _fields(converts) if converts else None

    def _union(self, branches: list[Any]) -> tuple[DataType, Convert | None]:
        """Map a union as Spark does.

        Null makes the type nullable. int with long is long, float with double is double; others are a struct.
        """
        others = [branch for branch in branches if _kind(branch) != "null"]
        if not others:
            return NullType(), None
        if len(others) == 1:
            spark, convert = self._of(others[0])
            return spark, unless_null(convert) if convert else None
        kinds = [
            _kind(self._names.get(branch, branch) if isinstance(branch, str) else branch) for branch in others
        ]
        for wider in _WIDER:
            if set(kinds) == wider and all(isinstance(branch, str) for branch in others):
                return (_PLAIN["long"] if "long" in wider else _PLAIN["double"]), None
        found = [self._of(branch) for branch in others]
        pythons = [_KINDS[kind] for kind in kinds]
        has_logical = any(isinstance(branch, dict) and "logicalType" in branch for branch in others)
        if len(set(pythons)) < len(pythons) or has_logical:
            raise AvroSchemaError(
                f"Avro schema: the values of a union of {', '.join(kinds)} do not show their branch. "
                "Give a reader schema with one of them"
            )
        members = [StructField(f"member{number}", kind) for number, (kind, _) in enumerate(found)]
        return StructType(members), _members(pythons, [convert for _, convert in found])


def _leaf(kind: str, schema: Mapping[str, Any]) -> tuple[DataType, Convert | None]:
    logical = schema.get("logicalType")
    if kind in ("bytes", "fixed") and logical == "decimal":
        precision, scale = int(schema["precision"]), int(schema.get("scale", 0))
        if precision > _PRECISION_MAX:
            raise AvroSchemaError(
                f"Avro schema: a decimal of {precision} digits; Spark has {_PRECISION_MAX} at most"
            )
        return DecimalType(precision, scale), None
    if logical == "uuid":
        return StringType(), str
    spark = _LOGICAL.get((kind, str(logical)), _PLAIN[kind])
    if logical in ("time-millis", "time-micros"):
        return spark, _milliseconds if logical == "time-millis" else _microseconds
    return spark, None


def _kind(branch: Any) -> str:
    while isinstance(branch, dict):
        branch = branch["type"]
    return str(branch)


def _microseconds(value: time) -> int:
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return seconds * 1_000_000 + value.microsecond


def _milliseconds(value: time) -> int:
    return _microseconds(value) // 1000


def _each(convert: Convert) -> Convert:
    return lambda values: [convert(value) for value in values]


def _pairs(convert: Convert | None) -> Convert:
    """Return a conversion from a dict to (key, value) pairs, which Arrow takes for a map."""
    if convert is None:
        return lambda values: list(values.items())
    return lambda values: [(key, convert(value)) for key, value in values.items()]


def _fields(converts: Mapping[str, Convert]) -> Convert:
    def convert(record: dict[str, Any]) -> dict[str, Any]:
        for name, one in converts.items():
            record[name] = one(record[name])
        return record

    return convert


def _members(pythons: list[type], converts: list[Convert | None]) -> Convert:
    def convert(value: Any) -> dict[str, Any] | None:
        if value is None:
            return None
        number = pythons.index(type(value))
        one = converts[number]
        return {f"member{number}": one(value) if one else value}

    return convert


def parsed(schema: Any) -> Any:
    """Parse a schema into fastavro's form: names in full, definitions checked. Raises AvroSchemaError."""
    if isinstance(schema, str) and schema.lstrip()[:1] in '{["':
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise AvroSchemaError(f"Avro schema: no JSON: {error}") from error
    try:
        return parse_schema(schema, named_schemas={})
    except (SchemaParseException, KeyError, TypeError, ValueError) as error:
        raise AvroSchemaError(f"Avro schema: {type(error).__name__}: {error}") from error


class _Written(NamedTuple):
    """A writer's schema, and the check that its encoded values need before fastavro decodes them, or None."""

    schema: Any
    bounds: Bounds | None


def plain_decoder(writer: Any, reader: Any | None) -> Convert:
    """Return a decoder of Avro's binary encoding, written with the `writer` schema, into rows of `reader`."""
    target = AvroType(writer if reader is None else reader)
    written = _written(writer, target, is_resolved=reader is not None)
    return lambda data: _decoded(data, 0, written, target, is_resolved=reader is not None)


def framed_decoder(schemas: Registry | Directory, reader: Any) -> Convert:
    """Return a decoder of Confluent's framing.

    A value is a zero, the schema's id (4 bytes, big endian), then Avro's encoding.
    """
    target = AvroType(reader)

    @lru_cache(maxsize=4096)
    def written(number: int) -> _Written:
        return _written(schemas.by_id(number), target, is_resolved=True)

    def decode(data: bytes) -> Any:
        if len(data) < _PREFIX_BYTES or data[0] != _MAGIC:
            raise ValueError("it does not begin with a zero and the id of a schema")
        number = int.from_bytes(data[1:_PREFIX_BYTES], "big")
        return _decoded(data, _PREFIX_BYTES, written(number), target, is_resolved=True)

    return decode


def _written(writer: Any, target: AvroType, *, is_resolved: bool) -> _Written:
    schema = parsed(writer)
    return _Written(schema, bounds_of(schema, is_resolved=is_resolved and schema != target.parsed))


def _decoded(data: bytes, start: int, written: _Written, target: AvroType, *, is_resolved: bool) -> Any:
    if written.bounds is not None:
        written.bounds(data, start)
    stream = BytesIO(data)
    stream.seek(start)
    value = schemaless_reader(stream, written.schema, target.parsed if is_resolved else None)
    left = len(data) - stream.tell()
    if left:
        raise ValueError(f"{left} bytes are left over: it was written with another schema")
    return target.convert(value) if target.convert else value
