"""Request and response headers, and whole response frames.

Source in Kafka: RequestHeader.json, ResponseHeader.json, ApiMessageType.requestHeaderVersion. The header's
version follows from the API key and version: flexible versions have tagged fields in the header, too (request
header v2, response header v1). The length of client_id has 2 bytes in all versions. A response to ApiVersions
always has header v0, because the client does not know the broker's versions yet (KIP-511).
"""

from __future__ import annotations

from collections.abc import Generator
from functools import cache
from struct import Struct
from struct import error as struct_error
from typing import Any

import msgspec

from mpbroker.protocol.api_keys import FIRST_FLEXIBLE, NEVER, ApiKey, is_flexible
from mpbroker.protocol.codec import decode_response, encoder_for, response_encoder_in_pieces
from mpbroker.protocol.messages import Message
from mpbroker.protocol.schema import FIXED_SIZE, message_for
from mpbroker.protocol.wire import REPLACED, Buffer, MalformedMessage, skip_tags

# api_key, api_version, correlation_id, length of client_id
_REQUEST = Struct(">hhih")
_SIZE = Struct(">i")
# position in a frame: i16 length, then the text
CLIENT_ID_AT = 12
# room for the size, correlation_id
_RESPONSE_V0 = Struct(">4xi")
# the same, and no tagged fields
_RESPONSE_V1 = Struct(">4xix")


# key: the first version whose response has header v1
_FIRST_V1 = FIRST_FLEXIBLE | {int(ApiKey.API_VERSIONS): NEVER}


class RequestHeader(msgspec.Struct, frozen=True, gc=False):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str = ""


def decode_request_header(buf: Buffer, pos: int = 0) -> tuple[RequestHeader, int]:
    """Decode a request's header. Return the header and the position of the body.

    A null client_id reads as "", as in Kafka. The API version may be unsupported. Raises MalformedMessage,
    also for an unknown API key.
    """
    try:
        api_key, api_version, correlation_id, length = _REQUEST.unpack_from(buf, pos)
        pos += _REQUEST.size
        client_id = ""
        if length > 0:
            client_id = str(buf[pos : pos + length], "utf-8", REPLACED)
            pos += length
        flexible_from = FIRST_FLEXIBLE.get(api_key)
        if flexible_from is None:
            raise MalformedMessage(f"request header: no API has key {api_key}")
        if api_version >= flexible_from:
            count = buf[pos]
            pos = skip_tags(buf, pos + 1, count) if count else pos + 1
    except (IndexError, struct_error) as e:
        raise MalformedMessage("request header: cut off") from e
    if pos > len(buf):
        raise MalformedMessage("request header: cut off")
    return RequestHeader(api_key, api_version, correlation_id, client_id), pos


def encode_request_header(header: RequestHeader) -> bytes:
    client_id = header.client_id.encode()
    raw = _REQUEST.pack(header.api_key, header.api_version, header.correlation_id, len(client_id)) + client_id
    return raw + b"\0" if is_flexible(header.api_key, header.api_version) else raw


def _sized(segments: list[Buffer]) -> list[Buffer]:
    """Write the size of a frame into the first bytes of its segments, and return the segments."""
    first = segments[0]
    total = len(first) if len(segments) == 1 else sum(map(len, segments))
    _SIZE.pack_into(first, 0, total - _SIZE.size)
    return segments


def response_header_version(api_key: int, api_version: int) -> int:
    return 1 if api_version >= _FIRST_V1[api_key] else 0


def encode_response_frame(api_key: int, api_version: int, correlation_id: int, body: Message) -> list[Buffer]:
    """Encode a response frame. Return segments to be sent one after the other, with size, header and body."""
    header = _RESPONSE_V1 if api_version >= _FIRST_V1[api_key] else _RESPONSE_V0
    return _sized(encoder_for("response", api_key, api_version)(body, bytearray(header.pack(correlation_id))))


def encode_response_frame_in_pieces(
    api_key: int, api_version: int, correlation_id: int, body: Message
) -> Generator[None, None, list[Buffer]]:
    """Encode a response frame in a generator, which pauses after each piece and returns the segments.

    `body` must not change until the generator ends.
    """
    header = _RESPONSE_V1 if api_version >= _FIRST_V1[api_key] else _RESPONSE_V0
    encode = response_encoder_in_pieces(api_key, api_version)
    return _sized((yield from encode(body, bytearray(header.pack(correlation_id)))))


@cache
def throttle_time_at(api_key: int, api_version: int) -> int | None:
    """Return the position of `throttle_time_ms` in the body of a response.

    Return None if the response lacks the field, or if a field before it has no fixed size.
    """
    message = message_for("response", api_key)
    assert message is not None, f"no API has key {api_key}"
    at = 0
    for field in message.at(api_version)[0]:
        if field.name == "throttle_time_ms":
            return at
        if field.is_array or field.fixed_format is None:
            return None
        at += FIXED_SIZE[field.fixed_format]
    return None


def frame_response(
    api_key: int, api_version: int, correlation_id: int, body: bytes, throttle_time_ms: int = 0
) -> bytearray:
    """Return a frame of size, header and encoded `body`; set a non-zero `throttle_time_ms` in the body."""
    header = _RESPONSE_V1 if api_version >= _FIRST_V1[api_key] else _RESPONSE_V0
    frame = bytearray(header.pack(correlation_id)) + body
    if throttle_time_ms and (at := throttle_time_at(api_key, api_version)) is not None:
        _SIZE.pack_into(frame, header.size + at, throttle_time_ms)
    _SIZE.pack_into(frame, 0, len(frame) - _SIZE.size)
    return frame


def encode_request_frame(header: RequestHeader, body: Message) -> list[Buffer]:
    first = bytearray(_SIZE.size) + encode_request_header(header)
    return _sized(encoder_for("request", header.api_key, header.api_version)(body, first))


def decode_response_frame(api_key: int, api_version: int, frame: Buffer) -> tuple[int, Any]:
    """Decode a response frame that is given without its size. Return (correlation_id, response).

    Raises MalformedMessage, also if the response does not end where the frame ends.
    """
    try:
        (correlation_id,) = _SIZE.unpack_from(frame)
        pos = _SIZE.size
        if response_header_version(api_key, api_version):
            count = frame[pos]
            pos = skip_tags(frame, pos + 1, count) if count else pos + 1
    except (IndexError, struct_error) as e:
        raise MalformedMessage(f"response header: {e}") from e
    try:
        return correlation_id, _decode_whole(api_key, api_version, frame, pos)
    except MalformedMessage:
        # A broker that lacks this version of ApiVersions answers in version 0, whatever was asked (KIP-511).
        if api_key != ApiKey.API_VERSIONS or api_version == 0:
            raise
        return correlation_id, _decode_whole(api_key, 0, frame, pos)


def _decode_whole(api_key: int, api_version: int, frame: Buffer, pos: int) -> Any:
    body, end = decode_response(api_key, api_version, frame, pos)
    if end != len(frame):
        raise MalformedMessage(f"response {api_key} v{api_version}: {len(frame) - end} bytes too many")
    return body
