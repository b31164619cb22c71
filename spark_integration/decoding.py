"""Describes how encoded values become structs, for functions on columns as well as for the data source.

A description is made where a query is written or planned. It travels to the workers, which make a decoder of
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructField, StructType

from mpbroker.reading.errors import OptionError
from spark_integration.values import CORRUPT, Convert, Mode, converter, decode_column, of_text

CORRUPT_FIELD: Final = StructField(
    CORRUPT, StructType([StructField("error", StringType()), StructField("data", BinaryType())])
)
"""`values.CORRUPT_TYPE` in Spark's types."""


class MsgPack(msgspec.Struct, frozen=True):
    """Decodes MessagePack maps."""

    def decoder(self, kind: pa.StructType) -> Convert:
        """Return a function that decodes the bytes of one value to a dict. Arrow can convert it to `kind`."""
        decode = msgspec.msgpack.Decoder(ext_hook=_refuse_extension).decode
        convert = converter(kind, of_text)
        if convert is None:
            return lambda data: _record(decode(data))
        return lambda data: convert(_record(decode(data)))


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


class Decoding(msgspec.Struct, frozen=True):
    """Decodes columns of values. `struct` is the result's type as JSON, `_corrupt` included if permissive."""

    struct: str
    mode: Mode
    form: MsgPack | Avro

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


class AvroSchemas(NamedTuple):
    """The schemas that values were written with and are read as; see `functions.from_avro`."""

    schema: str | Mapping[str, Any] | None = None
    registry: str | None = None
    subject: str | None = None
    version: int | str = "latest"
    reader_schema: str | Mapping[str, Any] | None = None
    headers: Mapping[str, str] | None = None


def msgpack_decoding(wanted: StructType, mode: Mode) -> Decoding:
    """Return how to decode MessagePack into the fields of `wanted`, made nullable. Raises OptionError."""
    return _decoding(nullable_struct(wanted), mode, MsgPack())


def avro_decoding(given: AvroSchemas, mode: Mode) -> Decoding:
    """Return how to decode Avro. Asks a registry for the subject's schema, if no other schema is given.

    Raises OptionError, RegistryUnavailable.
    """
    from spark_integration.avro import AvroSchemaError, AvroType
    from spark_integration.schema_registry import UnknownSchema, open_schemas

    try:
        schemas = None if given.registry is None else open_schemas(given.registry, given.headers)
        target = given.reader_schema if given.reader_schema is not None else given.schema
        if target is None and schemas is not None and given.subject is not None:
            target = schemas.by_subject(given.subject, given.version)
        if target is None or (schemas is None and given.schema is None):
            raise OptionError(
                "Avro needs a schema: without registry give schema, the one that values were written "
                "with; with registry give subject, schema or reader schema, for the columns"
            )
        spark = AvroType(target).spark
        if schemas is None:
            AvroType(given.schema)
    except (AvroSchemaError, UnknownSchema) as error:
        raise OptionError(str(error)) from error
    writer = None if schemas is not None else _json(given.schema)
    reader = None if schemas is None and given.reader_schema is None else _json(target)
    return _decoding(spark, mode, Avro(writer, reader, schemas))


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


def _decoding(wanted: StructType, mode: Mode, form: MsgPack | Avro) -> Decoding:
    if CORRUPT in wanted.names:
        raise OptionError(f"schema: the field {CORRUPT} is added, leave it away")
    fields = [*wanted.fields, CORRUPT_FIELD] if mode is Mode.PERMISSIVE else wanted.fields
    return Decoding(StructType(fields).json(), mode, form)


@lru_cache(maxsize=256)
def _made(decoding: Decoding) -> tuple[pa.StructType, Convert]:
    """Make the Arrow type and the decoder, once in each worker process."""
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
