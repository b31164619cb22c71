"""Headers and frames against bytes written by hand, and against kio."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.request_header.v1.header import RequestHeader as KioV1
from kio.schema.request_header.v2.header import RequestHeader as KioV2
from kio.serial import entity_reader

from mpbroker.handlers.apis import all_apis
from mpbroker.protocol import codec
from mpbroker.protocol.api_keys import ApiKey, is_flexible, valid_versions
from mpbroker.protocol.codec import encode_bytes, encode_response
from mpbroker.protocol.headers import (
    RequestHeader,
    decode_request_header,
    decode_response_frame,
    encode_request_frame,
    encode_request_header,
    encode_response_frame,
    frame_response,
    response_header_version,
)
from mpbroker.protocol.messages import (
    RESPONSES,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FetchResponse,
    HeartbeatResponse,
)
from mpbroker.protocol.wire import MalformedMessage

KEYS_AND_VERSIONS = [(key, version) for key in ApiKey for version in valid_versions(key)]


def test_header_versions_agree_with_kio() -> None:
    for key, version in KEYS_AND_VERSIONS:
        request = load_request_schema(key, version).__header_schema__
        assert int(request.__version__) == (2 if is_flexible(key, version) else 1), (key, version)
        response = load_response_schema(key, version).__header_schema__
        assert int(response.__version__) == response_header_version(key, version), (key, version)


@pytest.mark.parametrize(("version", "cls"), [(8, KioV1), (9, KioV2)])
@pytest.mark.parametrize("client_id", ["", "rdkafka", "ä" * 100])
def test_request_header_agrees_with_kio(version: int, cls: type, client_id: str) -> None:
    header = RequestHeader(ApiKey.PRODUCE, version, -7, client_id)
    raw = encode_request_header(header)
    kios: Any
    kios, size = entity_reader(cls)(raw, 0)
    assert size == len(raw)
    assert (kios.request_api_key, kios.request_api_version) == (0, version)
    assert (kios.correlation_id, kios.client_id) == (-7, client_id)
    assert decode_request_header(b"123" + raw + b"body", 3) == (header, 3 + len(raw))
    assert decode_request_header(memoryview(bytearray(raw))) == (header, len(raw))


@pytest.mark.parametrize("size", range(12))
def test_a_header_that_is_cut_off_says_so_in_words(size: int) -> None:
    """An operator reads it in the line about a failed authentication."""
    raw = encode_request_header(RequestHeader(ApiKey.PRODUCE, 9, 1, "ab"))
    with pytest.raises(MalformedMessage, match=r"^request header: cut off$"):
        decode_request_header(raw[:size])


def test_what_is_no_utf_8_in_a_client_id_is_replaced() -> None:
    header, at = decode_request_header(bytes.fromhex("00030001000000050004636166e9"))
    assert (header.client_id, at) == ("caf\ufffd", 14)


def test_a_null_client_id_reads_as_empty() -> None:
    assert decode_request_header(bytes.fromhex("0003000100000005ffff")) == (RequestHeader(3, 1, 5, ""), 10)


def test_tags_of_a_header_are_skipped() -> None:
    raw = bytes.fromhex("0003000c00000005000161" + "02" + "0001ff" + "0702abcd")
    assert decode_request_header(raw + b"body") == (RequestHeader(3, 12, 5, "a"), len(raw))


def test_every_truncation_of_a_header_is_refused() -> None:
    raw = bytes.fromhex("0003000c00000005000161" + "01" + "0702abcd")
    for size in range(len(raw)):
        with pytest.raises(MalformedMessage):
            decode_request_header(raw[:size])


@pytest.mark.parametrize("api_key", [-1, 4, 7, 93, 32767])
def test_an_unknown_api_key_is_refused(api_key: int) -> None:
    with pytest.raises(MalformedMessage, match=f"no API has key {api_key}"):
        decode_request_header(struct.pack(">hhih", api_key, 0, 1, -1) + bytes(10))


def test_the_header_of_a_version_to_come_can_be_read() -> None:
    """An ApiVersions request of a newer client must get UNSUPPORTED_VERSION, not a closed connection."""
    raw = encode_request_header(RequestHeader(ApiKey.API_VERSIONS, 99, 1, "new"))
    assert decode_request_header(raw)[0].api_version == 99


@pytest.mark.parametrize("version", range(5))
def test_the_response_to_api_versions_always_has_header_v0(version: int) -> None:
    """Clients read correlation id and error code before they know any version (KIP-511)."""
    body = ApiVersionsResponse(35, [ApiVersionsResponse.ApiVersion(18, 0, 4)])
    frame = codec.encode_bytes(encode_response_frame(ApiKey.API_VERSIONS, version, 66, body))
    size, correlation_id, error_code = struct.unpack_from(">iih", frame)
    assert (size, correlation_id, error_code) == (len(frame) - 4, 66, 35)
    assert decode_response_frame(ApiKey.API_VERSIONS, version, frame[4:]) == (66, body)


def test_a_refused_version_of_api_versions_is_answered_in_version_0() -> None:
    body = ApiVersionsResponse(35, [ApiVersionsResponse.ApiVersion(18, 0, 4)])
    frame = codec.encode_bytes(encode_response_frame(ApiKey.API_VERSIONS, 0, 66, body))
    assert frame.hex() == "00000010" + "00000042" + "0023" + "00000001" + "001200000004"
    assert decode_response_frame(ApiKey.API_VERSIONS, 4, frame[4:]) == (66, body)
    with pytest.raises(MalformedMessage):
        decode_response_frame(ApiKey.API_VERSIONS, 4, frame[4:-1])


@pytest.mark.parametrize(("version", "header"), [(3, "00000007"), (4, "0000000700")])
def test_response_frames(version: int, header: str) -> None:
    frame = codec.encode_bytes(encode_response_frame(ApiKey.HEARTBEAT, version, 7, HeartbeatResponse(1, 2)))
    body = "00000001" + "0002" + ("00" if version == 4 else "")
    assert frame.hex() == f"{len(header + body) // 2:08x}" + header + body
    with pytest.raises(MalformedMessage, match="too many"):
        decode_response_frame(ApiKey.HEARTBEAT, version, frame[4:] + b"x")


def test_the_size_of_a_frame_counts_all_segments() -> None:
    partition = FetchResponse.PartitionData(records=bytes(100_000))
    topic = FetchResponse.FetchableTopicResponse(topic_id=bytes(16), partitions=[partition])
    segments = encode_response_frame(ApiKey.FETCH, 16, 1, FetchResponse(responses=[topic]))
    frame = codec.encode_bytes(segments)
    assert len(segments) == 3
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4


def test_request_frames_are_read_by_a_server() -> None:
    header = RequestHeader(ApiKey.API_VERSIONS, 3, 5, "me")
    body = ApiVersionsRequest("lib", "1.0")
    frame = codec.encode_bytes(encode_request_frame(header, body))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    read, pos = decode_request_header(frame, 4)
    assert read == header
    assert codec.decode_request(read.api_key, read.api_version, frame, pos) == (body, len(frame))


# ---- responses that somebody else has encoded

PAUSE_MS = 0x01020304
FORWARDED = [
    (key, version)
    for key, api in all_apis().items()
    if api.is_forwarded
    for version in range(api.oldest, api.latest + 1)
]


@pytest.mark.parametrize("pause_ms", [0, PAUSE_MS])
@pytest.mark.parametrize(("key", "version"), FORWARDED)
def test_a_framed_response_is_one_that_was_encoded_with_its_frame(
    key: ApiKey, version: int, pause_ms: int
) -> None:
    response = RESPONSES[key]()
    body = encode_bytes(encode_response(key, version, response))
    if hasattr(response, "throttle_time_ms"):
        response.throttle_time_ms = pause_ms
    whole = encode_bytes(encode_response_frame(key, version, 77, response))
    assert frame_response(key, version, 77, body, pause_ms) == whole


def test_some_of_them_pause_and_some_versions_cannot_say_so() -> None:
    told = {
        (key, version): PAUSE_MS.to_bytes(4)
        in frame_response(
            key, version, 77, encode_bytes(encode_response(key, version, RESPONSES[key]())), PAUSE_MS
        )
        for key, version in FORWARDED
    }
    assert told[ApiKey.HEARTBEAT, 4]
    assert not told[ApiKey.HEARTBEAT, 0]
    # An error code stands in front of it.
    assert told[ApiKey.OFFSET_DELETE, 0]
