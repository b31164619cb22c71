"""Room that is kept for what must go on when the disk is full: checkpoints, clean stops, deletions of topics.

It is a file without a name (O_TMPFILE) that nothing is ever written to: produces meet the full disk while it
still has its room, and whoever has it open gives that back by its death. So nothing of it is found at a
start, which may need the room itself. A file system that knows no such files keeps nothing.

That a topic is deleted is written into the metadata log: its active segment has room behind its end.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from mpbroker.log.io.disk_errors import NO_ROOM
from mpbroker.log.io.file_system import set_aside
from mpbroker.log.partition.partition_log import PartitionLog

# So much is asked for at a time: a disk that is nearly full gives what it has.
PIECE_BYTES = 256 << 10
# The metadata log has this much at least, and twice as much at most.
METADATA_BYTES = 512 << 10
# Of `st_blocks`, whatever the file system has.
BLOCK_BYTES = 512
_UNNAMED = os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC
_UNKNOWN = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)
_log = logging.getLogger("mpbroker")


class Reserve:
    """Of one log worker in one log directory."""

    def __init__(self, directory: Path, most_bytes: int) -> None:
        self._directory = directory
        self._most = most_bytes
        self._fd = -1
        self.held_bytes = 0
        # The log process begins and ends it, its helper uses it.
        self._lock = threading.Lock()

    @property
    def is_whole(self) -> bool:
        return self.held_bytes >= self._most

    def take(self) -> None:
        """As much as is missing, or as there is. Raises OSError, but for a disk that is full."""
        try:
            with self._lock:
                self._take()
        except OSError as error:
            if error.errno in _UNKNOWN:
                _log.info("%s: its file system keeps no room for a full disk", self._directory)
                self._most = 0
            elif error.errno not in NO_ROOM:
                raise

    def _take(self) -> None:
        if self._fd < 0 and self._most:
            self._fd = os.open(self._directory, _UNNAMED, 0o600)
        while not self.is_whole:
            piece = min(PIECE_BYTES, self._most - self.held_bytes)
            os.posix_fallocate(self._fd, self.held_bytes, piece)
            self.held_bytes += piece

    def release(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd, self.held_bytes = -1, 0

    def close(self) -> None:
        """For good."""
        self._most = 0
        self.release()

    def lend(self, work: Callable[[], None]) -> None:
        """Does it again with the room that was kept, if there is no other: what it has begun must not be in
        its way. Raises OSError.
        """
        try:
            work()
        except OSError as error:
            if error.errno not in NO_ROOM or not self.held_bytes:
                raise
            self.release()
            try:
                work()
            finally:
                self.take()


def keep_room_behind(metadata: PartitionLog) -> None:
    """Sets room aside behind the end of the metadata log, if there is too little: it is used up, or a write
    that failed was cut off again, and the room with it. On a full disk, and where a file system knows no such
    thing, there is none.
    """
    state = metadata.state
    if state.fd >= 0 and os.fstat(state.fd).st_blocks * BLOCK_BYTES < state.size + METADATA_BYTES:
        set_aside(state.fd, state.size, 2 * METADATA_BYTES)
