"""Turns framed keys and values into JSON for commands and the console, and JSON into framed values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from mpbroker.registry import framing
from mpbroker.registry.schemas import UNREADABLE, Kind, Schema, SchemaError, Schemas

_KEPT_MAX: Final = 1024

_Decode = Callable[[framing.Framed], bytes]


class Shown(NamedTuple):
    """A value as one line of JSON, its schema, and the name of its type (for JSON Schema, the title)."""

    json: bytes
    schema: Schema
    name: str


class Decoder:
    """Decodes framed keys and values by the schemas that their framing names. Caches schemas and decoders."""

    def __init__(self, schemas: Schemas) -> None:
        self._schema = lru_cache(maxsize=_KEPT_MAX)(schemas.by_id)
        self._avro = lru_cache(maxsize=_KEPT_MAX)(_avro_decode)
        self._title = lru_cache(maxsize=_KEPT_MAX)(_title)

    def shown(
        self, data: bytes | None, headers: Iterable[tuple[str, bytes | None]] = (), *, is_key: bool = False
    ) -> Shown | None:
        """Return a key or value as JSON; None if it is not framed, or its schema is unknown or does not fit.

        Raises RegistryUnavailable, MissingPackage.
        """
        if data is None:
            return None
        try:
            framed = framing.read(data, framing.header_of(headers, is_key=is_key))
            schema = self._schema(framed.schema_id)
            match schema.kind:
                case Kind.AVRO:
                    decode, name = self._avro(schema)
                    return Shown(decode(framed), schema, name)
                case Kind.PROTOBUF:
                    return _protobuf(schema, framed)
                case Kind.JSON:
                    text = data[framed.data_start :]
                    msgspec.json.decode(text)
                    return Shown(msgspec.json.format(text, indent=-1), schema, self._title(schema))
        except UNREADABLE:
            return None


def _avro_decode(schema: Schema) -> tuple[_Decode, str]:
    from mpbroker.registry import avro

    written = avro.parsed(schema)
    read = avro.reader(written)
    return (
        lambda framed: avro.to_json(read(framed.value, framed.data_start)),
        avro.name_of(written),
    )


def _protobuf(schema: Schema, framed: framing.Framed) -> Shown:
    from mpbroker.registry import protobuf

    messages = protobuf.messages_of(schema)
    path, start = framed.path()
    descriptor = messages.at(path)
    message = protobuf.read(descriptor, framed.value[start:])
    return Shown(messages.to_json(message), schema, descriptor.full_name)


def _title(schema: Schema) -> str:
    from mpbroker.registry import json_schema

    return json_schema.name_of(schema)


class Encoder:
    """Encodes JSON with one schema, framed by its id."""

    def __init__(self, schema: Schema, message: str | None = None) -> None:
        """Prepare an encoder. `message` names a Protobuf message; None: the first. Raises SchemaError."""
        if not schema.id:
            raise SchemaError("a schema without an id cannot frame values: look it up by its id")
        self._encode = _ENCODERS[schema.kind](schema, message)

    def encode(self, text: bytes) -> bytes:
        """Encode a value that is given in JSON. Raises ValueError."""
        try:
            return self._encode(text)
        except UNREADABLE as error:
            raise ValueError(str(error) or type(error).__name__) from error


def _avro_encoder(schema: Schema, _message: str | None) -> Callable[[bytes], bytes]:
    from mpbroker.registry import avro

    written = avro.parsed(schema)
    convert, write = avro.Values(written), avro.writer(written)
    prefix = framing.prefix(schema.id)
    return lambda text: write(convert(msgspec.json.decode(text)), prefix)


def _protobuf_encoder(schema: Schema, message: str | None) -> Callable[[bytes], bytes]:
    from mpbroker.registry import protobuf

    messages = protobuf.messages_of(schema)
    descriptor = messages.named(message)
    prefix = framing.prefix(schema.id, messages.path_of(descriptor))
    return lambda text: prefix + protobuf.write(messages.from_json(descriptor, msgspec.json.decode(text)))


def _json_encoder(schema: Schema, _message: str | None) -> Callable[[bytes], bytes]:
    from mpbroker.registry import json_schema

    check = json_schema.checker(schema)
    prefix = framing.prefix(schema.id)

    def encode(text: bytes) -> bytes:
        check(msgspec.json.decode(text))
        return prefix + text

    return encode


_ENCODERS: Final[dict[Kind, Callable[[Schema, str | None], Callable[[bytes], bytes]]]] = {
    Kind.AVRO: _avro_encoder,
    Kind.PROTOBUF: _protobuf_encoder,
    Kind.JSON: _json_encoder,
}
