"""The choice of partitions whose next segment is prepared (see `prepared_segment`).

The I/O thread prepares the next segment of a partition that has just rolled, or whose active segment is half
full and was appended to since the last check. A partition without an append since the last check loses its
prepared segment, since each such segment holds files open.
"""

from __future__ import annotations

import errno
import queue
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from mpbroker.log.io.io_thread import IoThread
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.log.partition.prepared_segment import Prepared

PREPARED_MAX = 64
# Errors of a file system or kernel that cannot create unnamed files (O_TMPFILE).
_NOT_KNOWN = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})


class SegmentPreparation:
    def __init__(self, io_thread: IoThread) -> None:
        self._io_thread = io_thread
        # The log end of each at the last check.
        self._wanted: dict[PartitionLog, int] = {}
        self._half_full: dict[PartitionLog, int] = {}
        self._made: queue.SimpleQueue[tuple[PartitionLog, Prepared | None]] = queue.SimpleQueue()
        # Log directories in which no segment can be prepared.
        self._cannot: set[int] = set()

    def rolled(self, log: PartitionLog) -> None:
        """Ask for the next segment of a log that has just used its prepared one."""
        self._wanted.pop(log, None)
        self._want(log)

    def forget(self, log: PartitionLog) -> None:
        """Drop the prepared segment of a log that is closed or moves to another directory."""
        self._wanted.pop(log, None)
        self._half_full.pop(log, None)
        log.prepared = None

    def check(self, logs: Iterable[PartitionLog]) -> None:
        """Ask for next segments of logs that fill up; drop those of idle logs. Called from time to time."""
        for log, seen_end in list(self._wanted.items()):
            if log.state.log_end == seen_end:
                self.forget(log)
            else:
                self._wanted[log] = log.state.log_end
        half_full = {
            log: log.state.log_end
            for log in logs
            if log.state.fd >= 0 and 2 * log.state.size >= log.state.segment_bytes
        }
        for log, end in half_full.items():
            if self._half_full.get(log, end) != end:
                self._want(log)
        self._half_full = half_full

    def take_in(self) -> None:
        """Give each log the next segment that the I/O thread has prepared for it."""
        while not self._made.empty():
            log, made = self._made.get()
            if log not in self._wanted:
                continue
            if made is None or made.directory != log.directory:
                del self._wanted[log]
            else:
                log.prepared = made

    def _want(self, log: PartitionLog) -> None:
        number = log.state.log_dir
        if len(self._wanted) < PREPARED_MAX and log not in self._wanted and number not in self._cannot:
            self._wanted[log] = log.state.log_end
            self._io_thread.submit(partial(self._make, log, log.directory, number), number)

    def _make(self, log: PartitionLog, directory: Path, number: int) -> None:
        """Prepare a segment, in the I/O thread. Ignore errors: the roll then creates the files itself."""
        try:
            made = Prepared(directory)
        except OSError as error:
            made = None
            if error.errno in _NOT_KNOWN:
                self._cannot.add(number)
        self._made.put((log, made))
