"""Elements that are counted before a request is decoded, against what the decoder finds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from mpbroker.protocol import codec, schema
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.decoder import ELEMENTS_AT_ONCE
from mpbroker.protocol.element_program import count_elements
from mpbroker.protocol.messages import (
    DescribeGroupsRequest,
    HeartbeatRequest,
    MetadataRequest,
    MetadataResponse,
)
from mpbroker.protocol.wire import uvarint

REQUESTS = [
    (message, version) for message in schema.load() if message.kind == "request" for version in message.valid
]
SEEDS = 12


def elements_of(struct: schema.StructType, value: Any, version: int) -> int:
    """Count as the walk does, with what the decoder has built."""
    plain, tagged = struct.at(version)
    default = type(value)()
    written = [f for f in tagged if getattr(value, f.name) != getattr(default, f.name)]
    return len(written) + sum(of_field(f, getattr(value, f.name), version) for f in plain + written)


def of_field(field: schema.Field, value: Any, version: int) -> int:
    if value is None:
        return 0
    if not field.is_array:
        return elements_of(field.struct, value, version) if field.struct is not None else 0
    if field.fixed_format is not None:
        return len(value)
    inner = sum(elements_of(field.struct, one, version) for one in value) if field.struct is not None else 0
    return len(value) + inner


@pytest.mark.parametrize(
    ("message", "version"), REQUESTS, ids=[f"{message.name} v{version}" for message, version in REQUESTS]
)
def test_what_is_counted_is_what_is_there(
    make: Callable[..., Any], message: schema.Message, version: int
) -> None:
    chance = random.Random(version)
    for seed in range(SEEDS):
        made = make(message, version, seed)
        raw = codec.encode_bytes(codec.encode_request(message.api_key, version, made))
        body, _ = codec.decode_request(message.api_key, version, raw)
        there = elements_of(message, body, version)
        assert count_elements(message.api_key, version, b"head" + raw, 4) == there
        assert count_elements(message.api_key, version, raw, 0, there // 2) <= there // 2 + 40
        cut = raw[: chance.randrange(len(raw) + 1)]
        assert count_elements(message.api_key, version, cut, 0) <= there
        broken = bytearray(raw)
        for _ in range(3 if raw else 0):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        assert count_elements(message.api_key, version, broken, 0, 1000) <= 1000 + len(broken)


def test_unknown_tagged_fields_count() -> None:
    raw = codec.encode_bytes(codec.encode_request(ApiKey.HEARTBEAT, 4, HeartbeatRequest("g", 1, "m")))
    tags = b"".join(uvarint(tag) + b"\0" for tag in range(5000))
    assert count_elements(ApiKey.HEARTBEAT, 4, raw[:-1] + uvarint(5000) + tags, 0) == 5000


def test_a_count_alone_costs_nothing() -> None:
    """A count of two thousand millions that no bytes follow must not be walked."""
    raw = codec.encode_bytes(codec.encode_request(ApiKey.METADATA, 1, MetadataRequest([])))
    assert count_elements(ApiKey.METADATA, 1, (2**31 - 1).to_bytes(4) + raw[4:], 0) <= 1


@pytest.mark.parametrize(
    ("message", "version"), REQUESTS[::7], ids=[f"{m.name} v{version}" for m, version in REQUESTS[::7]]
)
def test_pieces_make_the_same_request(
    make: Callable[..., Any], message: schema.Message, version: int
) -> None:
    raw = codec.encode_bytes(codec.encode_request(message.api_key, version, make(message, version, 3)))
    for buf in (raw, memoryview(raw), memoryview(bytearray(raw) + bytearray(2_000_000))):
        pieces = codec.decode_request_in_pieces(message.api_key, version, buf)
        whole = codec.decode_request(message.api_key, version, buf)
        assert msgspec.structs.astuple(ended(pieces)[0]) == msgspec.structs.astuple(whole[0])


def ended(pieces: Any) -> Any:
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            return end.value


def test_long_arrays_are_decoded_with_pauses() -> None:
    names = [str(number) for number in range(5 * ELEMENTS_AT_ONCE)]
    raw = codec.encode_bytes(codec.encode_request(ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(names)))
    pieces = codec.decode_request_in_pieces(ApiKey.DESCRIBE_GROUPS, 5, raw)
    for _ in range(5):
        assert next(pieces) is None
    assert ended(pieces)[0].groups == names


RESPONSES = [
    (message, version) for message in schema.load() if message.kind == "response" for version in message.valid
]


@pytest.mark.parametrize(
    ("message", "version"), RESPONSES[::5], ids=[f"{m.name} v{version}" for m, version in RESPONSES[::5]]
)
def test_pieces_make_the_same_response(
    make: Callable[..., Any], message: schema.Message, version: int
) -> None:
    made = make(message, version, 4)
    pieces = codec.response_encoder_in_pieces(message.api_key, version)(made, bytearray(b"head"))
    whole = codec.encoder_for("response", message.api_key, version)(made, bytearray(b"head"))
    assert [bytes(one) for one in ended(pieces)] == [bytes(one) for one in whole]


def test_long_responses_are_encoded_with_pauses() -> None:
    topic = MetadataResponse.MetadataResponseTopic(name="t")
    for topics in ([topic] * (3 * ELEMENTS_AT_ONCE), [topic]):
        response = MetadataResponse(topics=topics)
        if len(topics) == 1:
            partition = MetadataResponse.MetadataResponsePartition()
            topic.partitions = [partition] * (3 * ELEMENTS_AT_ONCE)
        pieces = codec.response_encoder_in_pieces(ApiKey.METADATA, 9)(response, bytearray())
        for _ in range(3):
            assert next(pieces) is None
        assert codec.encode_bytes(ended(pieces)) == codec.encode_bytes(
            codec.encode_response(ApiKey.METADATA, 9, response)
        )
