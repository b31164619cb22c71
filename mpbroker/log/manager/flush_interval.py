"""Syncs by `flush.ms`, the longest time that records may be in an unsynced segment.

(Kafka: LogManager.flushDirtyLogs.) The segment itself is synced, even if a commit journal has made its
records durable. `flush.messages` is checked natively with each append (`commit.pyx`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mpbroker.config.integers import LONG_MAX
from mpbroker.log.partition.partition_log import PartitionLog

LOOK_EVERY_S = 0.5


class FlushInterval:
    """The syncs of segments that `flush.ms` asks for.

    `logs` returns the open partitions. `flush` has a partition's segment synced with the next round.
    """

    def __init__(
        self, logs: Callable[[], Iterable[PartitionLog]], flush: Callable[[PartitionLog], None]
    ) -> None:
        self._logs = logs
        self._flush = flush
        self._next = 0.0
        # Time since when a partition has unsynced records, or when its sync was last requested.
        self._since: dict[PartitionLog, float] = {}

    @property
    def is_pending(self) -> bool:
        """Return whether a partition waits for its sync to be due."""
        return bool(self._since)

    def look(self, now: float) -> None:
        """Flush the partitions that are due. To be called from time to time. `now`: monotonic, in s."""
        if now < self._next:
            return
        self._next = now + LOOK_EVERY_S
        timed = [log for log in self._logs() if log.config.flush_ms != LONG_MAX]
        # A paused partition is skipped: its files are moving to another log directory and are synced there.
        waiting = [log for log in timed if log.state.synced < log.state.log_end and not log.is_paused]
        self._since = {log: self._since.get(log, now) for log in waiting}
        for log, since in self._since.items():
            if now - since >= log.config.flush_ms / 1000:
                self._since[log] = now
                self._flush(log)
