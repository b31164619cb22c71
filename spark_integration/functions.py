"""Functions that decode a column of values into structs: Arrow UDFs, for batch queries and streams.

JSON needs no function of ours: Spark's own `from_json(col("value").cast("string"), schema)` decodes in the
JVM, where the data are, and takes numbers of any size into decimal or string columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.functions import col
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import DataType, StructType

from mpbroker.reading.errors import OptionError
from spark_integration.decoding import AvroSchemas, Decoding, avro_decoding, msgpack_decoding, parse_mode
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
    registry: str | None = None,
    subject: str | None = None,
    version: int | str = "latest",
    reader_schema: str | Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    mode: str = "PERMISSIVE",
) -> Column:
    """Decode Avro into a struct. Any schema but a record gives a struct with the one field `value`.

    Without `registry` a value is Avro data alone, and all values are written with `schema`.

    With `registry` a value has Confluent's framing: a zero, the id of the schema that it was written with,
    the data. The registry is an address, in which a user and a password may stand (`headers` go with each
    request), or a directory with `<id>.avsc`, `<subject>.avsc` and `<subject>-v<version>.avsc`. The columns
    are those of `reader_schema`, else of `schema`, else of the subject's version, which is looked up once,
    during this call.

    Nulls and modes are those of `from_msgpack`. A record whose schema the registry does not have is corrupt;
    a registry that does not answer ends the query.

    Raises OptionError, RegistryUnavailable.
    """
    chosen = parse_mode(mode)
    wanted = AvroSchemas(schema, registry, subject, version, reader_schema, headers)
    try:
        return _decoded(column, avro_decoding(wanted, chosen))
    except OptionError as error:
        raise OptionError(f"from_avro: {error}") from error


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

    found = col(column) if isinstance(column, str) else column
    decoded: Column = _by_its_hints(decode, decoding.spark)(found)
    return decoded


def _struct(schema: StructType | str) -> StructType:
    found: DataType = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(found, StructType):
        raise OptionError(f"schema: a struct is needed, such as 'id bigint, name string', not {found}")
    return found
