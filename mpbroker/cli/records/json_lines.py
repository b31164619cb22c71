"""Records as lines of JSON, which `consume --json` writes and `produce --json` reads. Without I/O.

A key or value in UTF-8 is text in `key` or `value`. Bytes that are not UTF-8 are in base64 in `key_base64` or
`value_base64`. A header is a pair of its name and its value: text, null or {"base64": …}.
A key or value that was decoded with a schema is any JSON, beside `key_schema` or `value_schema`.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.config.integers import LONG_MAX, LONG_MIN
from mpbroker.records.record import LOG_APPEND_TIME, NewRecord, Record
from mpbroker.registry.json_values import Encoder, Shown

# Batches have timestamps of 64 bits.
_Timestamp = Annotated[int, msgspec.Meta(ge=LONG_MIN, le=LONG_MAX)]


class _Bytes(msgspec.Struct, forbid_unknown_fields=True):
    base64: bytes


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class _Line(msgspec.Struct, Generic[_Key, _Value], forbid_unknown_fields=True):
    """A line of JSON, made by `render` or by another program. Missing members have defaults."""

    topic: str | UnsetType = UNSET
    partition: int | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    timestamp: _Timestamp | UnsetType = UNSET
    timestamp_type: str | UnsetType = UNSET
    headers: list[tuple[str, str | _Bytes | None]] = []
    key: _Key | UnsetType = UNSET
    key_base64: bytes | UnsetType = UNSET
    key_schema: Any = None
    value: _Value | UnsetType = UNSET
    value_base64: bytes | UnsetType = UNSET
    value_schema: Any = None


class Encoders(NamedTuple):
    """Encoders of keys and values that are JSON and have a schema; None: they are text."""

    key: Encoder | None = None
    value: Encoder | None = None


NO_SCHEMAS: Final = Encoders()


@cache
def _decoder(*, has_key_schema: bool, has_value_schema: bool) -> msgspec.json.Decoder[_Line[Any, Any]]:
    key: Any = msgspec.Raw if has_key_schema else str | None
    value: Any = msgspec.Raw if has_value_schema else str | None
    return msgspec.json.Decoder(_Line[key, value])


class Parsed(msgspec.Struct, frozen=True, gc=False):
    """A record parsed from a line; `partition` is None if the line names none."""

    record: NewRecord
    partition: int | None


def render(
    topic: str, partition: int, record: Record, key: Shown | None = None, value: Shown | None = None
) -> bytes:
    """Return a record as a line of JSON, with the newline. `key`, `value`: decoded with a schema."""
    document = {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": "LogAppendTime" if record.timestamp_type == LOG_APPEND_TIME else "CreateTime",
        "headers": [[name, _header(value)] for name, value in record.headers],
        **(_field("key", record.key) if key is None else _shown("key", key)),
        **(_field("value", record.value) if value is None else _shown("value", value)),
    }
    return msgspec.json.encode(document) + b"\n"


def parse(line: bytes, number: int, now_ms: int, encoders: Encoders = NO_SCHEMAS) -> Parsed:
    """Return the record of a line. The topic, offset and schemas that the line names are ignored.

    `number`: the line number, for errors. `now_ms`: the timestamp for a line without one. Raises CliError.
    """
    try:
        has = {"has_key_schema": encoders.key is not None, "has_value_schema": encoders.value is not None}
        found = _decoder(**has).decode(line)
        key = _bytes("key", found.key, found.key_base64, found.key_schema, encoders.key)
        value = _bytes("value", found.value, found.value_base64, found.value_schema, encoders.value)
    except (msgspec.DecodeError, ValueError) as error:
        raise CliError(f"line {number:,}: {error}", USAGE_ERROR) from error
    if value is UNSET:
        raise CliError(
            f"line {number:,}: there is neither value nor value_base64; a tombstone has the value null",
            USAGE_ERROR,
        )
    headers = tuple((name, _header_bytes(one)) for name, one in found.headers)
    timestamp = now_ms if found.timestamp is UNSET else found.timestamp
    record = NewRecord(value, None if key is UNSET else key, timestamp, headers)
    return Parsed(record, None if found.partition is UNSET else found.partition)


def _bytes(
    name: str,
    text: str | msgspec.Raw | UnsetType | None,
    base64: bytes | UnsetType,
    schema: object,
    encoder: Encoder | None,
) -> bytes | UnsetType | None:
    if base64 is UNSET:
        if isinstance(text, msgspec.Raw) and encoder is not None:
            # With a schema beside it, null is a value.
            return None if schema is None and bytes(text) == b"null" else encoder.encode(bytes(text))
        if schema is not None:
            raise ValueError(
                f"its {name} was decoded with a schema: --{name}-subject or --{name}-schema-id encodes it"
            )
        return text.encode() if isinstance(text, str) else text
    if text is not UNSET:
        raise ValueError(f"it has both {name} and {name}_base64")
    return base64


def _header_bytes(value: str | _Bytes | None) -> bytes | None:
    return value.base64 if isinstance(value, _Bytes) else None if value is None else value.encode()


def _shown(name: str, found: Shown) -> dict[str, Any]:
    schema = {"id": found.schema.id, "type": found.schema.kind, "name": found.name}
    return {name: msgspec.Raw(found.json), f"{name}_schema": schema}


def _field(name: str, data: bytes | None) -> dict[str, str | bytes | None]:
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        # msgspec writes bytes as base64 in JSON.
        return {f"{name}_base64": data}


def _header(data: bytes | None) -> str | dict[str, bytes] | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return {"base64": data or b""}
