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
    data = _encoder.encode(config)
    if len(data) > BYTES - _LENGTH.size:
        raise ValueError(f"the configuration takes {len(data)} bytes, and at most {BYTES - _LENGTH.size} fit")
    return data


def write(block: memoryview, data: bytes) -> None:
    block[_LENGTH.size : _LENGTH.size + len(data)] = data
    block[: _LENGTH.size] = _LENGTH.pack(len(data))


def adopt(block: memoryview, config: BrokerConfig) -> None:
    """Set `config` to the settings in the block.

    All parts of a process hold the one object that it was forked with, so this changes that object, although
    it is frozen for everybody else.
    """
    (length,) = _LENGTH.unpack_from(block)
    now = _decoder.decode(block[_LENGTH.size : _LENGTH.size + length])
    for name in BrokerConfig.__struct_fields__:
        msgspec.structs.force_setattr(config, name, getattr(now, name))
