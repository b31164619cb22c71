"""Decodes columns of values into columns of structs: Arrow UDFs, for batch queries and streams.

For JSON there is none: Spark's own `from_json(col("value").cast("string"), schema)` decodes in the JVM, where
the data are, and numbers of any size as decimal or string columns.
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

# PySpark's stubs want the kind of function named, PySpark itself warns of that.
_by_its_hints: Any = arrow_udf


def from_msgpack(column: Column | str, schema: StructType | str, *, mode: str = "PERMISSIVE") -> Column:
    """Decodes MessagePack maps into a struct. The schema is a StructType or DDL: `id bigint, at timestamp`.

    Keys that the schema does not have are left out, and missing ones are null. Timestamps are MessagePack's
    or ISO 8601 text, dates are such text, decimals text or integers. All fields are nullable.

    Null gives null. With mode PERMISSIVE a record that cannot be decoded, or does not fit the schema, has
    null in all fields but `_corrupt`, a struct of `error` and `data`; with FAILFAST it ends the query. To do
    without them use `df.transform(drop_malformed("column"))`. Raises OptionError.
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
    """Decodes Avro into a struct; a schema that is no record gives a struct with the field `value`.

    With `registry` values have Confluent's framing: a zero, the id of the schema that they were written
    with, the data. It is the address of a registry (user and password may stand in it, `headers` go with
    each request) or a directory with `<id>.avsc`, `<subject>.avsc` and `<subject>-v<version>.avsc`. The
    columns are those of `reader_schema`, else of `schema`, else of the subject's version, asked once, now.

    Without `registry` values are Avro data alone, all written with `schema`.

    Nulls and modes are those of `from_msgpack`; a record of a schema that the registry does not have is
    corrupt, a registry that does not answer ends the query. Raises OptionError, RegistryUnavailable.
    """
    chosen = parse_mode(mode)
    wanted = AvroSchemas(schema, registry, subject, version, reader_schema, headers)
    try:
        return _decoded(column, avro_decoding(wanted, chosen))
    except OptionError as error:
        raise OptionError(f"from_avro: {error}") from error


def drop_malformed(*columns: str) -> Callable[[DataFrame], DataFrame]:
    """Returns a function for `df.transform` that leaves out rows with a malformed record in these columns.

    The field `_corrupt` goes with them. Rows whose column is null stay.
    """

    def transform(frame: DataFrame) -> DataFrame:
        for name in columns:
            frame = frame.where(col(name)[CORRUPT].isNull()).withColumn(name, col(name).dropFields(CORRUPT))
        return frame

    return transform


def _decoded(column: Column | str, decoding: Decoding) -> Column:
    # What is pickled is this function and the decoding; workers import the modules.
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
