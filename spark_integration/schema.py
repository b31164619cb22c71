"""The columns of Spark's Kafka source, and which of them a query gets (Spark: KafkaRecordToRowConverter)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_integration.errors import OptionError
from spark_integration.options import chosen_columns, includes_headers

HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())]), containsNull=True
)
FIELDS: Final = {
    field.name: field
    for field in (
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", HEADERS),
    )
}


def schema_for(options: Mapping[str, str]) -> StructType:
    """All columns, or those of the option `columns`. Raises OptionError."""
    names = chosen_columns(options)
    if names is None:
        names = tuple(name for name in FIELDS if name != "headers" or includes_headers(options))
    unknown = [name for name in names if name not in FIELDS]
    if unknown:
        raise OptionError(f"columns: there is no column '{unknown[0]}', only {', '.join(FIELDS)}")
    if len(set(names)) != len(names):
        raise OptionError(f"columns: a column is named twice in '{','.join(names)}'")
    return StructType([FIELDS[name] for name in names])


def check_schema(schema: StructType) -> None:
    """A user's schema is a choice of columns; types are fixed, NOT NULL is allowed. Raises OptionError."""
    for field in schema.fields:
        known = FIELDS.get(field.name)
        if known is None:
            raise OptionError(f"schema: there is no column '{field.name}', only {', '.join(FIELDS)}")
        if field.dataType != known.dataType:
            raise OptionError(
                f"schema: column '{field.name}' is {known.dataType.simpleString()}, "
                f"not {field.dataType.simpleString()}; cast it in the query"
            )
