"""The current configuration, for processes that were forked with an earlier one.

A block of the private region, which no other process can map: it holds passwords.

    0    length   of what follows, written last
    8    the whole configuration (msgpack of BrokerConfig)

The supervisor alone writes it, then orders all to read it (process.SETTINGS_CHANGED). It writes again
only when all that were ordered have acknowledged or died. A process forked meanwhile has the same
configuration already.
"""

from __future__ import annotations

import struct

import msgspec

from mpbroker.config.broker import BrokerConfig

BYTES = 64 << 20
_LENGTH = struct.Struct("=Q")

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(BrokerConfig)


def encode(config: BrokerConfig) -> bytes:
    """Encode a configuration. Raises ValueError when it does not fit into the block."""
    return packed(config, "the configuration takes", BYTES)


def packed(value: object, what: str, block_bytes: int) -> bytes:
    """Encode a value. Raises ValueError, which begins with `what`, when it does not fit into its block."""
    data, most = _encoder.encode(value), block_bytes - _LENGTH.size
    if len(data) > most:
        raise ValueError(f"{what} {len(data)} bytes, and at most {most} fit")
    return data


def write(block: memoryview, data: bytes) -> None:
    block[_LENGTH.size : _LENGTH.size + len(data)] = data
    block[: _LENGTH.size] = _LENGTH.pack(len(data))


def content(block: memoryview) -> memoryview:
    (length,) = _LENGTH.unpack_from(block)
    return block[_LENGTH.size : _LENGTH.size + length]


def adopt(block: memoryview, config: BrokerConfig) -> None:
    """Set `config` to the settings in the block.

    All parts of a process hold the one object that it was forked with, so this changes that object, although
    it is frozen for everybody else.
    """
    now = _decoder.decode(content(block))
    for name in BrokerConfig.__struct_fields__:
        msgspec.structs.force_setattr(config, name, getattr(now, name))
