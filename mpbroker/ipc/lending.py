"""Blocks of a process's own arena that it lends for messages, until the borrower returns them or is fenced.

`mpbroker/ipc/slots.pxd` explains how a block travels, `shm/arena.pyx` what its generation is for.
"""

from __future__ import annotations

from shm.arena import Arena


class Lender:
    """The blocks that one process lends. `owner` is the role that owns the arena."""

    def __init__(self, arena: Arena, owner: int) -> None:
        self._arena = arena
        self.owner = owner
        self._sizes: dict[int, int] = {}

    @property
    def in_use_bytes(self) -> int:
        return self._arena.in_use_bytes

    def lend(self, data: bytes, borrower: int) -> tuple[int, int]:
        """Lend a block with these bytes; return (block, generation). Raises ArenaFull."""
        lent = self.lend_room(len(data), borrower)
        self.view(lent[0])[:] = data
        return lent

    def lend_room(self, size: int, borrower: int) -> tuple[int, int]:
        """Lend a block of that size; return (block, generation). Fill it before the borrower gets it.

        Raises ArenaFull.
        """
        block = self._arena.allocate(size)
        self._sizes[block] = size
        return block, self._arena.lend(block, borrower)

    def adopt(self, block: int, size: int) -> None:
        """Record a block of this arena that native code has lent, so that `end` can end its lease."""
        self._sizes[block] = size

    def end(self, block: int, generation: int) -> None:
        """End a lease. A stale descriptor, whose block was reclaimed before, is ignored."""
        if block in self._sizes and self._arena.take_back(block, generation):
            self._arena.free(block, self._sizes.pop(block))

    def reclaim(self, borrower: int) -> None:
        """End all leases of a dead borrower, after a fence."""
        for block in self._arena.lent_to(borrower):
            self.end(block, self._arena.generation(block))

    def view(self, block: int) -> memoryview:
        return self._arena.view(block, self._sizes[block])
