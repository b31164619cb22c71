"""Names the columns of Spark's Kafka source, and those that a query gets (KafkaRecordToRowConverter)."""

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

from mpbroker.reading.errors import OptionError
from mpbroker.reading.options import chosen_columns

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
    """Returns all columns, or those of the option `columns`. Raises OptionError."""
    return StructType([FIELDS[name] for name in chosen_columns(options, tuple(FIELDS))])


def check_schema(schema: StructType) -> None:
    """Checks that a user's schema is a choice of columns.

    Types are fixed, NOT NULL is allowed. Raises OptionError.
    """
    for field in schema.fields:
        known = FIELDS.get(field.name)
        if known is None:
            raise OptionError(f"schema: there is no column '{field.name}', only {', '.join(FIELDS)}")
        if field.dataType != known.dataType:
            raise OptionError(
                f"schema: column '{field.name}' is {known.dataType.simpleString()}, "
                f"not {field.dataType.simpleString()}; cast it in the query"
            )
