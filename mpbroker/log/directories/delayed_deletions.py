"""Delete unreachable files after file.delete.delay.ms: a reader that has them open reads on.

(Kafka: the tasks delete-file and kafka-delete-logs of LogManager's scheduler.)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from mpbroker.log.io.io_thread import IoThread
from mpbroker.log.partition.partition_log import PartitionLog


class _Deletion(NamedTuple):
    """A deletion to come. `due_s`: on the monotonic clock."""

    due_s: float
    log_dir: int
    job: Callable[[], None]


class DelayedDeletions:
    """Deletions that the I/O thread does when they are due. A failed one takes its log directory offline."""

    def __init__(self, io_thread: IoThread) -> None:
        self._io_thread = io_thread
        self._waiting: list[_Deletion] = []
        self.next_due_s = math.inf

    def of(self, log: PartitionLog, job: Callable[[], None]) -> None:
        """Add a deletion for the log, with its topic's delay, in its log directory."""
        self.add(log.config.file_delete_delay_ms, log.state.log_dir, job)

    def add(self, delay_ms: int, log_dir: int, job: Callable[[], None]) -> None:
        due_s = time.monotonic() + delay_ms / 1000
        self._waiting.append(_Deletion(due_s, log_dir, job))
        self.next_due_s = min(self.next_due_s, due_s)

    def begin_due(self, now_s: float) -> None:
        if now_s < self.next_due_s:
            return
        due = [one for one in self._waiting if one.due_s <= now_s]
        self._waiting = [one for one in self._waiting if one.due_s > now_s]
        self.next_due_s = min((one.due_s for one in self._waiting), default=math.inf)
        for one in due:
            self._io_thread.submit(one.job, one.log_dir)
