"""Defines the source's columns, as in Spark's KafkaRecordToRowConverter, and chooses a query's columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

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

if TYPE_CHECKING:
    from spark_integration.decoding import Decoding
    from spark_integration.value_format import ValueFormat

VALUE: Final = "value"
# Why the JVM reader leaves a query to Python.
DECODES: Final = "valueFormat is set, and Python decodes values"

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


def schema_for(options: Mapping[str, str]) -> StructType | str:
    """Return all columns, or those in the option `columns`; as DDL, if Spark has to parse `valueSchema`.

    Gets the schema of values from a registry, if options name one. Raises OptionError, RegistryUnavailable.
    """
    names = chosen_columns(options, tuple(FIELDS))
    values = value_format(options)
    if values is None or VALUE not in names:
        return StructType([FIELDS[name] for name in names])
    decoded = values.column_type()
    if isinstance(decoded, str):
        types = {name: field.dataType.simpleString() for name, field in FIELDS.items()} | {VALUE: decoded}
        return ", ".join(f"`{name}` {types[name]}" for name in names)
    fields = {**FIELDS, VALUE: StructField(VALUE, decoded)}
    return StructType([fields[name] for name in names])


def check_schema(schema: StructType, options: Mapping[str, str]) -> Decoding | None:
    """Check that a schema, which a user may have given, has only columns of the source.

    Types are fixed, NOT NULL is allowed. Returns how values are decoded, None if they stay bytes. Raises
    OptionError, RegistryUnavailable.
    """
    values, decoding = value_format(options), None
    for field in schema.fields:
        known = FIELDS.get(field.name)
        if known is None:
            raise OptionError(f"schema: column '{field.name}' does not exist, only {', '.join(FIELDS)}")
        if field.name == VALUE and values is not None:
            decoding = values.decoding(field.dataType)
        elif field.dataType != known.dataType:
            raise OptionError(
                f"schema: column '{field.name}' is {known.dataType.simpleString()}, "
                f"not {field.dataType.simpleString()}; cast it in the query"
            )
    return decoding


def value_format(options: Mapping[str, str]) -> ValueFormat | None:
    """Return the format of decoded values by the options; None if values stay bytes. Raises OptionError."""
    if not any(key.lower().startswith(VALUE) for key in options):
        # Most queries need none of the imports here, and each of Spark's processes would pay for them.
        return None
    from spark_integration.value_format import parse_value_format

    return parse_value_format(options)
