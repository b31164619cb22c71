"""Parses `valueFormat` and its related options, which tell the source how to decode values itself.

The options mean the same as the arguments of `from_msgpack` and `from_avro`. The type of the column is
decided when a query is loaded, in a process that has no JVM, so DDL is passed on for Spark to parse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from mpbroker.reading.errors import OptionError
from spark_integration.decoding import (
    CORRUPT_FIELD,
    AvroSchemas,
    Decoding,
    avro_decoding,
    msgpack_decoding,
    nullable_struct,
    parse_mode,
)
from spark_integration.values import CORRUPT, Mode

FORMAT: Final = "valueFormat"
SCHEMA: Final = "valueSchema"
MODE: Final = "valueMode"
_OF_AVRO: Final = (
    "valueReaderSchema",
    "valueRegistry",
    "valueRegistryHeaders",
    "valueSubject",
    "valueVersion",
)
_NO_JSON: Final = (
    "valueFormat json: Spark itself decodes JSON, without Python. Leave valueFormat out and use "
    "from_json(col('value').cast('string'), schema) of pyspark.sql.functions"
)
# Names in backquotes and comments in quotes may contain any words.
_NOT_NULL: Final = re.compile(
    r"(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|\s+NOT\s+NULL\b", re.IGNORECASE
)
_STRUCT: Final = re.compile(r"\s*STRUCT\s*<(.*)>\s*", re.IGNORECASE | re.DOTALL)


class ValueFormat(NamedTuple):
    """The type and encoding of the column `value`.

    `fields` is the DDL of MessagePack's fields, or their type.
    """

    mode: Mode
    fields: str | StructType | None = None
    avro: AvroSchemas | None = None

    def column_type(self) -> DataType | str:
        """Return the type of the column, as DDL if that was given.

        May ask a registry. Raises OptionError, RegistryUnavailable.
        """
        if isinstance(self.fields, str):
            corrupt = f", `{CORRUPT}`: {CORRUPT_FIELD.dataType.simpleString()}"
            return f"struct<{self.fields}{corrupt if self.mode is Mode.PERMISSIVE else ''}>"
        if self.fields is not None:
            return msgpack_decoding(self.fields, self.mode).spark
        return self._avro_decoding().spark

    def decoding(self, column: DataType) -> Decoding:
        """Return how to decode values into the struct `column`: all fields of `column_type`, or some of them.

        May ask a registry. Raises OptionError, RegistryUnavailable.
        """
        wanted = _without_corrupt(column, self.mode)
        if self.avro is None:
            return msgpack_decoding(wanted, self.mode)
        found = self._avro_decoding()
        known = {one.name: one.dataType for one in found.spark.fields}
        for one in wanted.fields:
            if known.get(one.name) != one.dataType:
                there = known[one.name].simpleString() if one.name in known else "not there"
                raise OptionError(
                    f"schema: value.{one.name} is {one.dataType.simpleString()}, in the Avro schema it is "
                    f"{there}. Load the query again if the subject has a new version; valueVersion fixes one"
                )
        return Decoding(column.json(), self.mode, found.form)

    def _avro_decoding(self) -> Decoding:
        assert self.avro is not None
        try:
            return avro_decoding(self.avro, self.mode)
        except OptionError as error:
            raise OptionError(f"valueFormat avro: {error} (options valueSchema, valueRegistry, …)") from error


def parse_value_format(options: Mapping[str, str]) -> ValueFormat | None:
    """Parse the options of a query; None if values stay bytes. Raises OptionError."""
    lowered = {key.lower(): value for key, value in options.items()}
    given = {name: lowered[name.lower()] for name in (SCHEMA, MODE, *_OF_AVRO) if name.lower() in lowered}
    kind = lowered.get(FORMAT.lower())
    if kind is None:
        if given:
            raise OptionError(f"{next(iter(given))} needs the option valueFormat, msgpack or avro")
        return None
    try:
        mode = parse_mode(given.get(MODE, Mode.PERMISSIVE))
    except OptionError as error:
        raise OptionError(f"{MODE}: {error}") from error
    match kind.strip().lower():
        case "msgpack":
            return ValueFormat(mode, fields=_fields(given))
        case "avro":
            return ValueFormat(mode, avro=_avro(given))
        case "json":
            raise OptionError(_NO_JSON)
    raise OptionError(f"valueFormat is msgpack or avro, not '{kind}'")


def _fields(given: Mapping[str, str]) -> str | StructType:
    """Return the fields of MessagePack: parsed from Spark's JSON, or the given DDL without NOT NULL."""
    for name in _OF_AVRO:
        if name in given:
            raise OptionError(f"{name} is an option of valueFormat avro, not of msgpack")
    text = given.get(SCHEMA, "").strip()
    if not text:
        raise OptionError("valueFormat msgpack needs valueSchema, such as 'id bigint, at timestamp'")
    if text.startswith("{"):
        try:
            return nullable_struct(StructType.fromJson(json.loads(text)))
        except (ValueError, LookupError, TypeError) as error:
            raise OptionError(f"valueSchema is not a schema of Spark in JSON: {error}") from error
    whole = _STRUCT.fullmatch(text)
    return _NOT_NULL.sub(lambda found: found[1] or "", whole[1] if whole else text)


def _avro(given: Mapping[str, str]) -> AvroSchemas:
    headers = given.get("valueRegistryHeaders")
    return AvroSchemas(
        schema=given.get(SCHEMA),
        registry=given.get("valueRegistry"),
        subject=given.get("valueSubject"),
        version=given.get("valueVersion", "latest"),
        reader_schema=given.get("valueReaderSchema"),
        headers=None if headers is None else _headers(headers),
    )


def _headers(text: str) -> dict[str, str]:
    wrong = OptionError(
        'valueRegistryHeaders: expected JSON of names and texts, such as \'{"X-Tenant": "shop"}\''
    )
    try:
        found: Any = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
        raise wrong
    return found


def _without_corrupt(column: DataType, mode: Mode) -> StructType:
    """Check the column's type; return its fields except the one for corrupt values. Raises OptionError."""
    if not isinstance(column, StructType):
        raise OptionError(
            f"schema: with valueFormat the column value is a struct, not {column.simpleString()}"
        )
    fields = list(column.fields)
    if mode is Mode.PERMISSIVE:
        if not fields or fields[-1] != CORRUPT_FIELD:
            raise OptionError(
                f"schema: with valueFormat the struct value ends with `{CORRUPT}` "
                f"{CORRUPT_FIELD.dataType.simpleString()}, or valueMode is FAILFAST"
            )
        fields.pop()
    wanted = StructType(fields)
    if CORRUPT in wanted.names:
        raise OptionError(f"valueSchema: the field {CORRUPT} is added, leave it away")
    if _has_not_null(wanted):
        raise OptionError("schema: with valueFormat any field of value may be null, leave NOT NULL away")
    return wanted


def _has_not_null(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(not one.nullable or _has_not_null(one.dataType) for one in kind.fields)
    if isinstance(kind, ArrayType):
        return not kind.containsNull or _has_not_null(kind.elementType)
    if isinstance(kind, MapType):
        return not kind.valueContainsNull or any(map(_has_not_null, (kind.keyType, kind.valueType)))
    return False
