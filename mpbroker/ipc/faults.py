"""Faults that the owner of a test's broker has asked for. A broker without an owner never has any.

A block of the private region, like that of the settings (ipc.settings), with the msgpack of a list of Fault.
The supervisor alone writes it, then orders all processes to read it (process.SETTINGS_CHANGED). A process
forked later reads it when it begins.
"""

from __future__ import annotations

import msgspec

from mpbroker.ipc.settings import content, packed

BYTES = 1 << 20


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


_decoder = msgspec.msgpack.Decoder(list[Fault])


def encode(faults: list[Fault]) -> bytes:
    """Encode faults. Raises ValueError when they do not fit into the block."""
    return packed(faults, "the faults take", BYTES)


def read(block: memoryview) -> list[Fault]:
    data = content(block)
    return _decoder.decode(data) if data else []
