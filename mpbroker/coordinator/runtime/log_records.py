"""Encodes and decodes the records of a coordinator's topic.

A key begins with the number of its kind, a value with its version; both numbers have two bytes. (Kafka:
CoordinatorRecordSerde, MessageUtil.toVersionPrefixedBytes.)
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

from mpbroker.protocol.codec import decode_message, encode_bytes, encoder_for
from mpbroker.protocol.messages import Message
from mpbroker.protocol.wire import MalformedMessage, UnsupportedVersion

_SHORT: Final = struct.Struct(">h")
_KEY_VERSION: Final = 0


class UnreadableRecord(Exception):
    """A record of a coordinator's topic is damaged, or its version is not known."""


def encode_key(kind: int, key: Message) -> bytes:
    return encode_bytes(encoder_for("coordinator-key", kind, _KEY_VERSION)(key, bytearray(_SHORT.pack(kind))))


def encode_value(kind: int, version: int, value: Message) -> bytes:
    return encode_bytes(
        encoder_for("coordinator-value", kind, version)(value, bytearray(_SHORT.pack(version)))
    )


def decode_record(key: bytes | None, value: bytes | None, kinds: Mapping[int, int]) -> tuple[Any, Any] | None:
    """Return key and value as Kafka's messages; the value of a tombstone is None. Raises UnreadableRecord.

    `kinds` maps the number with which a key begins to the number of Kafka's message definition (apiKey).
    Return None if `kinds` lacks the key's number.
    """
    if key is None:
        raise UnreadableRecord("a record without a key")
    try:
        kind = kinds.get(_SHORT.unpack_from(key)[0])
        if kind is None:
            return None
        name, _ = decode_message("coordinator-key", kind, _KEY_VERSION, key, _SHORT.size)
        if value is None:
            return name, None
        (version,) = _SHORT.unpack_from(value)
        return name, decode_message("coordinator-value", kind, version, value, _SHORT.size)[0]
    except (struct.error, MalformedMessage, UnsupportedVersion) as error:
        raise UnreadableRecord(f"key {key[:64]!r}: {error}") from error
