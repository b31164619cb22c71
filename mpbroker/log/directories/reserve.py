"""Room kept for work that must continue on a full disk: checkpoints, clean stops, deletions of topics.

The reserve is a file without a name (O_TMPFILE) that is never written. Produce requests fail on a full disk
while the reserve still has its room. The kernel frees the file when its process dies, so a start, which may
need the room itself, finds it free. On a file system without unnamed files there is no reserve.

The deletion of a topic is written into the metadata log, for which room is allocated in advance.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from mpbroker.log.io.file_system import set_aside
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.storage.disk_errors import NO_ROOM

# Allocated at a time: a disk that is nearly full gives a part.
PIECE_BYTES = 256 << 10
# The metadata log has at least this much room, and at most twice as much.
METADATA_BYTES = 512 << 10
# The unit of `st_blocks`, on every file system.
BLOCK_BYTES = 512
_UNNAMED = os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC
_UNKNOWN = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)
_log = logging.getLogger("mpbroker.log")


class Reserve:
    """The reserve of one log worker in one log directory."""

    def __init__(self, directory: Path, most_bytes: int) -> None:
        self._directory = directory
        self._most = most_bytes
        self._fd = -1
        self.held_bytes = 0
        # The log process opens and closes the reserve, its io_thread uses it.
        self._lock = threading.Lock()

    @property
    def is_whole(self) -> bool:
        return self.held_bytes >= self._most

    def take(self) -> None:
        """Allocate the missing bytes, or as many as the disk has. Raises OSError, but not for a full disk."""
        try:
            with self._lock:
                self._take()
        except OSError as error:
            if error.errno in _UNKNOWN:
                _log.info("%s: its file system cannot reserve room for a full disk", self._directory)
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
        """Release the reserve for good."""
        self._most = 0
        self.release()

    def lend(self, work: Callable[[], None]) -> None:
        """Do `work`; if the disk is full, release the reserve and do `work` again. Raises OSError."""
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


def keep_room_at_end(metadata: PartitionLog) -> None:
    """Allocate room after the metadata log's end if too little is left; do nothing on a full disk."""
    state = metadata.state
    if state.fd >= 0 and os.fstat(state.fd).st_blocks * BLOCK_BYTES < state.size + METADATA_BYTES:
        set_aside(state.fd, state.size, 2 * METADATA_BYTES)
