"""Encodes and decodes the values of the records in `__cluster_metadata`. A value has this form:

    frame version (uvarint, 1) | API key of the record (uvarint) | its version (uvarint) | its fields

Source in Kafka: org.apache.kafka.server.common.serialization.AbstractApiMessageSerde.
"""

from __future__ import annotations

from typing import Any

from mpbroker.protocol.codec import data_key, decode_data, encode_bytes, encode_data
from mpbroker.protocol.messages import Message
from mpbroker.protocol.wire import Buffer, MalformedMessage, UnsupportedVersion, read_uvarint, uvarint

FRAME_VERSION = 1


def encode_metadata_record(record: Message, version: int) -> bytes:
    frame = uvarint(FRAME_VERSION) + uvarint(data_key(type(record))) + uvarint(version)
    return frame + encode_bytes(encode_data(record, version))


def read_frame(value: Buffer) -> tuple[int, int, int]:
    """Return a record's API key, its version, and the position of its fields. Raises MalformedMessage."""
    try:
        frame_version, pos = read_uvarint(value, 0)
        api_key, pos = read_uvarint(value, pos)
        version, pos = read_uvarint(value, pos)
    except IndexError as e:
        raise MalformedMessage("metadata record: cut off") from e
    if frame_version != FRAME_VERSION:
        raise MalformedMessage(f"metadata record: frame version {frame_version}, not {FRAME_VERSION}")
    return api_key, version, pos


def decode_metadata_record(value: Buffer) -> Any:
    """Decode the value of a metadata record.

    Raises MalformedMessage, also for a record or version that this program does not know.
    """
    api_key, version, pos = read_frame(value)
    try:
        record, end = decode_data(api_key, version, value, pos)
    except UnsupportedVersion as e:
        raise MalformedMessage(
            f"metadata record of type {api_key}, version {version}: this program does not know it"
        ) from e
    if end != len(value):
        raise MalformedMessage(f"metadata record of type {api_key}: {len(value) - end} bytes too many")
    return record
