"""Every message in every version against kio, an implementation that shares no code with ours."""

from __future__ import annotations

import dataclasses
import datetime
import io
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from mpbroker.protocol import codec, messages, schema
from mpbroker.protocol.messages import Message

MS = datetime.timedelta(milliseconds=1)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
ROUNDS = 4
ENCODE = {"request": codec.encode_request, "response": codec.encode_response}
DECODE = {"request": codec.decode_request, "response": codec.decode_response}
MESSAGES = [m for m in schema.load() if m.kind in ENCODE]
LOAD = {"request": load_request_schema, "response": load_response_schema}


def test_no_message_version_is_left_out() -> None:
    assert len(MESSAGES) == 122
    assert sum(len(m.valid) for m in MESSAGES) == 512


def plain(value: object, is_ms: bool) -> object:
    """Kio's value as our types have it."""
    if isinstance(value, tuple):
        return [plain(v, is_ms) for v in value]
    if isinstance(value, datetime.timedelta):
        return value // MS
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // MS
    if isinstance(value, uuid.UUID):
        return value.bytes
    return -1 if value is None and is_ms else value


def without_zero_uuids(value: Any) -> Any:
    """Kio has None for the uuid of all zeros."""
    if isinstance(value, list):
        return [without_zero_uuids(v) for v in value]
    return None if value == bytes(16) else value


def assert_same_fields(ours: Message, kios: Any) -> None:
    for field in dataclasses.fields(kios):
        kio_type = field.metadata.get("kafka_type", "")
        is_ms = kio_type.startswith(("timedelta", "datetime"))
        mine = getattr(ours, field.name.rstrip("_") + ("_ms" if is_ms else ""))
        theirs = plain(getattr(kios, field.name), is_ms)
        if kio_type == "uuid":
            mine = without_zero_uuids(mine)
        if isinstance(theirs, list) and theirs and dataclasses.is_dataclass(theirs[0]):
            for a, b in zip(mine, theirs, strict=True):
                assert_same_fields(a, b)
        elif dataclasses.is_dataclass(theirs):
            assert_same_fields(mine, theirs)
        else:
            assert mine == theirs, field.name


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.name)
def test_bytes_and_values_agree_with_kio(message: schema.Message, make: Callable[..., Any]) -> None:
    for version in message.valid:
        cls = LOAD[message.kind](message.api_key, version)
        read, write = entity_reader(cls), entity_writer(cls)
        defaults = getattr(messages, message.name)()
        for obj in [defaults] + [make(message, version, seed) for seed in range(ROUNDS)]:
            raw = codec.encode_bytes(ENCODE[message.kind](message.api_key, version, obj))
            theirs, size = read(raw, 0)
            assert size == len(raw)
            assert_same_fields(obj, theirs)
            out = io.BytesIO()
            write(out, theirs)
            assert out.getvalue() == raw
            ours, end = DECODE[message.kind](message.api_key, version, b"??" + raw, 2)
            assert end == len(raw) + 2
            assert ours == obj


@pytest.mark.parametrize("message", [m for m in MESSAGES if m.kind == "request"], ids=lambda m: m.name)
def test_views_read_like_bytes(message: schema.Message, make: Callable[..., Any]) -> None:
    """A frame in shared memory may be too big to be copied; its decoder is another function."""
    for version in (message.valid[0], message.valid[-1]):
        obj = make(message, version, 1)
        raw = codec.encode_bytes(codec.encode_request(message.api_key, version, obj))
        frame = bytearray(raw) + bytes(2_000_000)
        assert codec.decode_request(message.api_key, version, memoryview(frame)) == (obj, len(raw))
