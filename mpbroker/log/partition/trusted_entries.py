"""What indexes say of a segment, where the log says the same.

Nobody checks an index: it has no checksum, and a start trusts those of synced segments. So a reader looks at
what an entry leads to. An offset index that names a later place than it should would hide the records before
it, and a time index records of a time, or let a segment seem older than it is; then neither is believed, and
the segment is walked from its beginning.
"""

from __future__ import annotations

import os

from mpbroker.log.format import index, scan

BEFORE_ALL = -(1 << 63)
LATEST_TIME = (1 << 63) - 1
NO_TIMESTAMP = -1


def position_before(fd: int, index_fd: int, base: int, offset: int) -> int:
    """Of a batch at or before the offset. `index_fd`: -1 if there is none. Raises OSError."""
    if index_fd < 0:
        return 0
    named, position = index.offset_floor(index_fd, base, offset)
    there = scan.find_offset(fd, position, os.fstat(fd).st_size, BEFORE_ALL)
    return position if there is not None and there.base_offset <= named else 0


def time_before(fd: int, index_fd: int, time_fd: int, base: int, timestamp_ms: int) -> tuple[int, int]:
    """(timestamp, offset): the largest time up to there, and none later than that; (-1, base) if nothing can
    be said. Raises OSError.
    """
    timestamp, offset = index.time_floor(time_fd, base, timestamp_ms)
    if timestamp == NO_TIMESTAMP:
        return timestamp, offset
    position = position_before(fd, index_fd, base, offset)
    batch = scan.find_offset(fd, position, os.fstat(fd).st_size, offset)
    if batch is None or batch.max_timestamp != timestamp:
        return NO_TIMESTAMP, base
    return timestamp, offset
