"""Records as lines of JSON, which `consume --json` writes and `produce --json` reads. Without I/O.

A key or value in UTF-8 is text in `key` or `value`. Bytes that are not UTF-8 are in base64 in `key_base64` or
`value_base64`. A header is a pair of its name and its value: text, null or {"base64": …}.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.config.integers import LONG_MAX, LONG_MIN
from mpbroker.records.record import LOG_APPEND_TIME, NewRecord, Record

# Batches have timestamps of 64 bits.
_Timestamp = Annotated[int, msgspec.Meta(ge=LONG_MIN, le=LONG_MAX)]


class _Bytes(msgspec.Struct, forbid_unknown_fields=True):
    base64: bytes


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """A line of JSON, made by `render` or by another program. Missing members have defaults."""

    topic: str | UnsetType = UNSET
    partition: int | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    timestamp: _Timestamp | UnsetType = UNSET
    timestamp_type: str | UnsetType = UNSET
    headers: list[tuple[str, str | _Bytes | None]] = []
    key: str | UnsetType | None = UNSET
    key_base64: bytes | UnsetType = UNSET
    value: str | UnsetType | None = UNSET
    value_base64: bytes | UnsetType = UNSET


_DECODER = msgspec.json.Decoder(_Line)


class Parsed(msgspec.Struct, frozen=True, gc=False):
    """A record parsed from a line; `partition` is None if the line names none."""

    record: NewRecord
    partition: int | None


def render(topic: str, partition: int, record: Record) -> bytes:
    """Return a record as a line of JSON, with the newline."""
    document = {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": "LogAppendTime" if record.timestamp_type == LOG_APPEND_TIME else "CreateTime",
        "headers": [[name, _header(value)] for name, value in record.headers],
        **_field("key", record.key),
        **_field("value", record.value),
    }
    return msgspec.json.encode(document) + b"\n"


def parse(line: bytes, number: int, now_ms: int) -> Parsed:
    """Return the record of a line. The line's topic and offset are ignored.

    `number`: the line number, for errors. `now_ms`: the timestamp for a line without one. Raises CliError.
    """
    try:
        found = _DECODER.decode(line)
        key = _bytes("key", found.key, found.key_base64)
        value = _bytes("value", found.value, found.value_base64)
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


def _bytes(name: str, text: str | UnsetType | None, base64: bytes | UnsetType) -> bytes | UnsetType | None:
    if base64 is UNSET:
        return text.encode() if isinstance(text, str) else text
    if text is not UNSET:
        raise ValueError(f"it has both {name} and {name}_base64")
    return base64


def _header_bytes(value: str | _Bytes | None) -> bytes | None:
    return value.base64 if isinstance(value, _Bytes) else None if value is None else value.encode()


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
