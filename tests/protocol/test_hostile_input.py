"""Whatever bytes come, a decoder answers with a message or with MalformedMessage, and soon."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from mpbroker.protocol import codec, messages, schema
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.headers import RequestHeader, decode_request_header, encode_request_header
from mpbroker.protocol.wire import MAX_STRING, Buffer, MalformedMessage, uvarint

CASES = [
    (ApiKey.PRODUCE, 8),
    (ApiKey.PRODUCE, 13),
    (ApiKey.FETCH, 4),
    (ApiKey.FETCH, 18),
    (ApiKey.METADATA, 1),
    (ApiKey.METADATA, 12),
    (ApiKey.JOIN_GROUP, 9),
    (ApiKey.OFFSET_COMMIT, 2),
    (ApiKey.CREATE_TOPICS, 7),
    (ApiKey.API_VERSIONS, 3),
    (ApiKey.DESCRIBE_CLIENT_QUOTAS, 1),
    (ApiKey.CONSUMER_GROUP_HEARTBEAT, 1),
]
MUTATIONS = 20_000
# What Java's String makes of the bytes.
REPLACED_AS_JAVA_DOES = [
    (b"caf\xe9", "caf\ufffd"),
    (b"\xff", "\ufffd"),
    (b"\xfeA", "\ufffdA"),
    (b"\xc0\x80", "\ufffd\ufffd"),
    (b"\xe0\x80\x80", "\ufffd\ufffd\ufffd"),
    (b"\xe2\x82", "\ufffd"),
    (b"\xe2\x82A", "\ufffdA"),
    (b"\xf0\x9f\x98A\xc3", "\ufffdA\ufffd"),
    (b"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"),
    (b"\xbf\xbd", "\ufffd\ufffd"),
    ("é\U0001f600".encode(), "é\U0001f600"),
]


def encoded(make: Callable[..., Any], api_key: int, version: int, seed: int) -> bytes:
    message = schema.message_for("request", api_key)
    assert message is not None
    return codec.encode_bytes(codec.encode_request(api_key, version, make(message, version, seed)))


def padded_view(raw: bytes) -> memoryview:
    """The same bytes at the end of a buffer so large that it is decoded in place."""
    return memoryview(bytearray(2_000_000) + raw)


@pytest.mark.parametrize(("api_key", "version"), CASES)
def test_every_truncation_is_refused(make: Callable[..., Any], api_key: int, version: int) -> None:
    raw = min((encoded(make, api_key, version, seed) for seed in range(20)), key=lambda r: abs(len(r) - 400))
    for size in range(len(raw)):
        with pytest.raises(MalformedMessage, match=f"Request v{version}: "):
            codec.decode_request(api_key, version, raw[:size])


@pytest.mark.parametrize(("api_key", "version"), [(ApiKey.PRODUCE, 9), (ApiKey.FETCH, 12)])
def test_every_truncation_of_a_view_is_refused(make: Callable[..., Any], api_key: int, version: int) -> None:
    raw = min((encoded(make, api_key, version, seed) for seed in range(20)), key=lambda r: abs(len(r) - 300))
    view = padded_view(raw)
    start = len(view) - len(raw)
    assert codec.decode_request(api_key, version, view, start)[1] == len(view)
    for size in range(len(raw)):
        with pytest.raises(MalformedMessage):
            codec.decode_request(api_key, version, view[: start + size], start)


def mutated(r: random.Random, raw: bytes) -> bytes:
    out = bytearray(raw)
    for _ in range(r.choice((1, 1, 2, 5))):
        at = r.randrange(len(out))
        what = r.randrange(4)
        if what == 0:
            out[at] = r.randrange(256)
        elif what == 1:
            giant = r.choice((b"\xff\xff\xff\xff\x7f", b"\x7f\xff\xff\xff", b"\xff" * 10))
            out[at : at + r.randrange(1, 5)] = giant
        elif what == 2:
            del out[at : at + r.randrange(1, 9)]
            out += b"\0" * (not out)
        else:
            out[at:at] = r.randbytes(r.randrange(1, 9))
    return bytes(out)


def test_mutations_end_in_a_message_or_malformed_message(make: Callable[..., Any]) -> None:
    r = random.Random(20261)
    seeds = [(key, version, encoded(make, key, version, seed)) for key, version in CASES for seed in range(6)]
    refused = 0
    for _ in range(MUTATIONS):
        api_key, version, raw = r.choice(seeds)
        broken = mutated(r, raw)
        try:
            _, end = codec.decode_request(api_key, version, broken)
        except MalformedMessage:
            refused += 1
        else:
            assert 0 < end <= len(broken)
    assert MUTATIONS // 10 < refused < MUTATIONS


def test_mutated_headers() -> None:
    r = random.Random(5)
    raw = encode_request_header(RequestHeader(ApiKey.FETCH, 16, 7, "rdkafka")) + b"rest"
    for _ in range(5_000):
        broken = mutated(r, raw)
        try:
            header, pos = decode_request_header(broken)
        except MalformedMessage:
            continue
        assert 10 <= pos <= len(broken)
        assert header.api_key in list(ApiKey)


@pytest.mark.parametrize(
    ("api_key", "version", "body"),
    [
        # Metadata: topics only; a reservation for this count once aborted a decoder written in Rust.
        (ApiKey.METADATA, 12, b"\xff\xff\xff\xff\x7f"),
        (ApiKey.METADATA, 12, b"\xff\xff\xff\xff\x0f" + bytes(100)),
        (ApiKey.METADATA, 4, b"\x7f\xff\xff\xff" + bytes(1000)),
        # ListOffsets: an array of structs; DescribeGroups: of strings
        (ApiKey.LIST_OFFSETS, 1, bytes(4) + b"\x7f\xff\xff\xff" + bytes(1000)),
        (ApiKey.DESCRIBE_GROUPS, 5, b"\xff\xff\xff\xff\x0f" + bytes(1000)),
        # a number of tagged fields
        (ApiKey.HEARTBEAT, 4, b"\x02g" + bytes(4) + b"\x02m\x00" + b"\xff\xff\xff\xff\x0f"),
    ],
)
def test_giant_counts_cost_no_memory(api_key: int, version: int, body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        codec.decode_request(api_key, version, body)
    # What the first call prepares is there now.
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage):
            codec.decode_request(api_key, version, body)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 100_000


def test_a_count_may_be_as_large_as_what_is_left_allows() -> None:
    body = b"\x00\x00\x00\x64" + b"\x00\x00" * 100  # DescribeGroups v0: 100 empty group ids
    request, end = codec.decode_request(ApiKey.DESCRIBE_GROUPS, 0, body)
    assert request.groups == [""] * 100
    assert end == len(body)
    with pytest.raises(MalformedMessage, match="100 elements"):
        codec.decode_request(ApiKey.DESCRIBE_GROUPS, 0, body[:-1])


def test_a_varint_of_six_bytes_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="varint"):
        codec.decode_request(ApiKey.METADATA, 12, b"\xff\xff\xff\xff\xff\x01" + bytes(50))


def in_pieces(key: int, version: int, buffer: Buffer, position: int) -> tuple[Any, int]:
    pieces = codec.decode_request_in_pieces(key, version, buffer, position)
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            decoded: tuple[Any, int] = end.value
            return decoded


@pytest.mark.parametrize("decode", [codec.decode_request, in_pieces])
@pytest.mark.parametrize("to_buffer", [bytes, padded_view])
@pytest.mark.parametrize(("raw", "text"), REPLACED_AS_JAVA_DOES)
def test_what_is_no_utf_8_is_replaced(
    raw: bytes, text: str, to_buffer: Callable[[bytes], Buffer], decode: Callable[..., tuple[Any, int]]
) -> None:
    # Heartbeat v0: group id, generation, member id
    sent = struct.pack(">h", len(raw)) + raw + bytes(4) + b"\0\1m"
    buffer = to_buffer(sent)
    request, end = decode(ApiKey.HEARTBEAT, 0, buffer, len(buffer) - len(sent))
    assert (request.group_id, request.member_id, end) == (text, "m", len(buffer))


@pytest.mark.parametrize("to_buffer", [bytes, padded_view])
def test_a_string_that_its_replacements_make_too_long_is_refused(
    to_buffer: Callable[[bytes], Buffer],
) -> None:
    def group_of(valid: int) -> str:
        raw = b"g" * valid + b"\xff" * 10
        sent = struct.pack(">h", len(raw)) + raw + bytes(4) + b"\0\1m"
        buffer = to_buffer(sent)
        request, _ = codec.decode_request(ApiKey.HEARTBEAT, 0, buffer, len(buffer) - len(sent))
        return str(request.group_id)

    assert len(group_of(MAX_STRING - 30).encode()) == MAX_STRING
    with pytest.raises(MalformedMessage, match=r"longer than 32767 bytes where U\+FFFD replaces"):
        group_of(MAX_STRING - 29)


def test_a_null_where_none_may_be_is_refused() -> None:
    with pytest.raises(MalformedMessage, match=r"HeartbeatRequest v[04]: group_id is null"):
        codec.decode_request(ApiKey.HEARTBEAT, 0, b"\xff\xff" + bytes(4) + b"\x00\x01m")
    with pytest.raises(MalformedMessage, match=r"HeartbeatRequest v[04]: group_id is null"):
        codec.decode_request(ApiKey.HEARTBEAT, 4, b"\x00" + bytes(4) + b"\x02m\x00\x00")


def test_strings_are_at_most_32767_bytes_also_where_the_length_is_a_varint() -> None:
    def heartbeat(size: int) -> bytes:
        return uvarint(size + 1) + b"g" * size + bytes(4) + b"\x02m\x00\x00"

    request, _ = codec.decode_request(ApiKey.HEARTBEAT, 4, heartbeat(MAX_STRING))
    assert len(request.group_id) == MAX_STRING
    with pytest.raises(MalformedMessage, match="longer than 32767"):
        codec.decode_request(ApiKey.HEARTBEAT, 4, heartbeat(MAX_STRING + 1))
    for version in (3, 4):
        long = messages.HeartbeatRequest("g" * (MAX_STRING + 1))
        with pytest.raises(ValueError, match="longer than 32767"):
            codec.encode_request(ApiKey.HEARTBEAT, version, long)
