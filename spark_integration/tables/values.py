"""Makes the rows of a table from records: the columns of all tables, and those of a value by its format.

A record that cannot be decoded, or whose schema has no place in the table, is a row, too: with `_error` and,
in `_raw`, its value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from uuid import UUID

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyiceberg import types as iceberg
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, StructField, StructType

from mpbroker.reading.errors import OptionError
from mpbroker.registry import framing
from mpbroker.registry.rest import open_schemas
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
from spark_integration.values import CORRUPT, CORRUPT_TYPE, Mode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ERROR: Final = "_error"
RAW: Final = "_raw"
# The columns that come from the source's, by their names there.
_FROM: Final = {
    "_topic_id": "_topic_id",
    "_partition_index": "partition",
    "_offset": "offset",
    "_timestamp": "timestamp",
    "_headers": "headers",
    "_key": "key",
}
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

_OURS: Final = frozenset(field.name for field in RECORD_COLUMNS.fields)
_KINDS: Final = {"avro": Kind.AVRO, "protobuf": Kind.PROTOBUF, "json": Kind.JSON}
_ERROR_MAX: Final = 500
_SCHEMA_ERRORS: Final = (Unfit, SchemaError, UnknownSchema, OptionError)
# Values that name no schema may look as if each named another one.
SCHEMAS_MAX: Final = 1000
_RAW_VALUE: Final = StructType([StructField("value", BinaryType())])


class Declaration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


def declaration(given: Mapping[str, Any], directory: Path) -> Declaration:
    """Check and return what a declaration says. `directory` is where `schema_file` is. Raises OptionError."""
    try:
        found = msgspec.convert(given, Declaration)
        if found.schema_file is not None:
            text = (directory / found.schema_file).read_text(encoding="utf-8")
            found = msgspec.structs.replace(found, schema=text, schema_file=None)
    except (msgspec.ValidationError, OSError, UnicodeDecodeError) as error:
        raise OptionError(str(error)) from error
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


class Bytes(NamedTuple):
    """Leaves values as they are, in the column `value`."""

    def decode(self, values: pa.Array) -> pa.StructArray:
        return pa.StructArray.from_arrays([values, pa.nulls(len(values), CORRUPT_TYPE)], ["value", CORRUPT])


class Rows(NamedTuple):
    """Makes the rows of record batches: of the source's columns with headers, and `_topic_id`.

    `columns` are those of the table. `decoders` says, by the ids of schemas, how values are decoded, or why
    they cannot be; if values name no schema, the only id is None.
    """

    columns: pa.Schema
    decoders: Mapping[SchemaId | None, Decoding | Bytes | str]
    is_framed: bool

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a row for each record of a batch, in its order."""
        values = batch.column("value")
        found = self._framed(batch) if self.is_framed else self._decoded(self.decoders[None], values)
        errors = pc.utf8_slice_codeunits(found.column(ERROR), 0, _ERROR_MAX)
        made = {ERROR: errors, RAW: pc.if_else(errors.is_valid(), values, None)}
        made |= {name: batch.column(there) for name, there in _FROM.items()}
        arrays = [
            made[field.name].cast(field.type) if field.name in made else found.column(field.name)
            for field in self.columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.columns)

    def _framed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Decode values that name their schema, all of one schema together."""
        framed = _with_prefix(batch)
        places: dict[SchemaId | str | None, list[int]] = {}
        for number, value in enumerate(framed):
            places.setdefault(_schema_of(value), []).append(number)
        pieces = []
        for schema_id, numbers in places.items():
            # None is of null values. A text says why a value names no schema.
            decoder: Decoding | Bytes | str | None = None if schema_id is None else str(schema_id)
            if isinstance(schema_id, SchemaId):
                many = f"schema {schema_id}: values name more than {SCHEMAS_MAX:,} schemas at once"
                decoder = self.decoders.get(schema_id, many)
            pieces.append(self._decoded(decoder, pa.array([framed[one] for one in numbers], pa.binary())))
        order = pa.array([number for numbers in places.values() for number in numbers], pa.int64())
        whole = pa.concat_batches(pieces) if pieces else self._decoded(None, batch.column("value"))
        return whole.take(pc.sort_indices(order))

    def _decoded(self, decoder: Decoding | Bytes | str | None, values: pa.Array) -> pa.RecordBatch:
        """Return the columns of values, and their errors. Without a decoder all columns are null."""
        fields = [field for field in self.columns if field.name not in _OURS]
        if decoder is None or isinstance(decoder, str):
            arrays = [pa.nulls(len(values), field.type) for field in fields]
            errors = pa.repeat(pa.scalar(decoder, pa.string()), len(values))
        else:
            found = decoder.decode(values)
            arrays = found.cast(pa.struct(fields)).flatten()
            errors = pc.struct_field(found, [CORRUPT, "error"])
        return pa.RecordBatch.from_arrays([*arrays, errors], [*(field.name for field in fields), ERROR])


class Plan(NamedTuple):
    """How a batch of records becomes rows.

    `schema` is that which the table needs first; `changes` says how it differs, in sentences.
    """

    schema: Schema
    changes: tuple[str, ...]
    rows: Rows


def created(declared: Declaration) -> Schema:
    """Return the schema of a new table. With a registry it has no columns of values yet.

    Raises OptionError, MissingPackage.
    """
    return planned(declared, RECORD_COLUMNS).schema


def planned(
    declared: Declaration, current: Schema, ids: Iterable[SchemaId] = (), reserved: Collection[str] = ()
) -> Plan:
    """Plan a batch whose values name the schemas `ids`, for a table of the schema `current`.

    The SCHEMAS_MAX schemas with the lowest ids are looked up, in this order. One that the registry lacks, or
    that has no place in the table, makes rows with an error. No field of a value may have a name of
    `reserved`, which are those of partitions.

    Raises OptionError if the declaration has no place in the table; RegistryUnavailable, MissingPackage.
    """
    taken, changes = {*_OURS, *reserved}, list[str]()
    decoders: dict[SchemaId | None, Decoding | Bytes | str] = {}
    if declared.registry is None:
        try:
            wanted, decoders[None] = _declared(declared)
            current, more = evolve(current, wanted, taken)
        except (Unfit, SchemaError) as error:
            raise OptionError(
                f"schema: {error}. Declare another name for the field, or a new table"
            ) from error
        changes += more
    else:
        try:
            schemas = open_schemas(declared.registry)
        except RegistryConfigError as error:
            raise OptionError(str(error)) from error
        for number in _lowest(ids):
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
    return Plan(current, tuple(changes), Rows(arrow, decoders, is_framed=declared.registry is not None))


def _declared(declared: Declaration) -> tuple[StructType, Decoding | Bytes]:
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


def schema_ids(frame: DataFrame, declared: Declaration) -> frozenset[SchemaId]:
    """Return the ids of the schemas that the values of a frame name; none without a registry.

    Of more than SCHEMAS_MAX some may be left out.
    """
    if declared.registry is None:
        return frozenset()
    found = frame.select("value", "headers").mapInArrow(_ids, "id string").collect()
    return frozenset(int(row[0]) if row[0].isdigit() else UUID(row[0]) for row in found)


def _ids(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    ids: list[SchemaId] = []
    for batch in batches:
        named = {_schema_of(value) for value in _with_prefix(batch)}
        ids = _lowest({*ids, *(one for one in named if isinstance(one, SchemaId))})
    yield pa.RecordBatch.from_arrays([pa.array(map(str, ids), pa.string())], ["id"])


def _lowest(ids: Iterable[SchemaId]) -> list[SchemaId]:
    return sorted(ids, key=lambda one: (isinstance(one, UUID), one))[:SCHEMAS_MAX]


def _schema_of(value: bytes | None) -> SchemaId | str | None:
    """Return the id of a value's schema, None for null, or why it names none."""
    try:
        return None if value is None else framing.read(value).schema_id
    except framing.NotFramed as error:
        return str(error)


def _with_prefix(batch: pa.RecordBatch) -> list[bytes | None]:
    """Return values that begin with their framing; it may be in a header of the record."""
    values: list[bytes | None] = batch.column("value").to_pylist()
    names = batch.column("headers").flatten().field("key")
    if not pc.any(pc.equal(names, framing.VALUE_HEADER)).as_py():
        return values
    for number, headers in enumerate(batch.column("headers").to_pylist()):
        frame = framing.header_of(((one["key"], one["value"]) for one in headers or ()), is_key=False)
        value = values[number]
        if frame is not None and value is not None and isinstance(_schema_of(frame), UUID):
            values[number] = frame + value
    return values
