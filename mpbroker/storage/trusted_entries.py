"""Index look-ups that are used only if the log agrees.

An index has no checksum, and a start does not check the indexes of synced segments. So a reader checks the
batch that an entry points to. A wrong `.index` entry could hide records before its position. A wrong
`.timeindex` entry could hide records, or make a segment look older than it is. If the log contradicts an
entry, the entry is ignored and the segment is read from its beginning.
"""

from __future__ import annotations

import os

from mpbroker.storage import index, scan

BEFORE_ALL = -(1 << 63)
BEHIND_ALL = (1 << 63) - 1
LATEST_TIME = (1 << 63) - 1
NO_TIMESTAMP = -1


def position_before(fd: int, index_fd: int, base: int, offset: int) -> int:
    """Return the position of a batch that begins at or before `offset`. `index_fd` -1 means no index."""
    if index_fd < 0:
        return 0
    named, position = index.offset_floor(index_fd, base, offset)
    there = scan.find_offset(fd, position, os.fstat(fd).st_size, BEFORE_ALL)
    return position if there is not None and there.base_offset <= named else 0


def time_before(fd: int, index_fd: int, time_fd: int, base: int, timestamp_ms: int) -> tuple[int, int]:
    """Return (timestamp, offset) of the last time index entry at or before `timestamp_ms`.

    The timestamp is the largest one up to this offset. Returns (-1, base) if there is no entry, or if the log
    contradicts the entry. Raises OSError.
    """
    timestamp, offset = index.time_floor(time_fd, base, timestamp_ms)
    if timestamp == NO_TIMESTAMP:
        return timestamp, offset
    position = position_before(fd, index_fd, base, offset)
    batch = scan.find_offset(fd, position, os.fstat(fd).st_size, offset)
    if batch is None or batch.max_timestamp != timestamp:
        return NO_TIMESTAMP, base
    return timestamp, offset
