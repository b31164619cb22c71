"""Windows of a remote segment: runs of whole batches, at most about 16 MiB, downloaded as one. Sans-I/O.

A segment is cut at entries of its offset index, always at the same ones. A segment without entries is one
window; so is what lies between two entries that are further apart. An entry has the last offset of the batch
at its position, so a window's first offset is known only within that batch until somebody has read it there
(`SegmentWindows.learn`). A window's offsets end where those of the next one begin.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from operator import lt
from typing import Final, NamedTuple

from mpbroker.storage.transaction_index import AbortedTransaction

WINDOW_BYTES: Final = 16 << 20
_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")


class ByteRange(NamedTuple):
    """The bytes [position, end) of a segment."""

    position: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.position


class SegmentWindows:
    """The windows of a segment with offsets [base, end) and `size` bytes, numbered from 0.

    `offset_index` and `time_index` are the segment's. Entries that do not ascend are as good as none.
    """

    def __init__(
        self, base: int, end: int, size: int, offset_index: bytes, time_index: bytes,
        window_bytes: int | None = None,
    ) -> None:  # fmt: skip
        self.base = base
        self.end = end
        self._time_index = time_index
        self._offsets, self._positions = _columns(offset_index, size)
        self._starts = [0]
        # The lowest and the highest offset that may be a window's first.
        self._least, self._most = [base], [base]
        for entry in self._cuts(size, window_bytes or WINDOW_BYTES):
            self._starts.append(self._positions[entry])
            self._least.append(base + (self._offsets[entry - 1] if entry else 0) + 1)
            self._most.append(base + self._offsets[entry])
        self._stops = [*self._starts[1:], size]

    def _cuts(self, size: int, window_bytes: int) -> Iterator[int]:
        """Yield the index entries at which windows begin, but for the first one."""
        start = 0
        while size - start > window_bytes:
            entry = bisect_right(self._positions, start + window_bytes) - 1
            if entry < 0 or self._positions[entry] <= start:
                entry = bisect_right(self._positions, start)
                if entry == len(self._positions):
                    return
            yield entry
            start = self._positions[entry]

    @property
    def memory_bytes(self) -> int:
        return len(self._time_index) + 8 * len(self._offsets)

    def __len__(self) -> int:
        return len(self._starts)

    def byte_range(self, number: int) -> ByteRange:
        return ByteRange(self._starts[number], self._stops[number])

    def find(self, offset: int) -> int:
        """Return the number of the window of an offset; see `unsure`."""
        return max(bisect_right(self._least, offset) - 1, 0)

    def unsure(self, offset: int) -> int | None:
        """Return the window whose first offset must be learned, to know the window of an offset; or None."""
        number = self.find(offset)
        return number if offset < self._most[number] else None

    def first(self, number: int) -> int | None:
        """Return the first offset of a window; None if it is not known."""
        return self._least[number] if self._least[number] == self._most[number] else None

    def learn(self, number: int, first: int) -> None:
        """Note where the offsets of a window begin."""
        if number < len(self):
            self._least[number] = self._most[number] = first

    def offset_of_time(self, timestamp_ms: int) -> int:
        """Return an offset before which all records of the segment are earlier than a time."""
        entries = range(len(self._time_index) // _TIME_ENTRY.size)
        entry = bisect_left(entries, timestamp_ms, key=lambda place: self._time(place)[0]) - 1
        return self.base if entry < 0 else self.base + self._time(entry)[1]

    def _time(self, entry: int) -> tuple[int, int]:
        timestamp_ms, relative = _TIME_ENTRY.unpack_from(self._time_index, entry * _TIME_ENTRY.size)
        return timestamp_ms, relative

    # ---- the indexes of a window's files

    def offset_index(self, number: int, base: int) -> bytes:
        """Return a window's offset index, for a file whose base offset is `base`."""
        start, stop = self.byte_range(number)
        entries = range(bisect_right(self._positions, start), bisect_left(self._positions, stop))
        moved = self.base - base
        return b"".join(
            _OFFSET_ENTRY.pack(self._offsets[entry] + moved, self._positions[entry] - start)
            for entry in entries
        )

    def time_index(self, base: int, end: int) -> bytes:
        """Return a window's time index: the entries of offsets [base, end), for a file of that base."""
        entries = range(len(self._time_index) // _TIME_ENTRY.size)
        first, last = (
            bisect_left(entries, offset - self.base, key=lambda place: self._time(place)[1])
            for offset in (base, end)
        )
        moved = self.base - base
        return b"".join(
            _TIME_ENTRY.pack(timestamp_ms, relative + moved)
            for timestamp_ms, relative in map(self._time, entries[first:last])
        )


def _columns(offset_index: bytes, size: int) -> tuple[array[int], array[int]]:
    """Return the relative offsets and the positions of an offset index; empty ones if they do not ascend."""
    numbers = array("i", offset_index[: len(offset_index) // _OFFSET_ENTRY.size * _OFFSET_ENTRY.size])
    numbers.byteswap()
    offsets, positions = numbers[0::2], numbers[1::2]
    for column in offsets, positions:
        if not all(map(lt, column, column[1:])):
            return array("i"), array("i")
    if positions and not (positions[0] > 0 and positions[-1] < size):
        return array("i"), array("i")
    return offsets, positions


def aborted_of_window(
    indexes: Iterable[Iterable[AbortedTransaction]], base: int, end: int
) -> Iterator[AbortedTransaction]:
    """Yield the aborted transactions that may have records in [base, end), in the order of their markers.

    `indexes` are those of the window's segment and of the segments after it. They are read no further than
    to a marker at which no transaction with an earlier record was open.
    """
    for index in indexes:
        for entry in index:
            if entry.last_offset >= base and entry.first_offset < end:
                yield entry
            if entry.last_stable_offset >= end:
                return
