"""A bulletin: messages in shared memory from one publisher to many readers, who read at their own pace.

A base is a message with the whole state, a delta has changes only. A generation is a base and its deltas.

    0     position    generation << 32 | valid bytes of the generation's half; one release store per message
    4096  half 0      messages: length u32, bytes; the first message is a base
    ...   half 1

Generation g is in half g & 1. A new base begins the next generation in the other half. That half is free as
soon as every live reader has written into its word of `acks` that it reads the current generation. A reader
must count as live before its first read: then it is at most one generation late, even if it comes just after
the publisher's check. A publisher that is killed while it writes has published nothing. Its successor begins
with a new base.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from shm.word import Words

_LENGTH = struct.Struct("<I")
HEADER_BYTES = 4096


class BulletinFull(RuntimeError):
    """A delta does not fit into the rest of the half: publish a base instead."""


class BaseTooLarge(ValueError):
    """A base is larger than a half of the block."""


class BulletinPublisher:
    """The writer of a bulletin. `live_readers()` returns the indices in `acks` of readers that are alive."""

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
        """Return the indices in `acks` of the live readers that have not read the last base yet."""
        return [reader for reader in self.live_readers() if self._acks.load(reader) < self._generation]

    def publish_base(self, payload: bytes) -> None:
        """Publish a base in the other half. Call it only if `can_publish_base()` is true.

        Raises BaseTooLarge if the base is larger than a half.
        """
        if _LENGTH.size + len(payload) > len(self._halves[0]):
            # Check before the generation moves: the next try must not land in the half that is being read.
            raise BaseTooLarge(f"a base of {len(payload)} bytes does not fit into {len(self._halves[0])}")
        self._generation += 1
        self._tail = 0
        self._append(payload)

    def publish_delta(self, payload: bytes) -> None:
        """Publish a delta after the last message.

        Raises BulletinFull if the delta does not fit or this publisher has not published a base yet.
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
    """A reader of a bulletin. `index` is the index of this reader's word in `acks`."""

    def __init__(self, block: memoryview, acks: Words, index: int) -> None:
        self._halves = _halves(block)
        self._position = Words(block[:8])
        self._acks = acks
        self._index = index
        self._generation = 0
        self._read = 0

    def poll(self) -> list[bytes]:
        """Return the messages published since the last call, oldest first.

        If a new base was published, the list begins with the newest base: older messages are left out.
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
