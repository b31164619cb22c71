"""Functions between columns of encoded values and structs: Arrow UDFs, for batch queries and streams.

A function with a registry asks it for the columns' schema while the query is written. Later each worker asks
the registry once for each further schema id that it finds in values. JSON without a registry needs no
function of this module: Spark's own `from_json(col("value").cast("string"), schema)` decodes in the JVM,
where the data are, and takes numbers of any size into decimal or string columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.functions import col
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import BinaryType, DataType, StructType

from mpbroker.reading.errors import OptionError
from mpbroker.registry.rest import Place
from mpbroker.registry.schemas import Kind, Schema
from spark_integration.decoding import (
    AvroSchemas,
    Decoding,
    Encoding,
    Subject,
    avro_decoding,
    checked,
    encoding,
    json_decoding,
    msgpack_decoding,
    parse_mode,
    protobuf_decoding,
)
from spark_integration.values import CORRUPT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# PySpark's stubs require the kind of function to be named; PySpark itself warns if it is.
_by_its_hints: Any = arrow_udf


def from_msgpack(column: Column | str, schema: StructType | str, *, mode: str = "PERMISSIVE") -> Column:
    """Decode MessagePack maps into a struct. The schema is a StructType or DDL: `id bigint, at timestamp`.

    Keys that are not in the schema are left out, missing ones are null, and all fields are nullable.
    Timestamps are MessagePack's own or ISO 8601 text, dates ISO 8601 text, decimals text or integers.

    A null value gives null. With mode PERMISSIVE a record that cannot be decoded, or does not fit the schema,
    is null in all fields but `_corrupt`, a struct of `error` and `data`;
    `df.transform(drop_malformed("column"))` removes such rows. With mode FAILFAST it ends the query.

    Raises OptionError.
    """
    return _decoded(column, msgpack_decoding(_struct(schema), parse_mode(mode)))


def from_avro(
    column: Column | str,
    schema: str | Mapping[str, Any] | None = None,
    *,
    registry: Place | None = None,
    subject: str | None = None,
    version: int | str = "latest",
    reader_schema: str | Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    mode: str = "PERMISSIVE",
) -> Column:
    """Decode Avro into a struct. Any schema but a record gives a struct with the one field `value`.

    Without `registry` a value is Avro data alone, and all values are written with `schema`.

    With `registry` a value has Confluent's framing: a zero, the id of the schema that it was written with,
    the data. The registry is an address, which may contain a user and a password, or several, separated by
    commas (`headers` go with each request); or settings by the names of Confluent's clients, such as
    `{"schema.registry.url": …, "basic.auth.user.info": …, "ssl.ca.location": …}`; or a directory with
    `<id>.avsc`, `<subject>.avsc` and `<subject>-v<version>.avsc`. The columns come from `reader_schema`, else
    from `schema`, else from the subject's version, which is looked up once, during this call.

    Nulls and modes work as in `from_msgpack`. A record whose schema the registry does not have is corrupt;
    a registry that does not answer ends the query.

    Raises OptionError, RegistryUnavailable.
    """
    chosen = parse_mode(mode)
    wanted = AvroSchemas(schema, registry, subject, version, reader_schema, headers)
    try:
        return _decoded(column, avro_decoding(wanted, chosen))
    except OptionError as error:
        raise OptionError(f"from_avro: {error}") from error


def to_avro(
    column: Column | str,
    schema: str | Mapping[str, Any] | None = None,
    *,
    registry: Place | None = None,
    subject: str | None = None,
    version: int | str = "latest",
    auto_register: bool = True,
    headers: Mapping[str, str] | None = None,
) -> Column:
    """Encode a struct as Avro. If the schema is no record, encode the column itself or its field `value`.

    Without `registry` the result is Avro data alone. With it, the id of a schema comes before the data: of
    `schema`, which is registered under the subject, or else of the subject's `version`. If `auto_register` is
    false, the subject must have `schema` already. Confluent's serializers have the same default. The subject
    for values of a topic is `TOPIC-value`, for its keys `TOPIC-key`.

    A null column gives null. A row that does not fit the schema ends the query: a field that is unknown, a
    null that is not allowed. A missing field takes the default of the schema.

    Raises OptionError, RegistryUnavailable.
    """
    text = json.dumps(schema) if isinstance(schema, Mapping) else schema
    if registry is not None:
        given = Subject(registry, subject, version, headers)
        return _encoded(column, encoding(Kind.AVRO, given, text, None, auto_register=auto_register))
    if text is None:
        raise OptionError("to_avro: give schema, or registry and subject")
    return _encoded(column, checked(Encoding(Schema(Kind.AVRO, text))))


def from_protobuf(
    column: Column | str,
    *,
    registry: Place,
    subject: str,
    version: int | str = "latest",
    message: str | None = None,
    headers: Mapping[str, str] | None = None,
    mode: str = "PERMISSIVE",
) -> Column:
    """Decode Protobuf with Confluent's framing into a struct of a message's fields.

    The columns are the fields of one message of the subject's version: of `message`, given by its full name
    or by its name in the file's package, else of the first. Values may have been written with any version,
    but other messages are corrupt records. A missing field is null, or has its default if it is a field
    without presence (proto3).

    Registry, nulls and modes are those of `from_avro`. Raises OptionError, RegistryUnavailable.
    """
    given = Subject(registry, subject, version, headers)
    return _decoded(column, protobuf_decoding(given, message, parse_mode(mode)))


def to_protobuf(
    column: Column | str,
    schema: str | None = None,
    *,
    registry: Place,
    subject: str,
    version: int | str = "latest",
    message: str | None = None,
    auto_register: bool = True,
    headers: Mapping[str, str] | None = None,
) -> Column:
    """Encode a struct as a Protobuf message with Confluent's framing. Null fields are left out.

    `schema` is the text of a .proto file. The other arguments work as in `to_avro` and `from_protobuf`.
    """
    given = Subject(registry, subject, version, headers)
    found = encoding(Kind.PROTOBUF, given, schema, message, auto_register=auto_register)
    return _encoded(column, found)


def from_json_schema(
    column: Column | str,
    schema: StructType | str | None = None,
    *,
    registry: Place,
    subject: str | None = None,
    version: int | str = "latest",
    headers: Mapping[str, str] | None = None,
    mode: str = "PERMISSIVE",
) -> Column:
    """Decode JSON with Confluent's framing into a struct. Values are not checked against their schema.

    The columns come from `schema`, a StructType or DDL, else from the subject's version. In the second case,
    a value whose schema allows several types becomes a string with its JSON.

    Registry, nulls and modes are those of `from_avro`. Raises OptionError, RegistryUnavailable.
    """
    given = Subject(registry, subject, version, headers)
    wanted = None if schema is None else _struct(schema)
    return _decoded(column, json_decoding(given, wanted, parse_mode(mode)))


def to_json_schema(
    column: Column | str,
    schema: str | Mapping[str, Any] | None = None,
    *,
    registry: Place,
    subject: str,
    version: int | str = "latest",
    auto_register: bool = True,
    headers: Mapping[str, str] | None = None,
) -> Column:
    """Encode a struct as JSON with Confluent's framing, checked against the schema. Null fields are left out.

    Times are ISO 8601, binary is base64. The arguments work as in `to_avro`.
    """
    text = json.dumps(schema) if isinstance(schema, Mapping) else schema
    given = Subject(registry, subject, version, headers)
    return _encoded(column, encoding(Kind.JSON, given, text, None, auto_register=auto_register))


def drop_malformed(*columns: str) -> Callable[[DataFrame], DataFrame]:
    """Return a function for `df.transform` that drops rows with a malformed record in one of these columns.

    It also drops the field `_corrupt`. Rows whose column is null stay.
    """

    def transform(frame: DataFrame) -> DataFrame:
        for name in columns:
            frame = frame.where(col(name)[CORRUPT].isNull()).withColumn(name, col(name).dropFields(CORRUPT))
        return frame

    return transform


def _decoded(column: Column | str, decoding: Decoding) -> Column:
    # Pickling takes only this function and the decoding; workers import the modules.
    def decode(values: pa.Array) -> pa.Array:
        return decoding.decode(values)

    return _applied(decode, decoding.spark, column)


def _encoded(column: Column | str, found: Encoding) -> Column:
    def encode(rows: pa.Array) -> pa.Array:
        return found.encode(rows)

    return _applied(encode, BinaryType(), column)


def _applied(function: Callable[[pa.Array], pa.Array], kind: DataType, column: Column | str) -> Column:
    made: Column = _by_its_hints(function, kind)(col(column) if isinstance(column, str) else column)
    return made


def _struct(schema: StructType | str) -> StructType:
    found: DataType = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(found, StructType):
        raise OptionError(f"schema: a struct is needed, such as 'id bigint, name string', not {found}")
    return found
