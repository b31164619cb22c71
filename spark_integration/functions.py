"""Decodes columns of values into columns of structs: Arrow UDFs, for batch queries and streams.

For JSON there is none: Spark's own `from_json(col("value").cast("string"), schema)` decodes in the JVM, where
the data are, faster than any Python could, and numbers of any size as decimal or string columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.functions import col
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import (
    BinaryType,
    DataType,
    StringType,
    StructField,
    StructType,
)

from mpbroker.reading.errors import OptionError
from spark_integration.values import CORRUPT, Convert, Mode, converter, decode_column, of_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# PySpark's stubs want the kind of function named, PySpark itself warns of that.
_by_its_hints: Any = arrow_udf
_CORRUPT_FIELD = StructField(
    CORRUPT, StructType([StructField("error", StringType()), StructField("data", BinaryType())])
)


def from_msgpack(column: Column | str, schema: StructType | str, *, mode: str = "PERMISSIVE") -> Column:
    """Decodes MessagePack maps into a struct. The schema is a StructType or DDL: `id bigint, at timestamp`.

    Keys that the schema does not have are left out, and missing ones are null. Timestamps are MessagePack's
    or ISO 8601 text, dates are such text, decimals text or integers. All fields are nullable.

    Null gives null. With mode PERMISSIVE a record that cannot be decoded, or does not fit the schema, has
    null in all fields but `_corrupt`, a struct of `error` and `data`; with FAILFAST it ends the query. To do
    without them use `df.transform(drop_malformed("column"))`. Raises OptionError.
    """
    wanted, chosen = _struct(schema), _mode(mode)
    return _decoded(column, wanted, chosen, _MsgPack(wanted.json()))


def from_avro(
    column: Column | str,
    schema: str | Mapping[str, Any] | None = None,
    *,
    registry: str | None = None,
    subject: str | None = None,
    version: int | str = "latest",
    reader_schema: str | Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    mode: str = "PERMISSIVE",
) -> Column:
    """Decodes Avro into a struct; a schema that is no record gives a struct with the field `value`.

    With `registry` values have Confluent's framing: a zero, the id of the schema that they were written
    with, the data. It is the address of a registry (user and password may stand in it, `headers` go with
    each request) or a directory with `<id>.avsc`, `<subject>.avsc` and `<subject>-v<version>.avsc`. The
    columns are those of `reader_schema`, else of `schema`, else of the subject's version, asked once, now.

    Without `registry` values are Avro data alone, all written with `schema`.

    Nulls and modes are those of `from_msgpack`; a record of a schema that the registry does not have is
    corrupt, a registry that does not answer ends the query. Raises OptionError, RegistryUnavailable.
    """
    from spark_integration.avro import AvroSchemaError, AvroType
    from spark_integration.schema_registry import UnknownSchema, open_schemas

    chosen = _mode(mode)
    try:
        schemas = None if registry is None else open_schemas(registry, headers)
        target = reader_schema if reader_schema is not None else schema
        if target is None and schemas is not None and subject is not None:
            target = schemas.by_subject(subject, version)
        if target is None or (schemas is None and schema is None):
            raise OptionError(
                "from_avro needs a schema: without registry give schema, the one that values were written "
                "with; with registry give subject, schema or reader_schema, for the columns"
            )
        spark = AvroType(target).spark
        if schemas is None:
            AvroType(schema)
    except (AvroSchemaError, UnknownSchema) as error:
        raise OptionError(f"from_avro: {error}") from error
    writer = None if schemas is not None else _json(schema)
    reader = None if schemas is None and reader_schema is None else _json(target)
    return _decoded(column, spark, chosen, _Avro(writer, reader, schemas))


def drop_malformed(*columns: str) -> Callable[[DataFrame], DataFrame]:
    """Returns a function for `df.transform` that leaves out rows with a malformed record in these columns.

    The field `_corrupt` goes with them. Rows whose column is null stay.
    """

    def transform(frame: DataFrame) -> DataFrame:
        for name in columns:
            frame = frame.where(col(name)[CORRUPT].isNull()).withColumn(name, col(name).dropFields(CORRUPT))
        return frame

    return transform


class _MsgPack(msgspec.Struct, frozen=True):
    """Travels to the workers, which make a decoder of it."""

    schema: str

    def decoder(self, kind: pa.StructType) -> Convert:
        decode = msgspec.msgpack.Decoder(ext_hook=_refuse_extension).decode
        convert = converter(kind, of_text)
        if convert is None:
            return lambda data: _record(decode(data))
        return lambda data: convert(_record(decode(data)))


class _Avro(msgspec.Struct, frozen=True):
    """Schemas are JSON, of one value each: the form that can be compared, and kept by workers."""

    writer: str | None
    reader: str | None
    schemas: Any

    def decoder(self, kind: pa.StructType) -> Convert:  # noqa: ARG002 - the schemas say it, too
        from spark_integration.avro import framed_decoder, plain_decoder

        reader = None if self.reader is None else msgspec.json.decode(self.reader)
        if self.writer is not None:
            return plain_decoder(msgspec.json.decode(self.writer), reader)
        return framed_decoder(self.schemas, reader)


def _json(schema: Any) -> str:
    return msgspec.json.encode(schema).decode()


def _record(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"a map was expected, not {type(value).__name__}")
    return value


def _refuse_extension(code: int, data: memoryview) -> Any:
    raise ValueError(f"extension type {code} ({len(data)} bytes) is not known")


def _decoded(column: Column | str, wanted: StructType, mode: Mode, source: _MsgPack | _Avro) -> Column:
    if CORRUPT in wanted.names:
        raise OptionError(f"schema: the field {CORRUPT} is added, leave it away")
    fields = [*wanted.fields, _CORRUPT_FIELD] if mode is Mode.PERMISSIVE else wanted.fields
    result = StructType(fields)

    as_json = result.json()

    # What is pickled is this function and what it names; workers import the module.
    def decode(values: pa.Array) -> pa.Array:
        kind, decoder = _made(as_json, source)
        return decode_column(values, decoder, kind, mode)

    decoded: Column = _by_its_hints(decode, result)(col(column) if isinstance(column, str) else column)
    return decoded


@lru_cache(maxsize=256)
def _made(result: str, source: _MsgPack | _Avro) -> tuple[pa.StructType, Convert]:
    """Makes the Arrow type and the decoder, once in each worker process."""
    from pyspark.sql.pandas.types import to_arrow_type

    kind = to_arrow_type(StructType.fromJson(msgspec.json.decode(result)), timezone="UTC")
    return kind, source.decoder(kind)


def _mode(text: str) -> Mode:
    upper = text.strip().upper()
    if upper == "DROPMALFORMED":
        raise OptionError(
            "mode: a column cannot drop rows. Use PERMISSIVE, then df.transform(drop_malformed('column'))"
        )
    try:
        return Mode(upper)
    except ValueError:
        raise OptionError(f"mode is PERMISSIVE or FAILFAST, not '{text}'") from None


def _struct(schema: StructType | str) -> StructType:
    found: DataType = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(found, StructType):
        raise OptionError(f"schema: a struct is needed, such as 'id bigint, name string', not {found}")
    nullable = _nullable(found)
    assert isinstance(nullable, StructType)
    return nullable


def _nullable(kind: DataType) -> DataType:
    """Makes all fields nullable, as Spark's from_json does: what others wrote may lack any of them."""
    from pyspark.sql.types import ArrayType, MapType

    if isinstance(kind, StructType):
        return StructType([StructField(one.name, _nullable(one.dataType)) for one in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind
