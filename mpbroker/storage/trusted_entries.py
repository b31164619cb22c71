"""Index look-ups that are used only if the log agrees.

An index has no checksum, and a start trusts those of synced segments. So a reader checks the batch that an
entry points to. An `.index` entry with too late a position would hide the records before it; a `.timeindex`
entry could hide records, or let a segment seem older than it is. Entries that the log contradicts are
ignored, and the segment is walked from its beginning.
"""

from __future__ import annotations

import os

from mpbroker.storage import index, scan

BEFORE_ALL = -(1 << 63)
BEHIND_ALL = (1 << 63) - 1
LATEST_TIME = (1 << 63) - 1
NO_TIMESTAMP = -1


def position_before(fd: int, index_fd: int, base: int, offset: int) -> int:
    """Return the position of a batch at or before the offset; `index_fd` may be -1. Raises OSError."""
    if index_fd < 0:
        return 0
    named, position = index.offset_floor(index_fd, base, offset)
    there = scan.find_offset(fd, position, os.fstat(fd).st_size, BEFORE_ALL)
    return position if there is not None and there.base_offset <= named else 0


def time_before(fd: int, index_fd: int, time_fd: int, base: int, timestamp_ms: int) -> tuple[int, int]:
    """Return (timestamp, offset) of the last time index entry at or before `timestamp_ms`.

    The timestamp is the largest up to that offset. Returns (-1, base) without an entry that the log confirms.
    Raises OSError.
    """
    timestamp, offset = index.time_floor(time_fd, base, timestamp_ms)
    if timestamp == NO_TIMESTAMP:
        return timestamp, offset
    position = position_before(fd, index_fd, base, offset)
    batch = scan.find_offset(fd, position, os.fstat(fd).st_size, offset)
    if batch is None or batch.max_timestamp != timestamp:
        return NO_TIMESTAMP, base
    return timestamp, offset
