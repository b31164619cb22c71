"""The leading word of a running broker, which a test writes in place of the tier."""

from __future__ import annotations

import struct
from pathlib import Path

from mpbroker.ipc.topology import PRIVATE_MAGIC
from shm.region import PAGE_BYTES, Region

WORD = struct.Struct("=Q")
# The header of the region lies in its first pages.
HEADER_BYTES = 4 * PAGE_BYTES


class LeadingWord:
    """The word in the memory that all processes of a broker share; `pid` is that of any of them."""

    def __init__(self, pid: int) -> None:
        self._memory = Path(f"/proc/{pid}/mem")
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, *_ = line.split()
            start = int(span.partition("-")[0], 16)
            if rights == "rw-s" and self._read(start, len(PRIVATE_MAGIC)) == PRIVATE_MAGIC:
                header = memoryview(self._read(start, HEADER_BYTES))
                self._at = start + Region(header, PRIVATE_MAGIC).offset("leading")
                return
        raise LookupError(f"process {pid} has no private region")

    def _read(self, at: int, size: int) -> bytes:
        with self._memory.open("rb", buffering=0) as file:
            file.seek(at)
            return file.read(size)

    def write(self, until_ns: int) -> None:
        with self._memory.open("r+b", buffering=0) as file:
            file.seek(self._at)
            file.write(WORD.pack(until_ns))
