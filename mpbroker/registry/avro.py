"""Decodes and encodes values in Avro's binary encoding with fastavro, and parses schemas with references."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from io import BytesIO
from typing import Annotated, Any, Final
from uuid import UUID

import msgspec

from mpbroker.registry.avro_bounds import bounds_of
from mpbroker.registry.schemas import Schema, SchemaError, needs_packages

try:
    from fastavro import parse_schema, schemaless_reader, schemaless_writer
    from fastavro.schema import SchemaParseException
    from fastavro.types import AvroMessage
except ModuleNotFoundError as error:
    raise needs_packages("Avro", error) from error

Reader = Callable[[bytes, int], Any]
"""Decodes the bytes from a position to the end. Raises an error of `schemas.UNREADABLE`."""

_ZONED = Annotated[datetime, msgspec.Meta(tz=True)]
_UNZONED = Annotated[datetime, msgspec.Meta(tz=False)]
INT: Final = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
LONG: Final = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
# The Python types that fastavro takes, by kind and logical type; JSON has text for most of the latter.
LEAVES: Final[Mapping[tuple[str, str | None], Any]] = {
    ("null", None): None,
    ("boolean", None): bool,
    ("int", None): INT,
    ("long", None): LONG,
    ("float", None): float,
    ("double", None): float,
    ("bytes", None): bytes,
    ("string", None): str,
    ("fixed", None): bytes,
    ("enum", None): str,
    ("int", "date"): date,
    ("int", "time-millis"): time,
    ("long", "time-micros"): time,
    **{("long", f"timestamp-{unit}"): _ZONED for unit in ("millis", "micros")},
    **{("long", f"local-timestamp-{unit}"): _UNZONED for unit in ("millis", "micros")},
    ("string", "uuid"): UUID,
    ("bytes", "decimal"): Decimal,
    ("fixed", "decimal"): Decimal,
}


def whole(schema: Schema) -> Any:
    """Return the schema as JSON with the definitions of all schemas that it references included."""
    named = {name: _of_text(text) for name, text in schema.references}
    return _with_references(_of_text(schema.text), named, "")


def _of_text(text: str) -> Any:
    """Parse a schema, which is JSON; a primitive one may be a bare word."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _with_references(schema: Any, named: dict[str, Any], space: str) -> Any:
    """Return the schema with the first occurrence of each name replaced by its definition in `named`.

    `space` is the namespace that encloses the schema.
    """
    if isinstance(schema, str):
        found = next((name for name in (f"{space}.{schema}", schema) if name in named), None)
        if found is None:
            return schema
        definition = named.pop(found)
        if space and isinstance(definition, dict) and "." not in definition.get("name", "."):
            # It must not get the namespace of what it is put into.
            definition = {"namespace": "", **definition}
        return _with_references(definition, named, space)
    if isinstance(schema, list):
        return [_with_references(branch, named, space) for branch in schema]
    if isinstance(schema, dict):
        own = schema.get("namespace", space)
        if "." in str(schema.get("name", "")):
            own = schema["name"].rpartition(".")[0]
        inner = {
            key: _with_references(value, named, own)
            for key, value in schema.items()
            if key in ("type", "items", "values")
        }
        if "fields" in schema:
            inner["fields"] = [
                {**one, "type": _with_references(one["type"], named, own)} for one in schema["fields"]
            ]
        return {**schema, **inner}
    return schema


def parsed(schema: Any) -> Any:
    """Parse a schema into fastavro's form: names in full, definitions checked. Raises SchemaError."""
    if isinstance(schema, Schema):
        schema = whole(schema)
    if isinstance(schema, str) and schema.lstrip()[:1] in '{["':
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise SchemaError(f"Avro schema: no JSON: {error}") from error
    try:
        return parse_schema(schema, named_schemas={})
    except (SchemaParseException, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise SchemaError(f"Avro schema: {type(error).__name__}: {error}") from error


def reader(written: Any, wanted: Any | None = None) -> Reader:
    """Return a decoder of values that were written with the schema `written`.

    With `wanted`, the decoder converts the values to that schema. Both schemas must be parsed (`parsed`).
    """
    bounds = bounds_of(written, is_resolved=wanted is not None and written != wanted)

    def read(data: bytes, start: int) -> Any:
        if bounds is not None:
            bounds(data, start)
        stream = BytesIO(data)
        stream.seek(start)
        value = schemaless_reader(stream, written, wanted)
        if left := len(data) - stream.tell():
            raise ValueError(f"{left} bytes are left over: it was written with another schema")
        return value

    return read


def writer(schema: Any) -> Callable[[Any, bytes], bytes]:
    """Return a function that takes a value and a prefix, and returns the prefix and the encoded value.

    `schema` must be parsed. The function checks little of a value, which should come from `Values`; but it
    raises ValueError for a record that lacks a field without a default, or has a field that the schema lacks.
    """

    def write(value: AvroMessage, prefix: bytes = b"") -> bytes:
        stream = BytesIO()
        stream.write(prefix)
        schemaless_writer(stream, schema, value, strict_allow_default=True)
        return stream.getvalue()

    return write


def name_of(schema: Any) -> str:
    """Return the name of a parsed schema, or its kind if it has none."""
    if isinstance(schema, dict):
        return str(schema.get("name", schema["type"]))
    return "union" if isinstance(schema, list) else str(schema)


def to_json(value: Any) -> bytes:
    """Write a decoded value as JSON: times in ISO 8601, decimals as text, bytes in base64, plain unions."""
    return msgspec.json.encode(value)


class Values:
    """Converts parsed JSON into values for `writer`; the reverse of `to_json`. Raises ValueError.

    A value of a union may name its branch, as in Avro's own JSON: {"string": "x"}. If it names none, the
    first branch that accepts the value is used.
    """

    leaves = LEAVES

    def __init__(self, schema: Any) -> None:
        """Take a parsed schema."""
        self._schema = schema
        self._named: dict[str, Any] = {}
        self._fields: dict[str, dict[str, Any]] = {}
        self._name(schema)

    def _name(self, schema: Any) -> None:
        if isinstance(schema, list):
            for branch in schema:
                self._name(branch)
        elif isinstance(schema, dict):
            if "name" in schema:
                self._named[schema["name"]] = schema
            for part in (schema["type"], schema.get("items"), schema.get("values")):
                self._name(part)
            if "fields" in schema:
                self._fields[schema["name"]] = {one["name"]: one["type"] for one in schema["fields"]}
                self._name([one["type"] for one in schema["fields"]])

    def __call__(self, value: Any) -> Any:
        return self.of(self._schema, value)

    def of(self, schema: Any, value: Any) -> Any:
        if isinstance(schema, list):
            return self.branch(schema, value)
        if isinstance(schema, str):
            if (schema, None) in self.leaves:
                return msgspec.convert(value, self.leaves[schema, None])
            return self.of(self._named[schema], value)
        kind = schema["type"]
        if kind in ("record", "error"):
            fields = self._fields[schema["name"]]
            given = msgspec.convert(value, dict[str, Any])
            if unknown := [name for name in given if name not in fields]:
                raise ValueError(f"{schema['name']} has no field {unknown[0]}")
            return {name: self.of(fields[name], one) for name, one in given.items()}
        if kind == "array":
            return [self.of(schema["items"], one) for one in msgspec.convert(value, list)]
        if kind == "map":
            pairs = msgspec.convert(value, dict[str, Any]).items()
            return {key: self.of(schema["values"], one) for key, one in pairs}
        if kind == "enum" and value not in schema["symbols"]:
            raise ValueError(f"{schema['name']} has no symbol {value!r}")
        if not isinstance(kind, str) or (kind, None) not in self.leaves:
            return self.of(kind, value)
        return msgspec.convert(value, self._leaf(kind, schema.get("logicalType")))

    def _leaf(self, kind: str, logical: Any) -> Any:
        return self.leaves.get((kind, logical), self.leaves[kind, None])

    def branch(self, branches: list[Any], value: Any) -> Any:
        """Convert a value of a union. Return None for null, else (name of the branch, converted value)."""
        if isinstance(value, dict) and len(value) == 1:
            ((tag, inner),) = value.items()
            for branch in branches:
                if tag == name_of(branch):
                    return tag, self.of(branch, inner)
        why: Exception = ValueError("a union without branches has no value")
        for branch in branches:
            try:
                found = self.of(branch, value)
            except ValueError as error:
                why = error
            else:
                return None if found is None else (name_of(branch), found)
        raise why
