"""A one-to-many log of small messages in shared memory: immutable bases, deltas, readers at their own pace.

    0     position    generation << 32 | bytes valid in its half; one release store per message
    4096  half 0      messages: length u32, bytes; the first is a base
    ...   half 1

Generation g lives in half g & 1. A new base opens the next generation in the other half. That half is free as
soon as every live reader has written in its word of `acks` that it follows the current generation. A reader
must count as live before its first read: if it comes later than the publisher's check it lags by one
generation, never by two. A publisher killed while writing has published nothing; its successor begins with a
base of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from shm.word import Words

_LENGTH = struct.Struct("<I")
HEADER_BYTES = 4096


class BulletinFull(RuntimeError):
    """A delta does not fit after the others: publish a base instead."""


class BaseTooLarge(ValueError):
    """A base is larger than a half of the block."""


class BulletinPublisher:
    """The writer of a bulletin. `live_readers()` returns the indices in `acks` of the living readers."""

    def __init__(self, block: memoryview, acks: Words, live_readers: Callable[[], list[int]]) -> None:
        self._halves = _halves(block)
        self._position = Words(block[:8])
        self._acks = acks
        self.live_readers = live_readers
        self._generation = self._position.load(0) >> 32
        self._tail = 0

    def can_publish_base(self) -> bool:
        """Return whether no reader uses the half that a new base would overwrite."""
        return not self.lagging()

    def lagging(self) -> list[int]:
        """Return the live readers that do not follow the last base yet."""
        return [reader for reader in self.live_readers() if self._acks.load(reader) < self._generation]

    def publish_base(self, payload: bytes) -> None:
        """Publish a base in the other half. Call it only if `can_publish_base()` is true.

        Raises BaseTooLarge when no half can hold it.
        """
        if _LENGTH.size + len(payload) > len(self._halves[0]):
            # Check before the generation moves: the next try must not land in the half that is being read.
            raise BaseTooLarge(f"a base of {len(payload)} bytes does not fit into {len(self._halves[0])}")
        self._generation += 1
        self._tail = 0
        self._append(payload)

    def publish_delta(self, payload: bytes) -> None:
        """Publish a delta after the last message.

        Raises BulletinFull if the delta does not fit, or before this publisher's first base: readers
        may still be reading its predecessor's messages.
        """
        if self._tail == 0:
            raise BulletinFull("no base has been published yet")
        if self._tail + _LENGTH.size + len(payload) > len(self._halves[0]):
            raise BulletinFull(f"{len(payload)} bytes do not fit after {self._tail}")
        self._append(payload)

    def _append(self, payload: bytes) -> None:
        half = self._halves[self._generation & 1]
        message = _LENGTH.pack(len(payload)) + payload
        half[self._tail : self._tail + len(message)] = message
        self._tail += len(message)
        self._position.store(0, self._generation << 32 | self._tail)


class BulletinReader:
    """A follower of the publisher; `index` is this reader's word in `acks`."""

    def __init__(self, block: memoryview, acks: Words, index: int) -> None:
        self._halves = _halves(block)
        self._position = Words(block[:8])
        self._acks = acks
        self._index = index
        self._generation = 0
        self._read = 0

    def poll(self) -> list[bytes]:
        """Return the messages published since the last call, oldest first.

        If the list has a base, the base is its first message.
        """
        position = self._position.load(0)
        generation, tail = position >> 32, position & 0xFFFFFFFF
        if generation != self._generation:
            self._generation, self._read = generation, 0
        elif tail == self._read:
            return []
        half = self._halves[generation & 1]
        news = []
        while self._read < tail:
            (length,) = _LENGTH.unpack_from(half, self._read)
            start = self._read + _LENGTH.size
            news.append(bytes(half[start : start + length]))
            self._read = start + length
        # Only now may the publisher reuse the other half. A base that came meanwhile is for the next poll.
        self._acks.store(self._index, generation)
        return news


def _halves(block: memoryview) -> tuple[memoryview, memoryview]:
    size = (len(block) - HEADER_BYTES) // 2
    return block[HEADER_BYTES : HEADER_BYTES + size], block[HEADER_BYTES + size : HEADER_BYTES + 2 * size]
