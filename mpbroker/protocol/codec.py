"""Encodes and decodes the requests, responses and records of the schema.

The decoder or encoder of a message and version is compiled at its first use (about 0.3 ms), and cached. This
module handles bodies only: headers and frames are in headers.py.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from mpbroker.protocol import schema
from mpbroker.protocol.api_keys import valid_versions
from mpbroker.protocol.decoder import Decoder, DecoderInPieces, compile_decoder, compile_decoder_in_pieces
from mpbroker.protocol.encoder import Encoder, EncoderInPieces, compile_encoder, compile_encoder_in_pieces
from mpbroker.protocol.messages import (
    COORDINATOR_KEYS,
    COORDINATOR_VALUES,
    DATAS,
    REQUESTS,
    RESPONSES,
    Message,
)
from mpbroker.protocol.wire import Buffer, UnsupportedVersion

_CLASSES: dict[schema.Kind, dict[int, type[Message]]]
_CLASSES = {
    "request": REQUESTS,
    "response": RESPONSES,
    "coordinator-key": COORDINATOR_KEYS,
    "coordinator-value": COORDINATOR_VALUES,
    "data": DATAS,
}
_request_decoders: dict[tuple[int, int], Decoder] = {}
_request_decoders_in_pieces: dict[tuple[int, int], DecoderInPieces] = {}
_response_decoders: dict[tuple[int, int], Decoder] = {}
_data_decoders: dict[tuple[int, int], Decoder] = {}
_decoders: dict[schema.Kind, dict[tuple[int, int], Decoder]] = {
    "request": _request_decoders,
    "response": _response_decoders,
    "coordinator-key": {},
    "coordinator-value": {},
    "data": _data_decoders,
}
_encoders: dict[tuple[schema.Kind, int, int], Encoder] = {}
_response_encoders_in_pieces: dict[tuple[int, int], EncoderInPieces] = {}
_data_keys = {cls: key for key, cls in DATAS.items()}


def data_key(cls: type[Message]) -> int:
    """Return the API key of a metadata record's class. Raises UnsupportedVersion for another class."""
    key = _data_keys.get(cls)
    if key is None:
        raise UnsupportedVersion(f"{cls.__name__} is not one of the metadata records")
    return key


def _schema_of(kind: schema.Kind, api_key: int, version: int) -> schema.Message:
    message = schema.message_for(kind, api_key)
    if message is None or version not in message.valid:
        versions = "" if message is None else f" (it has {message.valid[0]}-{message.valid[-1]})"
        raise UnsupportedVersion(f"no version {version} of {kind} {api_key}{versions}")
    return message


def _new_decoder(kind: schema.Kind, api_key: int, version: int) -> Decoder:
    message = _schema_of(kind, api_key, version)
    decoder = compile_decoder(message, version, _CLASSES[kind][api_key])
    _decoders[kind][api_key, version] = decoder
    return decoder


def encoder_for(kind: schema.Kind, api_key: int, version: int) -> Encoder:
    """Return a message's encoder. It takes the message and the first segment, which may hold a header.

    Raises UnsupportedVersion.
    """
    encoder = _encoders.get((kind, api_key, version))
    if encoder is None:
        message = _schema_of(kind, api_key, version)
        encoder = compile_encoder(message, version, _CLASSES[kind][api_key])
        _encoders[kind, api_key, version] = encoder
    return encoder


def response_encoder_in_pieces(api_key: int, api_version: int) -> EncoderInPieces:
    """Return a response's encoder, a generator that pauses between pieces. Raises UnsupportedVersion."""
    encoder = _response_encoders_in_pieces.get((api_key, api_version))
    if encoder is None:
        message = _schema_of("response", api_key, api_version)
        encoder = compile_encoder_in_pieces(message, api_version, RESPONSES[api_key])
        _response_encoders_in_pieces[api_key, api_version] = encoder
    return encoder


def decode_request(api_key: int, api_version: int, buf: Buffer, pos: int = 0) -> tuple[Any, int]:
    """Decode a request. Return the request and the position after it.

    Its `records` are views of `buf`, all else is copied. Raises MalformedMessage if the bytes from `pos` on
    are not such a request, and UnsupportedVersion.
    """
    decode = _request_decoders.get((api_key, api_version))
    if decode is None:
        decode = _new_decoder("request", api_key, api_version)
    return decode(buf, pos)


def decode_request_in_pieces(
    api_key: int, api_version: int, buf: Buffer, pos: int = 0
) -> Generator[None, None, tuple[Any, int]]:
    """Decode a request in a generator that pauses between pieces and returns what `decode_request` returns.

    `buf` must not change until the generator ends.
    """
    decode = _request_decoders_in_pieces.get((api_key, api_version))
    if decode is None:
        message = _schema_of("request", api_key, api_version)
        decode = compile_decoder_in_pieces(message, api_version, REQUESTS[api_key])
        _request_decoders_in_pieces[api_key, api_version] = decode
    return decode(buf, pos)


def decode_response(api_key: int, api_version: int, buf: Buffer, pos: int = 0) -> tuple[Any, int]:
    decode = _response_decoders.get((api_key, api_version))
    if decode is None:
        decode = _new_decoder("response", api_key, api_version)
    return decode(buf, pos)


def decode_data(key: int | type[Message], version: int, buf: Buffer, pos: int = 0) -> tuple[Any, int]:
    """Decode a metadata record. `key`: its class or API key. Return the record and the position after it."""
    api_key = key if isinstance(key, int) else data_key(key)
    decode = _data_decoders.get((api_key, version))
    if decode is None:
        decode = _new_decoder("data", api_key, version)
    return decode(buf, pos)


def encode_request(api_key: int, api_version: int, obj: Message) -> list[Buffer]:
    return encoder_for("request", api_key, api_version)(obj, bytearray())


def encode_response(api_key: int, api_version: int, obj: Message) -> list[Buffer]:
    """Encode a response into segments, to be sent one after the other.

    Large records and each RecordsSlice are separate segments and are not copied.
    """
    return encoder_for("response", api_key, api_version)(obj, bytearray())


def encode_data(obj: Message, version: int) -> list[Buffer]:
    return encoder_for("data", data_key(type(obj)), version)(obj, bytearray())


def decode_message(
    kind: schema.Kind, api_key: int, version: int, buf: Buffer, pos: int = 0
) -> tuple[Any, int]:
    """Decode a message of any kind. Return it and the position after it. Raises UnsupportedVersion."""
    decode = _decoders[kind].get((api_key, version)) or _new_decoder(kind, api_key, version)
    return decode(buf, pos)


def encode_bytes(segments: list[Buffer]) -> bytes:
    """Return the segments of an encoded message as one bytes object."""
    return bytes(segments[0]) if len(segments) == 1 else b"".join(segments)


def prepare(api_key: int) -> None:
    """Compile the codec of an API's latest version. Called before a fork, so that no child compiles it."""
    latest = valid_versions(api_key)[-1]
    kinds: tuple[schema.Kind, ...] = ("request", "response")
    for kind in kinds:
        encoder_for(kind, api_key, latest)
        if (api_key, latest) not in _decoders[kind]:
            _new_decoder(kind, api_key, latest)


def prepare_data(cls: type[Message], version: int) -> None:
    """Compile the decoder of a metadata record. Called before a fork, so that no child compiles it."""
    key = data_key(cls)
    if (key, version) not in _decoders["data"]:
        _new_decoder("data", key, version)
