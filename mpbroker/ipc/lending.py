"""Lending of blocks: a process lends a block of its arena to another process, to pass a message.

The lease ends when the borrower returns the block, or has died and was fenced. `mpbroker/ipc/slots.pxd`
explains how processes pass blocks, `shm/arena.pyx` why a block has a generation.
"""

from __future__ import annotations

from shm.arena import Arena


class Lender:
    """The blocks that one process lends. `owner` is the index of this process, which owns the arena."""

    def __init__(self, arena: Arena, owner: int) -> None:
        self._arena = arena
        self.owner = owner
        self._sizes: dict[int, int] = {}

    @property
    def in_use_bytes(self) -> int:
        return self._arena.in_use_bytes

    def lend(self, data: bytes, borrower: int) -> tuple[int, int]:
        """Lend a block with a copy of `data`; return (block, generation). Raises ArenaFull."""
        lent = self.lend_room(len(data), borrower)
        self.view(lent[0])[:] = data
        return lent

    def lend_room(self, size: int, borrower: int) -> tuple[int, int]:
        """Lend a block of `size` bytes; return (block, generation). Raises ArenaFull.

        Fill the block before you send its descriptor to the borrower.
        """
        block = self._arena.allocate(size)
        self._sizes[block] = size
        return block, self._arena.lend(block, borrower)

    def adopt(self, block: int, size: int) -> None:
        """Record a block of this arena that native code has lent, so that `end` can end the lease."""
        self._sizes[block] = size

    def end(self, block: int, generation: int) -> None:
        """End a lease and free the block. Do nothing if the lease has ended before."""
        if block in self._sizes and self._arena.take_back(block, generation):
            self._arena.free(block, self._sizes.pop(block))

    def reclaim(self, borrower: int) -> None:
        """End all leases of a dead borrower. Call this after the fence (all processes drop its state)."""
        for block in self._arena.lent_to(borrower):
            self.end(block, self._arena.generation(block))

    def view(self, block: int) -> memoryview:
        return self._arena.view(block, self._sizes[block])
