"""Plans how records become rows of a table: the columns of all tables, and those of a value by its format.

A record that cannot be decoded, or whose schema has no place in the table, is a row, too: with `_error` and,
in `_raw`, its value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from uuid import UUID

import msgspec
from pyiceberg import types as iceberg
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, StructField, StructType

from mpbroker.reading.errors import OptionError
from mpbroker.registry.rest import is_address, open_schemas
from mpbroker.registry.schemas import (
    Kind,
    RegistryConfigError,
    SchemaError,
    SchemaId,
    UnknownSchema,
)
from mpbroker.registry.schemas import Schema as ValueSchema
from spark_integration.decoding import (
    Decoding,
    msgpack_decoding,
    plain_json_decoding,
    written_decoding,
)
from spark_integration.tables.evolution import Unfit, evolve
from spark_integration.tables.rows import ERROR, OURS, RAW, Bytes, Rows, ids_of, lowest
from spark_integration.values import Mode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HEADER: Final = iceberg.StructType(
    iceberg.NestedField(10, "key", iceberg.StringType()),
    iceberg.NestedField(11, "value", iceberg.BinaryType()),
)
RECORD_COLUMNS: Final = Schema(
    iceberg.NestedField(1, "_topic_id", iceberg.StringType()),
    # Iceberg reserves `_partition`.
    iceberg.NestedField(2, "_partition_index", iceberg.IntegerType()),
    iceberg.NestedField(3, "_offset", iceberg.LongType()),
    iceberg.NestedField(4, "_timestamp", iceberg.TimestamptzType()),
    iceberg.NestedField(5, "_headers", iceberg.ListType(9, _HEADER, element_required=False)),
    iceberg.NestedField(6, "_key", iceberg.BinaryType()),
    iceberg.NestedField(7, ERROR, iceberg.StringType()),
    iceberg.NestedField(8, RAW, iceberg.BinaryType()),
)
"""The columns that each table has, before those of its values."""

_KINDS: Final = {"avro": Kind.AVRO, "protobuf": Kind.PROTOBUF, "json": Kind.JSON}
_SCHEMA_ERRORS: Final = (Unfit, SchemaError, UnknownSchema, OptionError)
_RAW_VALUE: Final = StructType([StructField("value", BinaryType())])


class ValueSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a declaration of tables says about values.

    `schema` is DDL for json and msgpack, Avro's JSON, or the text of a .proto file; `schema_file` a file with
    it. With a registry each value names its schema. `message` is the name of a Protobuf message, by default
    the first of its schema.
    """

    format: Literal["raw", "json", "avro", "protobuf", "msgpack"] = "raw"
    schema: str | None = None
    schema_file: str | None = None
    registry: str | dict[str, str] | None = None
    message: str | None = None


def value_settings(given: Mapping[str, Any], directory: Path) -> ValueSettings:
    """Check and return what a declaration says. Its paths begin at `directory`. Raises OptionError."""
    try:
        found = msgspec.convert(given, ValueSettings)
        if found.schema_file is not None:
            text = (directory / found.schema_file).read_text(encoding="utf-8")
            found = msgspec.structs.replace(found, schema=text, schema_file=None)
    except (msgspec.ValidationError, OSError, UnicodeDecodeError) as error:
        raise OptionError(str(error)) from error
    if isinstance(found.registry, str) and not is_address(found.registry):
        found = msgspec.structs.replace(found, registry=str(directory / found.registry))
    if given.keys() >= {"schema", "schema_file"}:
        raise OptionError("schema and schema_file exclude each other")
    if found.message is not None and found.format != "protobuf":
        raise OptionError(f"message names a message of Protobuf, and format is {found.format}")
    if found.format == "raw":
        if found.schema is not None or found.registry is not None:
            raise OptionError("format raw keeps values as bytes: leave schema and registry out")
    elif found.format == "msgpack" and found.registry is not None:
        raise OptionError("format msgpack needs a schema, registries have none")
    elif (found.schema is None) == (found.registry is None):
        raise OptionError(f"format {found.format} needs either schema (or schema_file) or registry")
    return found


class RowPlan(NamedTuple):
    """How a batch of records becomes rows.

    `schema` is that which the table needs first; `changes` says how it differs, in sentences.
    """

    schema: Schema
    changes: tuple[str, ...]
    rows: Rows


def created(declared: ValueSettings) -> Schema:
    """Return the schema of a new table. With a registry it has no columns of values yet.

    Raises OptionError, MissingPackage.
    """
    return plan_rows(declared, RECORD_COLUMNS).schema


def plan_rows(
    declared: ValueSettings, current: Schema, ids: Iterable[SchemaId] = (), reserved: Collection[str] = ()
) -> RowPlan:
    """Plan a batch whose values name the schemas `ids`, for a table of the schema `current`.

    The SCHEMAS_MAX schemas with the lowest ids are looked up, in this order. One that the registry lacks, or
    that has no place in the table, makes rows with an error. No field of a value may have a name of
    `reserved`, which are those of partitions.

    Raises OptionError if the declaration has no place in the table; RegistryUnavailable, MissingPackage.
    """
    taken, changes = {*OURS, *reserved}, list[str]()
    decoders: dict[SchemaId | None, Decoding | Bytes | str] = {}
    if declared.registry is None:
        try:
            wanted, decoders[None] = _without_registry(declared)
            current, more = evolve(current, wanted, taken)
        except SchemaError as error:
            raise OptionError(f"schema: {error}") from error
        except Unfit as error:
            raise OptionError(f"schema: {error}. Name the field otherwise, or declare a new table") from error
        changes += more
    else:
        try:
            schemas = open_schemas(declared.registry)
        except RegistryConfigError as error:
            raise OptionError(str(error)) from error
        for number in lowest(ids):
            try:
                found = schemas.by_id(number, _KINDS[declared.format])
                decoder = written_decoding(found, declared.message, Mode.PERMISSIVE)
                current, more = evolve(current, _without_corrupt(decoder), taken)
            except _SCHEMA_ERRORS as error:
                decoders[number] = f"schema {number}: {error}"
            else:
                decoders[number] = decoder
                changes += more
    # Spark's types have Arrow's as Spark sends them.
    columns = from_arrow_schema(schema_to_pyarrow(current, include_field_ids=False))
    arrow = to_arrow_schema(columns, timezone="UTC")
    return RowPlan(current, tuple(changes), Rows(arrow, decoders, is_framed=declared.registry is not None))


def _without_registry(declared: ValueSettings) -> tuple[StructType, Decoding | Bytes]:
    """Return the fields of values by a declaration without a registry, and their decoding."""
    text = declared.schema
    if text is None:
        return _RAW_VALUE, Bytes()
    if declared.format in ("json", "msgpack"):
        try:
            kind = DataType.fromDDL(text)
        except PySparkException as error:
            raise OptionError(f"schema: {str(error).strip().splitlines()[0]}") from error
        if not isinstance(kind, StructType):
            raise OptionError(f"schema: columns are needed, such as 'id bigint, name string', not {text}")
        make = plain_json_decoding if declared.format == "json" else msgpack_decoding
        decoding = make(kind, Mode.PERMISSIVE)
    else:
        found = ValueSchema(_KINDS[declared.format], text)
        decoding = written_decoding(found, declared.message, Mode.PERMISSIVE, is_framed=False)
    return _without_corrupt(decoding), decoding


def _without_corrupt(decoding: Decoding) -> StructType:
    return StructType(decoding.spark.fields[:-1])


def schema_ids(frame: DataFrame, declared: ValueSettings) -> frozenset[SchemaId]:
    """Return the ids of the schemas that the values of a frame name; none without a registry.

    Of more than SCHEMAS_MAX some may be left out.
    """
    if declared.registry is None:
        return frozenset()
    found = frame.select("value", "headers").mapInArrow(ids_of, "id string").collect()
    return frozenset(int(row[0]) if row[0].isdigit() else UUID(row[0]) for row in found)
