"""Turns records into what the console's page shows: texts or bytes, cut where they are long. Without I/O.

A key or value is null, or an object with "n" (its number of bytes) and "text", or "b64" if it is not UTF-8.
"cut" means that only the first bytes are included.
"""

from __future__ import annotations

import base64
import json
from functools import lru_cache
from typing import Any, Final

from mpbroker.records.iterate import Batch
from mpbroker.records.markers import ABORT, COMMIT, marker_of
from mpbroker.records.record import LOG_APPEND_TIME, Record

PREVIEW_BYTES: Final = 400
WHOLE_BYTES: Final = 256 << 10
HEADERS_MAX: Final = 100
# Characters of a header's name.
_NAME_MAX: Final = 200
# The memory of a record and of a header besides their texts, roughly.
_RECORD_OBJECTS_BYTES: Final = 1024
_HEADER_OBJECTS_BYTES: Final = 512
_SEARCHED_AT_ONCE_BYTES: Final = 1 << 20
_MARKERS: Final = {ABORT: "abort", COMMIT: "commit"}


def value_of(data: bytes | None, most: int) -> dict[str, Any] | None:
    """Return the object that shows at most `most` bytes of a key, value or header; None for null."""
    if data is None:
        return None
    shown: dict[str, Any] = {"n": len(data)}
    piece = data[:most]
    if len(data) > most:
        shown["cut"] = True
    try:
        shown["text"] = piece.decode()
    except UnicodeDecodeError as error:
        # A character that is cut in two does not mean binary data.
        if "cut" in shown and error.reason == "unexpected end of data":
            shown["text"] = piece[: error.start].decode()
        else:
            shown["b64"] = base64.b64encode(piece).decode()
    return shown


def record_of(partition: int, batch: Batch, record: Record, most: int) -> dict[str, Any]:
    """Return a row for a record. `most`: the bytes to show of its key, of its value and of each header."""
    shown: dict[str, Any] = {
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "is_append_time": record.timestamp_type == LOG_APPEND_TIME,
        "key": value_of(record.key, most),
        "value": value_of(record.value, most),
        "headers": [
            [name[:_NAME_MAX], value_of(value, most)] for name, value in record.headers[:HEADERS_MAX]
        ],
        "header_count": len(record.headers),
        "codec": batch.codec.name.lower(),
    }
    if batch.header.producer_id >= 0:
        shown["producer"] = [batch.header.producer_id, batch.header.producer_epoch]
    if batch.is_transactional:
        shown["transactional"] = True
    return shown


def size_of(shown: dict[str, Any]) -> int:
    """Return approximately how many bytes the result of `record_of` takes in memory."""
    values = [shown["key"], shown["value"], *(value for _, value in shown["headers"])]
    texts = sum(len(one.get("text") or one.get("b64") or "") for one in values if one is not None)
    return _RECORD_OBJECTS_BYTES + _HEADER_OBJECTS_BYTES * len(shown["headers"]) + texts


def size_of_data(record: Record) -> int:
    """Return how many bytes key and value have."""
    return len(record.key or b"") + len(record.value or b"")


def marker_view(partition: int, batch: Batch) -> dict[str, Any]:
    """Return a row for a transaction marker, which is a batch without records of clients."""
    found = marker_of(batch.bytes)
    return {
        "partition": partition,
        "offset": batch.header.base_offset,
        "timestamp": batch.header.max_timestamp,
        "marker": _MARKERS.get(found[0], "control") if found is not None else "control",
        "producer": [batch.header.producer_id, batch.header.producer_epoch],
    }


def problem_view(partition: int, offset: int, why: str) -> dict[str, Any]:
    """Return a row in place of records that cannot be read."""
    return {"partition": partition, "offset": offset, "timestamp": -1, "problem": why}


def has_text(record: Record, wanted: bytes) -> bool:
    """Return whether a record contains the lower-case text `wanted`, or that text escaped as in JSON."""
    if not wanted:
        return True
    texts = _spellings(wanted)
    parts = [record.key, record.value, *(value for _, value in record.headers)]
    if any(part is not None and _has(part, text) for text in texts for part in parts):
        return True
    return any(wanted in name.encode().lower() for name, _ in record.headers)


@lru_cache(maxsize=16)
def _spellings(wanted: bytes) -> tuple[bytes, ...]:
    """Return the text and, if it is not ASCII, also its form with JSON's escapes."""
    escaped = json.dumps(wanted.decode(errors="replace"))[1:-1].encode().lower()
    return (wanted,) if wanted.isascii() or escaped == wanted else (wanted, escaped)


def _has(data: bytes, wanted: bytes) -> bool:
    """Return whether `data`, in lower case, contains `wanted`. Works piece by piece, for huge values."""
    for at in range(0, len(data), _SEARCHED_AT_ONCE_BYTES):
        if wanted in data[at : at + _SEARCHED_AT_ONCE_BYTES + len(wanted) - 1].lower():
            return True
    return False
