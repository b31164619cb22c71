"""Metrics that clients push (KIP-714), on their way from the handlers to the exporter.

Each handler has a queue in shared memory, which it alone fills and the exporter alone empties:

    0     tail      bytes that handlers of this number have ever put; stored last
    8     dropped   pushes for which the queue had no room
    64    head      bytes that the exporter has ever taken
    128   data      a circle of messages: their length (u32), then a Push (msgpack)

A push that finds no room is dropped and counted. A handler that is killed while it writes has put nothing.
The exporter moves the head before it decodes a push, so that no push can kill two exporters. A queue that is
never used takes no memory.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from shm.word import Words

_LENGTH = struct.Struct("<I")
_TAIL, _DROPPED, _HEAD = 0, 1, 8
_DATA_AT = 128
# Holds several pushes of the greatest size (telemetry.max.bytes).
DATA_BYTES = 4 << 20
BYTES = _DATA_AT + DATA_BYTES
# The most bytes of a push without its compression. Handlers refuse a larger one, and the exporter counts it
# as malformed. Kafka leaves this bound to its plug-ins.
DECOMPRESSED_BYTES_MAX: Final = 16 << 20


class Push(msgspec.Struct, array_like=True):
    """What a client has pushed, and who the client is.

    `metrics` is an OTLP MetricsData (protobuf), compressed with `codec` (records.compression.Codec).
    `interval_ms` is the time until the client is to push again. A `terminating` client does not push again.
    """

    client_instance_id: bytes
    client_id: str
    software_name: str
    software_version: str
    source_address: str
    principal: str
    interval_ms: int
    terminating: bool
    codec: int
    metrics: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Push)


class PushQueue:
    """The queue of one handler, as seen by the handler or by the exporter."""

    def __init__(self, block: memoryview) -> None:
        self._words = Words(block[:_DATA_AT])
        self._data = block[_DATA_AT:]

    @property
    def dropped(self) -> int:
        return self._words.load(_DROPPED)

    def __bool__(self) -> bool:
        return self._words.load(_TAIL) != self._words.load(_HEAD)

    def put(self, push: Push) -> bool:
        """Append a push. Return False if there is no room: the push is dropped and counted. Handler only."""
        message = _encoder.encode(push)
        message = _LENGTH.pack(len(message)) + message
        tail = self._words.load(_TAIL)
        if tail + len(message) - self._words.load(_HEAD) > len(self._data):
            self._words.store(_DROPPED, self.dropped + 1)
            return False
        at = tail % len(self._data)
        first = message[: len(self._data) - at]
        self._data[at : at + len(first)] = first
        self._data[: len(message) - len(first)] = message[len(first) :]
        self._words.store(_TAIL, tail + len(message))
        return True

    def take(self) -> Push | None:
        """Take the oldest push, None if there is none. Exporter only."""
        if not self:
            return None
        head = self._words.load(_HEAD)
        (length,) = _LENGTH.unpack(self._bytes(head, _LENGTH.size))
        message = self._bytes(head + _LENGTH.size, length)
        self._words.store(_HEAD, head + _LENGTH.size + length)
        return _decoder.decode(message)

    def _bytes(self, position: int, length: int) -> bytes:
        at = position % len(self._data)
        first = bytes(self._data[at : at + length])
        return first + bytes(self._data[: length - len(first)])
