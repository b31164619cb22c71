"""Finds which bytes of a partition's segment files hold a range of offsets, and where it may be cut.

Positions are looked up for each call, by the offset index and a short scan: segments come and go.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from mpbroker.log.format.index import offset_floor
from mpbroker.log.format.names import INDEX_SUFFIX, LOG_SUFFIX, parse_segment, segment_name
from mpbroker.log.format.scan import batches, find_offset
from mpbroker.log.read.reader import Bound, SegmentGone
from mpbroker.reading.errors import CorruptLog

_LARGEST_RELATIVE_OFFSET = (1 << 31) - 1
_LISTINGS = 3


class Piece(NamedTuple):
    """Whole batches of one segment file. `inode` tells it from a file that the cleaner puts in its place."""

    base: int
    position: int
    end_position: int
    inode: int


def segment_bases(directory: Path) -> list[int]:
    """Return the base offsets of the segments that are there, ascending. Raises OSError."""
    found = (parse_segment(name, LOG_SUFFIX) for name in os.listdir(directory))  # noqa: PTH208
    return sorted(base for base in found if base is not None)


def is_in_place(directory: Path, base: int, inode: int) -> bool:
    """Return whether the segment's log file still has that inode; only then its index describes it."""
    try:
        return (directory / segment_name(base)).stat().st_ino == inode
    except FileNotFoundError:
        return False


@contextmanager
def opened(directory: Path, base: int, suffix: str = LOG_SUFFIX, inode: int | None = None) -> Iterator[int]:
    """Open a segment's file, with `inode` only that very one, and yield the descriptor.

    Raises SegmentGone, OSError.
    """
    path = directory / segment_name(base, suffix)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise SegmentGone(f"{path} is gone") from error
    try:
        if inode is not None and os.fstat(fd).st_ino != inode:
            raise SegmentGone(f"{path} is another file now")
        yield fd
    finally:
        os.close(fd)


def position_by_offset(directory: Path, base: int, offset: int) -> int:
    """Return the position of a batch at or before the offset: the one that the index knows, else 0."""
    try:
        with opened(directory, base, INDEX_SUFFIX) as fd:
            return offset_floor(fd, base, offset)[1]
    except SegmentGone:
        return 0


def cut_at(directory: Path, base: int, fd: int, position: int) -> int:
    """Return the last end of a batch at or before the position."""
    start = _indexed_before(directory, base, position)
    if not is_in_place(directory, base, os.fstat(fd).st_ino):
        start = 0
    whole = batches(fd, start, position)
    return whole[-1].position + whole[-1].length if whole else start


def _indexed_before(directory: Path, base: int, position: int) -> int:
    """Return the last indexed position at or before this one.

    Bisects offsets: entries that are sorted by offset are sorted by position too.
    """
    try:
        with opened(directory, base, INDEX_SUFFIX) as fd:
            low, high, found = 0, _LARGEST_RELATIVE_OFFSET, 0
            while low <= high:
                middle = (low + high) // 2
                at = offset_floor(fd, base, base + middle)[1]
                if at <= position:
                    found, low = at, middle + 1
                else:
                    high = middle - 1
            return found
    except SegmentGone:
        return 0


def pieces(directory: Path, bound: Bound, start: int, end: int) -> tuple[int, list[Piece]]:
    """Return the first offset that the files can have, and the bytes of [start, end), none beyond the bound.

    A file is read up to an offset and not up to the bound's position: the cleaner may have replaced the file
    since the bound was published. `end` is at most the bound's offset. Raises SegmentGone, CorruptLog,
    OSError.
    """
    for _ in range(_LISTINGS - 1):
        try:
            return _pieces(directory, bound, start, end)
        except SegmentGone:
            # Retention took it after it was listed, or the cleaner replaced it.
            continue
    return _pieces(directory, bound, start, end)


def _pieces(directory: Path, bound: Bound, start: int, end: int) -> tuple[int, list[Piece]]:
    listed = segment_bases(directory)
    bases = [base for base in listed if base <= bound.segment_base]
    if not bases:
        raise SegmentGone(f"{directory} has no segment at or below {bound.segment_base}")
    found = []
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        if base < end and (following is None or following > start):
            with opened(directory, base) as fd:
                # A segment that takes the place of others may be listed beside those that it replaces.
                until = end if following is None else min(end, following)
                found.append(_piece(directory, base, fd, start, until, is_last=base == listed[-1]))
    for piece in found:
        if not is_in_place(directory, piece.base, piece.inode):
            raise SegmentGone(f"{directory / segment_name(piece.base)} is another file now")
    return bases[0], [piece for piece in found if piece.end_position > piece.position]


def _piece(directory: Path, base: int, fd: int, start: int, end: int, *, is_last: bool) -> Piece:
    status = os.fstat(fd)
    size = status.st_size
    position = 0
    if start > base:
        first = find_offset(fd, position_by_offset(directory, base, start), size, start)
        position = size if first is None else first.position
    near_end = max(position, position_by_offset(directory, base, end - 1))
    last = find_offset(fd, near_end, size, end - 1)
    is_there = last is not None and (last.base_offset >= end or last.position + last.length <= size)
    if is_last and not is_there:
        raise CorruptLog(
            f"{directory / segment_name(base)} has {size} bytes and ends before offset {end}, up to which it "
            "was published as readable: it is damaged, or an older copy of the log"
        )
    if last is not None and is_there:
        # A batch that the end cuts through is included. Batches after it may not be committed.
        behind = last.position + (last.length if last.base_offset < end else 0)
        return Piece(base, position, max(position, behind), status.st_ino)
    # Compaction took the last records of a segment that others follow.
    return Piece(base, position, size, status.st_ino)


def windows(directory: Path, piece: Piece, fd: int, window_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (position, end) of parts of whole batches, no longer than a window unless a single batch is."""
    position = piece.position
    while position < piece.end_position:
        end = min(position + window_bytes, piece.end_position)
        if end < piece.end_position:
            end = cut_at(directory, piece.base, fd, end)
            if end <= position:
                batch = find_offset(fd, position, piece.end_position, piece.base)
                end = position + batch.length if batch else piece.end_position
        yield position, end
        position = end


def cut_offsets(directory: Path, found: Sequence[Piece], parts: int, start: int, end: int) -> list[int]:
    """Return offsets between start and end that cut the pieces at batches into parts of about equal bytes."""
    total = sum(piece.end_position - piece.position for piece in found)
    cuts: list[int] = []
    for number in range(1, parts):
        rest = total * number // parts
        for piece in found:
            if rest < piece.end_position - piece.position:
                offset = _offset_near(directory, piece, piece.position + rest)
                if offset is not None and max([start, *cuts]) < offset < end:
                    cuts.append(offset)
                break
            rest -= piece.end_position - piece.position
    return cuts


def _offset_near(directory: Path, piece: Piece, position: int) -> int | None:
    with opened(directory, piece.base) as fd:
        at = max(piece.position, cut_at(directory, piece.base, fd, position))
        batch = find_offset(fd, at, piece.end_position, piece.base)
    return None if batch is None else batch.base_offset
