"""The current configuration in shared memory, for processes that were forked with an earlier configuration.

    0    length   bytes of the configuration, written last
    8    the whole configuration (msgpack of BrokerConfig)

The block is in the private region, which processes outside the broker cannot map, because it has passwords.
The supervisor alone writes the block, then orders all processes to read it (process.SETTINGS_CHANGED). It
writes the block again only when each of these processes has acknowledged the order or died. A process that is
forked meanwhile already has the new configuration.
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
    """Encode a configuration. Raises ValueError if it does not fit into the block."""
    return packed(config, "the configuration takes", BYTES)


def packed(value: object, what: str, block_bytes: int) -> bytes:
    """Encode a value. Raises ValueError, with a text that begins with `what`, if the value is too large."""
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
    """Change all fields of `config` to the settings in the block.

    All parts of a process share the one object that the process was forked with. So this function changes
    the object, although its class is frozen.
    """
    now = _decoder.decode(content(block))
    for name in BrokerConfig.__struct_fields__:
        msgspec.structs.force_setattr(config, name, getattr(now, name))
