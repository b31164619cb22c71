"""Describes how encoded values become structs and back, for functions on columns and for the data source.

A description is made where a query is written or planned, with the schemas that are known there. It travels
to the workers, which make a decoder or an encoder of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructField, StructType

from mpbroker.reading.errors import OptionError
from mpbroker.registry import framing
from mpbroker.registry.rest import Directory, Place, Registry, open_schemas
from mpbroker.registry.schemas import (
    UNREADABLE,
    Convert,
    Kind,
    MissingPackage,
    RegistryConfigError,
    Schema,
    SchemaError,
    SchemaId,
    Schemas,
    UnknownSchema,
)
from spark_integration.values import CORRUPT, Mode, converter, decode_column, of_text, without_pairs

CORRUPT_FIELD: Final = StructField(
    CORRUPT, StructType([StructField("error", StringType()), StructField("data", BinaryType())])
)
"""`values.CORRUPT_TYPE` in Spark's types."""


class WithKnown(NamedTuple):
    """A registry's schemas. One of them was looked up already, so workers need not ask for it."""

    schemas: Schemas
    schema: Schema

    def by_id(self, number: SchemaId, kind: Kind | None = None) -> Schema:
        if number and number in (self.schema.id, self.schema.guid) and self.schema.kind is kind:
            return self.schema
        return self.schemas.by_id(number, kind)

    def by_subject(self, subject: str, version: int | str, kind: Kind | None = None) -> Schema:
        return self.schemas.by_subject(subject, version, kind)


class Only(NamedTuple):
    """A schema that was looked up for values which all name it: workers ask nobody."""

    schema: Schema

    def by_id(self, number: SchemaId, kind: Kind | None = None) -> Schema:  # noqa: ARG002 - see `Schemas`
        return self.schema


class MsgPack(msgspec.Struct, frozen=True):
    """Decodes MessagePack maps."""

    def decoder(self, kind: pa.StructType) -> Convert:
        """Return a function that decodes the bytes of one value to a dict. Arrow can convert it to `kind`."""
        decode = msgspec.msgpack.Decoder(ext_hook=_refuse_extension).decode
        convert = converter(kind, of_text)
        if convert is None:
            return lambda data: _record(decode(data))
        return lambda data: convert(_record(decode(data)))


class PlainJson(msgspec.Struct, frozen=True):
    """Decodes JSON objects that name no schema."""

    def decoder(self, kind: pa.StructType) -> Convert:
        """Return a function that decodes the bytes of one value to a dict. Arrow can convert it to `kind`."""
        from spark_integration.json_schema import plain_decoder

        return plain_decoder(kind)


class Avro(msgspec.Struct, frozen=True):
    """Decodes Avro. `writer` and `reader` are JSON text, since the cache of `_made` needs hashable keys."""

    writer: str | None
    reader: str | None
    schemas: Any

    def decoder(self, kind: pa.StructType) -> Convert:  # noqa: ARG002 - the schemas have it, too
        from spark_integration.avro import framed_decoder, plain_decoder

        reader = None if self.reader is None else msgspec.json.decode(self.reader)
        if self.writer is not None:
            return plain_decoder(msgspec.json.decode(self.writer), reader)
        return framed_decoder(self.schemas, reader)


class Protobuf(msgspec.Struct, frozen=True):
    """Decodes Protobuf into a message of the schema `reader`. Without `schemas` values are data alone."""

    reader: Schema
    message: str | None
    schemas: Any

    def decoder(self, kind: pa.StructType) -> Convert:  # noqa: ARG002 - the schemas have it, too
        from spark_integration.protobuf import framed_decoder, plain_decoder

        if self.schemas is None:
            return plain_decoder(self.reader, self.message)
        return framed_decoder(self.schemas, self.reader, self.message)


class Json(msgspec.Struct, frozen=True):
    """Decodes JSON whose schema is in a registry. `is_whole`: the whole JSON becomes the field `value`."""

    schemas: Any
    is_whole: bool

    def decoder(self, kind: pa.StructType) -> Convert:
        from spark_integration.json_schema import framed_decoder

        return framed_decoder(self.schemas, kind, is_whole=self.is_whole)


Form = MsgPack | PlainJson | Avro | Protobuf | Json


class Decoding(msgspec.Struct, frozen=True):
    """Decodes columns of values. `struct` is the result's type as JSON, `_corrupt` included if permissive."""

    struct: str
    mode: Mode
    form: Form

    @property
    def spark(self) -> StructType:
        """Return Spark's type of the result."""
        return StructType.fromJson(msgspec.json.decode(self.struct))

    @property
    def arrow(self) -> pa.StructType:
        """Return Arrow's type of the result, converted from Spark's type as Spark does it."""
        return _made(self)[0]

    def decode(self, values: pa.Array) -> pa.StructArray:
        """Decode a binary column into structs, null for null. Raises MalformedRecord."""
        kind, decoder = _made(self)
        return decode_column(values, decoder, kind, self.mode)


class Encoding(NamedTuple):
    """Encodes columns of rows with a schema, framed if it has an id. `message` names a Protobuf message."""

    schema: Schema
    message: str | None = None

    def encode(self, rows: pa.Array) -> pa.Array:
        """Encode a column into a binary one, null for null. Raises ValueError for a row that does not fit."""
        encode = _encoder(self)
        plain = without_pairs(rows.type)
        try:
            return pa.array(
                [None if row is None else encode(plain(row) if plain else row) for row in rows.to_pylist()],
                pa.binary(),
            )
        except UNREADABLE as error:
            raise ValueError(f"a row does not fit the {self.schema.kind} schema: {error}") from error


@lru_cache(maxsize=256)
def _encoder(encoding: Encoding) -> Convert:
    """Make the encoder that `encoding` describes, once in each process. Raises SchemaError."""
    schema, message = encoding
    if schema.kind is Kind.AVRO:
        from spark_integration import avro

        return avro.encoder(schema, framing.prefix(schema.id) if schema.id else b"")
    if schema.kind is Kind.PROTOBUF:
        from spark_integration import protobuf

        return protobuf.encoder(schema, message)
    from spark_integration import json_schema

    return json_schema.encoder(schema)


class AvroSchemas(NamedTuple):
    """The schemas that values were written with and are read as; see `functions.from_avro`."""

    schema: str | Mapping[str, Any] | None = None
    registry: Place | None = None
    subject: str | None = None
    version: int | str = "latest"
    reader_schema: str | Mapping[str, Any] | None = None
    headers: Mapping[str, str] | None = None


class Subject(NamedTuple):
    """A subject of a registry; see `functions.from_protobuf`."""

    registry: Place
    subject: str | None
    version: int | str = "latest"
    headers: Mapping[str, str] | None = None


@contextmanager
def _options() -> Iterator[None]:
    """Turn errors about a schema or its registry into OptionError: the options of a query caused them."""
    try:
        yield
    except (SchemaError, UnknownSchema, RegistryConfigError, MissingPackage) as error:
        raise OptionError(str(error)) from error


def msgpack_decoding(wanted: StructType, mode: Mode) -> Decoding:
    """Return how to decode MessagePack into the fields of `wanted`, made nullable. Raises OptionError."""
    return _decoding(nullable_struct(wanted), mode, MsgPack())


def avro_decoding(given: AvroSchemas, mode: Mode) -> Decoding:
    """Return how to decode Avro. Asks a registry for the subject's schema, if no other schema is given.

    Raises OptionError, RegistryUnavailable.
    """
    with _options():
        from mpbroker.registry.avro import whole
        from spark_integration.avro import AvroType

        schemas = None if given.registry is None else open_schemas(given.registry, given.headers)
        target: Any = given.reader_schema if given.reader_schema is not None else given.schema
        known: Any = schemas
        if target is None and schemas is not None and given.subject is not None:
            found = schemas.by_subject(given.subject, given.version, Kind.AVRO)
            known, target = WithKnown(schemas, found), whole(found)
        if target is None or (schemas is None and given.schema is None):
            raise OptionError(
                "Avro needs a schema: without registry give schema, the one that values were written "
                "with; with registry give subject, schema or reader schema, for the columns"
            )
        spark = AvroType(target).spark
        if schemas is None:
            AvroType(given.schema)
    writer = None if schemas is not None else _json(given.schema)
    reader = None if schemas is None and given.reader_schema is None else _json(target)
    return _decoding(spark, mode, Avro(writer, reader, known))


def protobuf_decoding(given: Subject, message: str | None, mode: Mode) -> Decoding:
    """Return how to decode Protobuf into a message of a subject's schema.

    Raises OptionError, RegistryUnavailable.
    """
    with _options():
        from spark_integration.protobuf import type_of

        schemas, reader = _of_subject(given, Kind.PROTOBUF)
        return _decoding(
            type_of(reader, message), mode, Protobuf(reader, message, WithKnown(schemas, reader))
        )


def json_decoding(given: Subject, wanted: StructType | None, mode: Mode) -> Decoding:
    """Return how to decode JSON into the fields of `wanted`, by default those in a subject's schema.

    Raises OptionError, RegistryUnavailable.
    """
    with _options():
        from spark_integration.json_schema import type_of

        if wanted is not None:
            schemas = open_schemas(given.registry, given.headers)
            return _decoding(nullable_struct(wanted), mode, Json(schemas, is_whole=False))
        schemas, reader = _of_subject(given, Kind.JSON)
        spark, is_whole = type_of(reader)
        return _decoding(spark, mode, Json(WithKnown(schemas, reader), is_whole))


def plain_json_decoding(wanted: StructType, mode: Mode) -> Decoding:
    """Return how to decode JSON into the fields of `wanted`, made nullable. Raises OptionError."""
    return _decoding(nullable_struct(wanted), mode, PlainJson())


def written_decoding(found: Schema, message: str | None, mode: Mode, *, is_framed: bool = True) -> Decoding:
    """Return how to decode values into the fields of the schema that they were written with.

    Raises SchemaError, OptionError, MissingPackage.
    """
    schemas = Only(found) if is_framed else None
    if found.kind is Kind.AVRO:
        from mpbroker.registry.avro import whole
        from spark_integration.avro import AvroType

        text = _json(whole(found))
        form: Form = Avro(None, text, schemas) if is_framed else Avro(text, None, None)
        return _decoding(AvroType(text).spark, mode, form)
    if found.kind is Kind.PROTOBUF:
        from spark_integration import protobuf

        return _decoding(protobuf.type_of(found, message), mode, Protobuf(found, message, schemas))
    from spark_integration import json_schema

    spark, is_whole = json_schema.type_of(found)
    return _decoding(spark, mode, Json(schemas, is_whole))


def _of_subject(given: Subject, kind: Kind) -> tuple[Registry | Directory, Schema]:
    schemas = open_schemas(given.registry, given.headers)
    if given.subject is None:
        raise OptionError("subject is missing: of a topic's values it is TOPIC-value, of its keys TOPIC-key")
    return schemas, schemas.by_subject(given.subject, given.version, kind)


def encoding(
    kind: Kind, given: Subject, text: str | None, message: str | None, *, auto_register: bool
) -> Encoding:
    """Return how to encode rows with a subject's version, or with the schema `text`, which gets registered.

    Without `auto_register` the subject must have that schema. Raises OptionError, RegistryUnavailable.
    """
    with _options():
        if text is None:
            _, schema = _of_subject(given, kind)
        else:
            if kind is Kind.AVRO and text.isalpha():
                # Registries want JSON, also of a type that is no more than its name.
                text = f'"{text}"'
            schemas, bare = open_schemas(given.registry, given.headers), Schema(kind, text)
            if given.subject is None:
                raise OptionError("subject is missing: the schema is registered under its name")
            checked(Encoding(bare, message))
            number = (schemas.register if auto_register else schemas.find)(given.subject, bare)
            schema = bare._replace(id=number)
        if not schema.id:
            raise OptionError(f"{given.subject} has no id to frame values with: a directory gives none")
        return checked(Encoding(schema, message))


def checked(found: Encoding) -> Encoding:
    """Return the encoding, if its schema can be used. Raises OptionError."""
    with _options():
        _encoder(found)
    return found


def parse_mode(text: str) -> Mode:
    """Parse the name of a mode. Raises OptionError."""
    upper = text.strip().upper()
    if upper == "DROPMALFORMED":
        raise OptionError(
            "mode: a column cannot drop rows. Use PERMISSIVE, then df.transform(drop_malformed('column'))"
        )
    try:
        return Mode(upper)
    except ValueError:
        raise OptionError(f"mode is PERMISSIVE or FAILFAST, not '{text}'") from None


def nullable_struct(kind: StructType) -> StructType:
    """Make all fields nullable, as Spark's from_json does: values of other writers may lack any of them."""
    return StructType([StructField(one.name, _nullable(one.dataType)) for one in kind.fields])


def _nullable(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return nullable_struct(kind)
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


def _decoding(wanted: StructType, mode: Mode, form: Form) -> Decoding:
    if CORRUPT in wanted.names:
        raise OptionError(f"schema: the field {CORRUPT} is added, leave it away")
    fields = [*wanted.fields, CORRUPT_FIELD] if mode is Mode.PERMISSIVE else wanted.fields
    return Decoding(StructType(fields).json(), mode, form)


@lru_cache(maxsize=256)
def _made(decoding: Decoding) -> tuple[pa.StructType, Convert]:
    """Make the Arrow type and the decoder that `decoding` describes, once in each worker process."""
    from pyspark.sql.pandas.types import to_arrow_type

    kind = to_arrow_type(decoding.spark, timezone="UTC")
    return kind, decoding.form.decoder(kind)


def _json(schema: Any) -> str:
    return msgspec.json.encode(schema).decode()


def _record(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"a map was expected, not {type(value).__name__}")
    return value


def _refuse_extension(code: int, data: memoryview) -> Any:
    raise ValueError(f"extension type {code} ({len(data)} bytes) is not known")
