"""A broker's memory with the test in the place of processor, log process and coordinator."""

from __future__ import annotations

import itertools
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mpbroker.ipc import slots, topology
from mpbroker.ipc.slots import SlotKind
from mpbroker.ipc.topology import LOG, SharedMemory, Sizes

PROCESSOR = topology.processor(0)
HANDLER = topology.handler(0)
ROOM_FOR_ANSWER = 2048


@contextmanager
def shared_memory() -> Iterator[SharedMemory]:
    sizes = Sizes(
        partition_slots=64,
        request_limit_bytes=64 << 20,
        reply_limit_bytes=64 << 20,
        arena_extent_bytes=256 << 20,
    )
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        memory = SharedMemory(Path(directory) / "public", sizes)
        try:
            yield memory
        finally:
            memory.close()


class ProcessorEnd:
    """What a processor does for its connections, without sockets."""

    def __init__(self, memory: SharedMemory, index: int = PROCESSOR, handler: int = HANDLER) -> None:
        self.index = index
        self.arena = memory.arena(index)
        self.to_handler = memory.ring(index, handler)
        self.from_handler = memory.ring(handler, index)
        self.from_log = memory.ring(LOG, index)
        self.handler_bell = memory.doorbell(handler)
        self._request = itertools.count(1)

    def place(self, frame: bytes, room: int = ROOM_FOR_ANSWER) -> tuple[int, int]:
        """(block, generation) of a frame in this processor's arena."""
        block = self.arena.allocate(len(frame) + room)
        self.arena.view(block, len(frame))[:] = frame
        return block, self.arena.lend(block, HANDLER)

    def request_slot(self, frame: bytes, *, connection: int = 7, room: int = ROOM_FOR_ANSWER) -> bytes:
        api_key, version, correlation, client = struct.unpack_from(">hhih", frame, 4)
        body = 14 + max(client, 0)
        if is_flexible_header(api_key, version):
            body += 1
        block, generation = self.place(frame, room)
        return slots.pack_request(
            SlotKind.REQUEST, self.index, 3, connection, block, generation, len(frame), body, api_key, version,
            correlation, time.monotonic_ns(), 0, next(self._request),
        )

    def send(self, frame: bytes, *, connection: int = 7, room: int = ROOM_FOR_ANSWER) -> bytes:
        slot = self.request_slot(frame, connection=connection, room=room)
        assert self.to_handler.push(slot)
        self.handler_bell.ring()
        return slot


_FIRST_FLEXIBLE = {0: 9, 1: 12, 2: 6, 3: 9, 10: 3, 18: 3, 19: 5, 20: 4, 22: 2, 32: 4, 60: 0}


def is_flexible_header(api_key: int, version: int) -> bool:
    return version >= _FIRST_FLEXIBLE.get(api_key, 1 << 15)
