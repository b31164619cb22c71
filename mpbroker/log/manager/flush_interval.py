"""`flush.ms`: how long records of a topic may be in no synced segment. (Kafka: LogManager.flushDirtyLogs.)

The segment itself is synced, also where a commit journal made the records durable already. `flush.messages`
is looked at natively, with each append (`commit.pyx`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mpbroker.config.keys import LONG_MAX
from mpbroker.log.partition.partition_log import PartitionLog

LOOK_EVERY_S = 0.5


class Flushing:
    """`logs`: those whose files are open; `flush`: has the segment of one synced with the next round."""

    def __init__(
        self, logs: Callable[[], Iterable[PartitionLog]], flush: Callable[[PartitionLog], None]
    ) -> None:
        self._logs = logs
        self._flush = flush
        self._next = 0.0
        # Since when there has been something to sync, or since it was last asked for.
        self._since: dict[PartitionLog, float] = {}

    def look(self, now: float) -> None:
        """`now`: in s, monotonic. To be called from time to time."""
        if now < self._next:
            return
        self._next = now + LOOK_EVERY_S
        timed = [log for log in self._logs() if log.config.flush_ms != LONG_MAX]
        # One that is held has all that moves on its way to another log directory, where it is synced.
        waiting = [log for log in timed if log.state.synced < log.state.log_end and not log.is_held]
        self._since = {log: self._since.get(log, now) for log in waiting}
        for log, since in self._since.items():
            if now - since >= log.config.flush_ms / 1000:
                self._since[log] = now
                self._flush(log)
