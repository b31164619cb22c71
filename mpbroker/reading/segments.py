"""Finds which bytes of a partition's segment files hold a range of offsets, and where to cut such a range.

Segments are created and deleted, and a new file may get the name and even the inode number of a deleted one.
So a position is looked up in an open file, with the offset index and a short scan, and is used only until the
file is closed. Only offsets are kept for longer (`SegmentRange`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from mpbroker.reading.errors import CorruptLog
from mpbroker.records.errors import CorruptBatch
from mpbroker.storage.index import offset_floor
from mpbroker.storage.names import INDEX_SUFFIX, LOG_SUFFIX, segment_name
from mpbroker.storage.reader import Bound, SegmentGone
from mpbroker.storage.scan import batches, find_offset
from mpbroker.storage.segments import segments_of
from mpbroker.storage.trusted_entries import position_before

_LARGEST_RELATIVE_OFFSET = (1 << 31) - 1
_LISTINGS = 3


class SegmentRange(NamedTuple):
    """Offsets [start, end) of the segment `base`. Compaction may have removed all of their records."""

    base: int
    start: int
    end: int


class Piece(NamedTuple):
    """Whole batches of an open segment file `fd`, in [position, end_position)."""

    base: int
    fd: int
    position: int
    end_position: int


def _is_in_place(directory: Path, base: int, fd: int) -> bool:
    """Return whether `fd` is still the segment's log file, which may have been deleted or replaced."""
    try:
        return os.path.samestat(os.fstat(fd), (directory / segment_name(base)).stat())
    except FileNotFoundError:
        return False


@contextmanager
def opened(directory: Path, base: int, suffix: str = LOG_SUFFIX) -> Iterator[int]:
    """Open a file of the segment `base` and yield the descriptor. Raises SegmentGone, OSError."""
    path = directory / segment_name(base, suffix)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise SegmentGone(f"{path} was deleted") from error
    try:
        yield fd
    finally:
        os.close(fd)


def position_by_offset(directory: Path, base: int, fd: int, offset: int) -> int:
    """Return the position of a batch at or before the offset: the last indexed position, or 0 without one.

    `fd` is the segment's open log file.
    """
    return _indexed(directory, base, fd, lambda index_fd: position_before(fd, index_fd, base, offset))


def cut_at(piece: Piece, directory: Path, position: int) -> int:
    """Return the end of the last batch that ends at or before the position."""
    base, fd = piece.base, piece.fd
    start = _indexed(directory, base, fd, lambda index_fd: _last_indexed(index_fd, base, position))
    whole = batches(fd, start, position)
    return whole[-1].position + whole[-1].length if whole else start


def _indexed(directory: Path, base: int, fd: int, find: Callable[[int], int]) -> int:
    """Return `find(index_fd)` for the segment's index; 0 if the index may belong to another log file."""
    try:
        with opened(directory, base, INDEX_SUFFIX) as index_fd:
            found = find(index_fd)
    except SegmentGone:
        return 0
    return found if _is_in_place(directory, base, fd) else 0


def _last_indexed(index_fd: int, base: int, position: int) -> int:
    """Return the largest position in the index that is at most `position`.

    An index can be searched only by offset. So this bisects over offsets: positions rise with offsets.
    """
    low, high, found = 0, _LARGEST_RELATIVE_OFFSET, 0
    while low <= high:
        middle = (low + high) // 2
        at = offset_floor(index_fd, base, base + middle)[1]
        if at <= position:
            found, low = at, middle + 1
        else:
            high = middle - 1
    return found


def segment_ranges(directory: Path, bound: Bound, start: int, end: int) -> tuple[int, list[SegmentRange]]:
    """Return the base offset of the partition's first segment, and the parts of [start, end) by segment.

    `end` is at most the bound's offset. Raises SegmentGone, OSError.
    """
    bases = [base for base in segments_of(directory) if base <= bound.segment_base]
    if not bases:
        raise SegmentGone(f"{directory} has no segment at or below {bound.segment_base}")
    found = []
    # A segment may be listed together with those that it replaces.
    for base, following in zip(bases, [*bases[1:], end], strict=True):
        one = SegmentRange(base, max(start, base), min(end, following))
        if one.start < one.end:
            found.append(one)
    return bases[0], found


def pieces(directory: Path, bound: Bound, start: int, end: int) -> Iterator[Piece]:
    """Yield a piece of each segment, with the batches that have the offsets [start, end).

    The file of a piece is closed when the next piece is requested. Raises SegmentGone, CorruptLog, OSError.
    """
    for left in reversed(range(_LISTINGS)):
        try:
            for part in segment_ranges(directory, bound, start, end)[1]:
                start = part.start
                with opened_piece(directory, part) as piece:
                    yield piece
                start = part.end
        except SegmentGone:
            # Retention took it after it was listed, or the cleaner merged it into another one.
            if not left:
                raise
        else:
            return


@contextmanager
def opened_piece(directory: Path, part: SegmentRange) -> Iterator[Piece]:
    """Open the segment, and yield the batches that have the offsets of the part.

    The end position is looked up by offset. A published bound has a position, too, but that position is wrong
    if the cleaner has replaced the file meanwhile. Raises SegmentGone, CorruptLog, OSError.
    """
    with opened(directory, part.base) as fd:
        yield _piece(directory, part, fd)


def _piece(directory: Path, part: SegmentRange, fd: int) -> Piece:
    base, start, end = part
    size = os.fstat(fd).st_size
    position = 0
    path = directory / segment_name(base)
    if start > base:
        try:
            first = find_offset(fd, position_by_offset(directory, base, fd, start), size, start, strict=True)
        except CorruptBatch as error:
            raise CorruptLog(f"{path} is damaged at position {error.position}: {error.reason}") from error
        position = size if first is None else first.position
    near_end = max(position, position_by_offset(directory, base, fd, end - 1))
    last = find_offset(fd, near_end, size, end - 1)
    if last is not None and (last.base_offset >= end or last.position + last.length <= size):
        # A batch that the end cuts through is included. Batches after it may not be committed.
        end_position = last.position + (last.length if last.base_offset < end else 0)
        return Piece(base, fd, position, max(position, end_position))
    # List again: the file that was opened may have been followed and cleaned after it was listed.
    if segments_of(directory)[-1:] == [base]:
        raise CorruptLog(
            f"{path} has {size} bytes and ends before offset {end}, up to which it "
            "was published as readable: it is damaged, or an older copy of the log"
        )
    # Compaction took the last records of a segment that others follow.
    return Piece(base, fd, position, size)


def windows(directory: Path, piece: Piece, window_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (position, end) of consecutive whole batches, up to `window_bytes` or one larger batch."""
    position = piece.position
    while position < piece.end_position:
        end = min(position + window_bytes, piece.end_position)
        if end < piece.end_position:
            end = cut_at(piece, directory, end)
            if end <= position:
                batch = find_offset(piece.fd, position, piece.end_position, piece.base)
                end = position + batch.length if batch else piece.end_position
        yield position, end
        position = end


def weight(found: Iterable[Piece]) -> int:
    """Return the number of bytes in all pieces."""
    return sum(piece.end_position - piece.position for piece in found)


def cut_offsets(
    directory: Path, found: Iterable[Piece], total: int, parts: int, start: int, end: int
) -> list[int]:
    """Return at most `parts` - 1 base offsets of batches that cut the pieces into parts of about equal bytes.

    The offsets are between `start` and `end`, exclusive. `total` is the `weight` of the pieces.
    """
    targets = [total * number // parts for number in range(1, parts)]
    cuts = [start]
    seen = 0
    for piece in found:
        length = piece.end_position - piece.position
        while targets and targets[0] < seen + length:
            at = cut_at(piece, directory, piece.position + targets.pop(0) - seen)
            batch = find_offset(piece.fd, max(piece.position, at), piece.end_position, piece.base)
            if batch is not None and cuts[-1] < batch.base_offset < end:
                cuts.append(batch.base_offset)
        seen += length
    return cuts[1:]
