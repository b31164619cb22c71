"""Turns Avro records into Spark rows and back: the types (Spark: SchemaConverters), decoders, an encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import time
from functools import lru_cache
from typing import Any, Final

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

from mpbroker.registry import framing
from mpbroker.registry.avro import INT, LEAVES, LONG, Reader, Values, name_of, parsed, reader, writer
from mpbroker.registry.schemas import Convert, Kind, SchemaError, SchemaId, Schemas
from spark_integration.values import TypeCount, unless_null

WHOLE_VALUE: Final = "value"
"""The only field of the result unless the schema is a record."""

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


class AvroType:
    """The Spark type of an Avro schema, and the conversion of fastavro's values into it."""

    def __init__(self, schema: Any) -> None:
        """Map `schema`, JSON as text or already parsed. Raises SchemaError."""
        self.parsed = parsed(schema)
        self._names: dict[str, Any] = {}
        self._open: set[str] = set()
        self._count = TypeCount()
        spark, convert = self._of(self.parsed)
        if not isinstance(spark, StructType) or isinstance(self.parsed, list):
            whole = StructType([StructField(WHOLE_VALUE, spark)])
            self.spark: StructType = whole
            self.convert: Convert | None = lambda value: {WHOLE_VALUE: convert(value) if convert else value}
        else:
            self.spark, self.convert = spark, convert

    def _of(self, schema: Any) -> tuple[DataType, Convert | None]:
        self._count.add()
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
            raise SchemaError(f"Avro schema: type {name} is not defined")
        return self._of(self._names[name])

    def _record(self, schema: Mapping[str, Any]) -> tuple[DataType, Convert | None]:
        name = schema["name"]
        if name in self._open:
            raise SchemaError(f"Avro schema: {name} contains itself; Spark has no such types")
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
            raise SchemaError(
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
            raise SchemaError(
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


def plain_decoder(written: Any, wanted: Any | None) -> Convert:
    """Return a decoder of Avro data of the schema `written` into rows of `wanted` (None: the same schema)."""
    target = AvroType(written if wanted is None else wanted)
    read, convert = reader(parsed(written), None if wanted is None else target.parsed), target.convert
    return lambda data: convert(read(data, 0)) if convert else read(data, 0)


def framed_decoder(schemas: Schemas, wanted: Any) -> Convert:
    """Return a decoder of values that name their schema in `schemas`, into rows of the schema `wanted`."""
    target = AvroType(wanted)
    convert = target.convert

    @lru_cache(maxsize=4096)
    def written(schema_id: SchemaId) -> Reader:
        return reader(parsed(schemas.by_id(schema_id, Kind.AVRO)), target.parsed)

    def decode(data: bytes) -> Any:
        framed = framing.read(data)
        value = written(framed.schema_id)(data, framed.start)
        return convert(value) if convert else value

    return decode


class _RowValues(Values):
    """Converts values of Spark's rows, whose types come from `AvroType`. Raises ValueError."""

    leaves: Mapping[tuple[str, str | None], Any] = {
        **LEAVES,
        ("int", "time-millis"): INT,
        ("long", "time-micros"): LONG,
        ("string", "uuid"): str,
    }

    def branch(self, branches: list[Any], value: Any) -> Any:
        others = [branch for branch in branches if _kind(branch) != "null"]
        is_members = len(others) > 1 and isinstance(value, dict) and value.keys() <= _members_of(others)
        if not is_members:
            return None if value is None and len(others) < len(branches) else super().branch(others, value)
        for number, branch in enumerate(others):
            if (member := value.get(f"member{number}")) is not None:
                return name_of(branch), self.of(branch, member)
        return None


def _members_of(branches: list[Any]) -> set[str]:
    return {f"member{number}" for number in range(len(branches))}


def encoder(schema: Any, prefix: bytes) -> Callable[[Any], bytes]:
    """Return an encoder of rows, which are dicts, that puts `prefix` before each value.

    If the schema is no record, and a row has only the field `value`, that field is encoded, not a struct.
    Raises SchemaError.
    """
    target = AvroType(schema)
    convert, write = _RowValues(target.parsed), writer(target.parsed)
    is_record = isinstance(target.parsed, dict) and target.parsed["type"] in ("record", "error")

    def encode(row: Any) -> bytes:
        if not is_record and isinstance(row, dict) and row.keys() == {WHOLE_VALUE}:
            row = row[WHOLE_VALUE]
        return write(convert(row), prefix)

    return encode
