"""The partitions whose files are open: those that are appended to, up to a limit.

A partition starts dormant, without open files, and is opened by its first append. When too many are open,
those without an append since the last check become dormant again, unless they have bytes that wait for a
sync. Bytes that are durable only in a commit journal wait for a sync of their segment. So while too many
partitions are open, such segments are synced, and commit rounds sync segments instead of writing journals.
(Kafka holds every segment of every partition open.)

Indexes are closed without a sync, and so are segments if there is no group commit. The kernel keeps their
bytes, and reports a failed write to the next sync of the file.
"""

from __future__ import annotations

import resource
from collections import OrderedDict

from mpbroker.config.integers import LONG_MAX
from mpbroker.log.append.turn import AppendTurn
from mpbroker.log.append.turn_partitions import attach, detach
from mpbroker.log.directories.journal_set import crowd_journals
from mpbroker.log.io.io_thread import IoThread
from mpbroker.log.manager.segment_preparation import SegmentPreparation
from mpbroker.log.partition.partition_log import PartitionLog

CHECK_EVERY_S = 0.5
FILES_OF_ONE = 3
# For rings, journals, and files being replayed, rolled, prepared, or synced for the journals.
FILES_OF_OTHERS = 1024
# Partitions checked in one call: each of them may have to stay open.
CHECKED_AT_ONCE = 64
# Journals are used again when fewer than this share of the limit are open.
FEW_SHARE = 0.75


def most_open(file_limit: int) -> int:
    others = min(FILES_OF_OTHERS, file_limit // 2)
    return max(16, (file_limit - others) // FILES_OF_ONE)


class OpenPartitions:
    """The partitions with open files. When there are too many, commit rounds bypass the journals."""

    def __init__(self, turn: AppendTurn, io_thread: IoThread) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = most_open(soft)
        self.segment_preparation = SegmentPreparation(io_thread)
        self._turn = turn
        self._is_crowded = False
        self._next_flush_check = 0.0
        # Time since when a partition has unsynced records, or when its sync was last requested.
        self._unsynced_since: dict[PartitionLog, float] = {}
        # The log end of each at its last check, in the order of these checks.
        self._logs: OrderedDict[PartitionLog, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._logs)

    def prepare_segments(self) -> None:
        """Request the preparation of the next segment for each partition whose active segment fills up."""
        self.segment_preparation.check(self._logs)

    def begin(self, log: PartitionLog) -> None:
        """Let the log worker's native turn append to a log from now on. The log must have its slot."""
        attach(self._turn, log.state, log.topic)
        if log.state.fd >= 0:
            self.note(log)

    def note(self, log: PartitionLog) -> None:
        """Count a log that is about to open its files, or has just opened them."""
        if len(self._logs) >= self.most:
            self._send_to_rest()
        self._logs[log] = log.state.log_end

    def forget(self, log: PartitionLog) -> None:
        """Drop a log whose files are about to be closed."""
        self._logs.pop(log, None)
        self.segment_preparation.forget(log)

    def end(self, log: PartitionLog) -> None:
        """Drop a log, to which the native turn appends no more: its slot is free for another partition."""
        self.forget(log)
        detach(self._turn, log.state)

    def _send_to_rest(self) -> None:
        for _ in range(min(CHECKED_AT_ONCE, len(self._logs))):
            log, seen_end = self._logs.popitem(last=False)
            if log.state.fd < 0:
                continue
            if log.state.log_end == seen_end and log.state.can_rest:
                self.segment_preparation.forget(log)
                log.close_files()
                continue
            self._logs[log] = log.state.log_end
        if len(self._logs) >= self.most:
            self._is_crowded = True
            crowd_journals(self._turn, True)

    @property
    def awaits_flush(self) -> bool:
        """Return whether the last check found a partition with a `flush.ms` and unsynced records."""
        return bool(self._unsynced_since)

    def flush_due(self, now: float) -> None:
        """Let the next commit round sync each segment whose records have waited for `flush.ms`.

        (Kafka: LogManager.flushDirtyLogs.) The segment itself is synced, even if a commit journal has made
        its records durable. `flush.messages` is checked natively with each append (`commit.pyx`). `now`: the
        monotonic clock in seconds.
        """
        if now < self._next_flush_check:
            return
        self._next_flush_check = now + CHECK_EVERY_S
        timed = [log for log in self._logs if log.config.flush_ms != LONG_MAX]
        # A paused partition is skipped: its files are moving to another log directory and are synced there.
        waiting = [log for log in timed if log.state.synced < log.state.log_end and not log.is_paused]
        self._unsynced_since = {log: self._unsynced_since.get(log, now) for log in waiting}
        for log, since in self._unsynced_since.items():
            if now - since >= log.config.flush_ms / 1000:
                self._unsynced_since[log] = now
                self._turn.flush(log.state)

    def ease(self) -> None:
        """Hand prepared segments to their logs. Close files while too many are open. Called periodically."""
        self.segment_preparation.take_in()
        if self._is_crowded:
            self._send_to_rest()
            if len(self._logs) < self.most * FEW_SHARE:
                self._is_crowded = False
                crowd_journals(self._turn, False)
