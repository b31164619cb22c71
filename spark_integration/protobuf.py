"""Turns Protobuf messages into Spark rows and back (Spark: ProtobufDeserializer, its types)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from mpbroker.registry import framing
from mpbroker.registry.protobuf import messages_of, new, read, write
from mpbroker.registry.schemas import Convert, Kind, Schema, SchemaError, SchemaId, Schemas
from spark_integration.values import TypeCount

_F = FieldDescriptor
# Unsigned numbers get a type that has all of them.
_SCALARS: Final[Mapping[int, DataType]] = {
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_SFIXED32), IntegerType()),
    **dict.fromkeys((_F.TYPE_INT64, _F.TYPE_SINT64, _F.TYPE_SFIXED64), LongType()),
    **dict.fromkeys((_F.TYPE_UINT32, _F.TYPE_FIXED32), LongType()),
    **dict.fromkeys((_F.TYPE_UINT64, _F.TYPE_FIXED64), DecimalType(20, 0)),
    _F.TYPE_FLOAT: FloatType(),
    _F.TYPE_DOUBLE: DoubleType(),
    _F.TYPE_BOOL: BooleanType(),
    _F.TYPE_STRING: StringType(),
    _F.TYPE_BYTES: BinaryType(),
    _F.TYPE_ENUM: StringType(),
}
_PACKAGE: Final = "google.protobuf."
# Messages of any JSON become its text: they contain themselves, and Spark has no such types.
_JSON: Final = ("Struct", "Value", "ListValue")
_WRAPPERS: Final = (
    *("DoubleValue", "FloatValue", "Int64Value", "UInt64Value", "Int32Value", "UInt32Value"),
    *("BoolValue", "StringValue", "BytesValue"),
)


class MessageType:
    """The Spark type of a message, and the conversions between both.

    Fields without presence have their default where the message lacks them; others are null. An enum's value
    becomes text: its name, or its number if it has no name. Timestamps and durations get Spark's own types,
    and a wrapper, such as Int64Value, gets the type that it wraps.
    """

    def __init__(
        self, descriptor: Descriptor, within: tuple[str, ...] = (), count: TypeCount | None = None
    ) -> None:
        """Map a message. `within`: the messages around it. Raises SchemaError."""
        count = TypeCount() if count is None else count
        name = descriptor.full_name
        if name in within:
            raise SchemaError(f"Protobuf schema: {name} contains itself; Spark has no such types")
        fields = {field.name: _Field(field, (*within, name), count) for field in descriptor.fields}
        self.spark = StructType([StructField(name, field.spark) for name, field in fields.items()])
        self._fields = fields
        self._name = name

    def row(self, message: Any) -> dict[str, Any]:
        return {name: field.get(message) for name, field in self._fields.items()}

    def fill(self, message: Any, row: Any) -> None:
        """Set the fields that a row has. Raises ValueError, TypeError."""
        for name, value in row.items():
            field = self._fields.get(name)
            if field is None:
                raise ValueError(f"message {self._name} has no field {name}")
            if value is not None:
                field.set(message, value)


class _Field:
    """A field: its type, and the conversions of its value."""

    def __init__(self, field: FieldDescriptor, within: tuple[str, ...], count: TypeCount) -> None:
        self._name = field.name
        self._has_presence = field.has_presence
        entry = field.message_type
        self._is_map = entry is not None and bool(entry.GetOptions().map_entry)
        self._is_repeated = field.is_repeated
        if entry is not None and self._is_map:
            key, value = (entry.fields_by_name[name] for name in ("key", "value"))
            self._key, self._one = _Value(key, within, count), _Value(value, within, count)
            self.spark: DataType = MapType(self._key.spark, self._one.spark)
        else:
            self._one = _Value(field, within, count)
            self.spark = ArrayType(self._one.spark) if self._is_repeated else self._one.spark

    def get(self, message: Any) -> Any:
        if self._has_presence and not message.HasField(self._name):
            return None
        value, of = getattr(message, self._name), self._one.of
        if self._is_map:
            return [(self._key.of(key), of(one)) for key, one in value.items()]
        return [of(one) for one in value] if self._is_repeated else of(value)

    def set(self, message: Any, value: Any) -> None:
        one = self._one
        if self._is_map:
            there = getattr(message, self._name)
            for key, inner in value.items():
                if one.fill is not None:
                    one.fill(there[self._key.back(key)], inner)
                else:
                    there[self._key.back(key)] = one.back(inner)
        elif self._is_repeated:
            there = getattr(message, self._name)
            for inner in value:
                if one.fill is not None:
                    one.fill(there.add(), inner)
                else:
                    there.append(one.back(inner))
        elif one.fill is not None:
            there = getattr(message, self._name)
            there.SetInParent()
            one.fill(there, value)
        else:
            setattr(message, self._name, one.back(value))


class _Value:
    """Converts one value: `of` to Spark's form; `back`, or `fill` if it is not None, from Spark's form."""

    def __init__(self, field: FieldDescriptor, within: tuple[str, ...], count: TypeCount) -> None:
        count.add()
        self.fill: Callable[[Any, Any], None] | None = None
        self.of: Convert = _same
        self.back: Convert = _same
        if field.message_type is not None:
            self._of_message(field.message_type, within, count)
            return
        self.spark = _SCALARS[field.type]
        if field.enum_type is not None:
            names, numbers = field.enum_type.values_by_number, field.enum_type.values_by_name
            self.of = lambda number: names[number].name if number in names else str(number)
            self.back = lambda name: numbers[name].number if name in numbers else int(name)
        elif isinstance(self.spark, DecimalType):
            self.of, self.back = Decimal, int

    def _of_message(self, descriptor: Descriptor, within: tuple[str, ...], count: TypeCount) -> None:
        name = descriptor.full_name.removeprefix(_PACKAGE)
        is_known = descriptor.full_name.startswith(_PACKAGE)
        if is_known and name == "Timestamp":
            self.spark = TimestampType()
            self.of = lambda message: message.ToDatetime(UTC)
            self.fill = lambda message, value: message.FromDatetime(value)
        elif is_known and name == "Duration":
            self.spark = DayTimeIntervalType()
            self.of = lambda message: message.ToTimedelta()
            self.fill = lambda message, value: message.FromTimedelta(value)
        elif is_known and name in _JSON:
            self.spark = StringType()
            self.of = lambda message: json_format.MessageToJson(message, indent=None, ensure_ascii=False)
            self.fill = _parse
        elif is_known and name in _WRAPPERS:
            inner = _Value(descriptor.fields_by_name["value"], within, count)
            self.spark = inner.spark
            self.of = lambda message: inner.of(message.value)
            self.fill = lambda message, value: setattr(message, "value", inner.back(value))
        else:
            known = MessageType(descriptor, within, count)
            self.spark, self.of, self.fill = known.spark, known.row, known.fill


def _same(value: Any) -> Any:
    return value


def _parse(message: Message, text: str) -> None:
    try:
        json_format.Parse(text, message)
    except json_format.ParseError as error:
        raise ValueError(str(error)) from error


def type_of(schema: Schema, message: str | None) -> StructType:
    """Return Spark's type of a message; None: the first of the schema. Raises SchemaError."""
    return MessageType(messages_of(schema).named(message)).spark


def framed_decoder(schemas: Schemas, wanted: Schema, message: str | None) -> Convert:
    """Return a decoder of values that name their schema in `schemas`, into rows of a message of `wanted`.

    Fields are found by their numbers, so a message may have been written with any version of the schema.
    """
    descriptor = messages_of(wanted).named(message)
    target = MessageType(descriptor)

    @lru_cache(maxsize=4096)
    def written(schema_id: SchemaId, path: framing.Path) -> str:
        return messages_of(schemas.by_id(schema_id, Kind.PROTOBUF)).at(path).full_name

    def decode(data: bytes) -> Any:
        framed = framing.read(data)
        path, start = framed.path()
        name = written(framed.schema_id, path)
        if name != descriptor.full_name:
            raise ValueError(f"it is a message {name}, not {descriptor.full_name}")
        return target.row(read(descriptor, data[start:]))

    return decode


def plain_decoder(schema: Schema, message: str | None) -> Convert:
    """Return a decoder of messages that name no schema into rows of a message of `schema`."""
    descriptor = messages_of(schema).named(message)
    target = MessageType(descriptor)
    return lambda data: target.row(read(descriptor, data))


def encoder(schema: Schema, message: str | None) -> Callable[[Any], bytes]:
    """Return a function that encodes a row (a dict) as a framed message. Raises SchemaError."""
    messages = messages_of(schema)
    descriptor = messages.named(message)
    target = MessageType(descriptor)
    prefix = framing.prefix(schema.id, messages.path_of(descriptor))

    def encode(row: Any) -> bytes:
        made = new(descriptor)
        target.fill(made, row)
        return prefix + write(made)

    return encode
