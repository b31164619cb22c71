"""Which partitions have their next segment prepared: those that fill segments (see `prepared_segment`).

One that has just rolled gets one from the helper, and one whose segment is half full, if it was appended to
since the last look. Who has one and was not loses it: each holds files open.
"""

from __future__ import annotations

import errno
import queue
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from mpbroker.log.io.io_thread import Helper
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.log.partition.prepared_segment import Prepared

MOST_PREPARED = 64
# Of a file system, or a kernel, that has no files without a name.
_NOT_KNOWN = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})


class Preparing:
    def __init__(self, helper: Helper) -> None:
        self._helper = helper
        # Of each the log end at the last look.
        self._wanted: dict[PartitionLog, int] = {}
        self._half_full: dict[PartitionLog, int] = {}
        self._made: queue.SimpleQueue[tuple[PartitionLog, Prepared | None]] = queue.SimpleQueue()
        # Log directories in which it cannot be done.
        self._cannot: set[int] = set()

    def rolled(self, log: PartitionLog) -> None:
        """What was prepared for it is used."""
        self._wanted.pop(log, None)
        self._want(log)

    def forget(self, log: PartitionLog) -> None:
        """It is closed, or moves on to another directory."""
        self._wanted.pop(log, None)
        self._half_full.pop(log, None)
        log.prepared = None

    def look(self, logs: Iterable[PartitionLog]) -> None:
        """At those that are open; from time to time."""
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
        """What the helper has made."""
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
        if len(self._wanted) < MOST_PREPARED and log not in self._wanted and number not in self._cannot:
            self._wanted[log] = log.state.log_end
            self._helper.submit(partial(self._make, log, log.directory, number), number)

    def _make(self, log: PartitionLog, directory: Path, number: int) -> None:
        """In the helper's thread. A roll can do without it, and meets whatever is wrong there."""
        try:
            made = Prepared(directory)
        except OSError as error:
            made = None
            if error.errno in _NOT_KNOWN:
                self._cannot.add(number)
        self._made.put((log, made))
