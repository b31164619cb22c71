"""Faults that the owner of a test's broker has asked for. A broker without an owner never has any.

A block of the private region:

    0    length   of what follows, written last
    8    the faults (msgpack of a list of Fault)

The supervisor alone writes it, then orders all processes to read it (process.SETTINGS_CHANGED), as with the
settings (ipc.settings). A process forked later reads it when it begins.
"""

from __future__ import annotations

import struct

import msgspec

BYTES = 1 << 20
_LENGTH = struct.Struct("=Q")


class Fault(msgspec.Struct, frozen=True):
    """A fault: requests of one API wait, and then fail or lose their connection, if so asked.

    `hits`: the path of a file that gets a byte for each request that meets the fault. `error_code`: 0 for
    none. `client_id`: of these clients only; None: of all. `times`: for how many requests; 0: for all.
    """

    hits: str
    api_key: int
    delay_ms: int = 0
    error_code: int = 0
    closes: bool = False
    client_id: str | None = None
    times: int = 0


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Fault])


def encode(faults: list[Fault]) -> bytes:
    """Encode faults. Raises ValueError when they do not fit into the block."""
    data = _encoder.encode(faults)
    if len(data) > BYTES - _LENGTH.size:
        raise ValueError(f"the faults take {len(data)} bytes, and at most {BYTES - _LENGTH.size} fit")
    return data


def write(block: memoryview, data: bytes) -> None:
    block[_LENGTH.size : _LENGTH.size + len(data)] = data
    block[: _LENGTH.size] = _LENGTH.pack(len(data))


def read(block: memoryview) -> list[Fault]:
    (length,) = _LENGTH.unpack_from(block)
    return _decoder.decode(block[_LENGTH.size : _LENGTH.size + length]) if length else []
