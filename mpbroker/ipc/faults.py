"""Faults that a test injects into its broker (`mpbroker.testing`). No other broker can have faults.

The faults are in a block of the private region, like the settings (ipc.settings), as the msgpack of a list of
Fault. The supervisor alone writes the block, then orders all processes to read it (process.SETTINGS_CHANGED).
A process that is forked later reads the block when it starts.
"""

from __future__ import annotations

import msgspec

from mpbroker.ipc.settings import content, packed

BYTES = 1 << 20


class Fault(msgspec.Struct, frozen=True):
    """A fault of one API: each request waits, then fails with `error_code` or is disconnected (`closes`).

    `error_code` 0 means no error. The fault applies only to clients with the id `client_id` (None: to all),
    and only to the first `times` such requests (0: to all). The file `hits` gets a byte for each of them.
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
    """Encode faults. Raises ValueError if they do not fit into the block."""
    return packed(faults, "the faults take", BYTES)


def read(block: memoryview) -> list[Fault]:
    data = content(block)
    return _decoder.decode(data) if data else []
