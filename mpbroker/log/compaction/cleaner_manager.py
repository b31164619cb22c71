"""The log process's part of compaction: the choice of tasks, and the swap (Kafka: LogCleanerManager).

The cleaner, a process of its own, reads segments and writes new ones. The log process chooses the segments,
and it alone renames files. The cleaner asks for a task, passes the new segments one by one, and reports the
task's end; one task at a time. A commit journal is never replayed into a cleaned segment: a segment is
cleaned only once it is synced, and swapped only once the recovery point on disk is past it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from functools import partial

from mpbroker.ipc import calls
from mpbroker.ipc.counters import Counter
from mpbroker.log.compaction.cleanable import COMPACT, Dirty, Limits, dirty_part, is_due
from mpbroker.log.manager.log_manager import LogManager
from mpbroker.log.manager.measuring import MEASURED_AT_ONCE, Measuring, is_measured
from mpbroker.log.partition.partition_log import PartitionLog, Sealed
from mpbroker.log.partition.segment_swap import begin_swap, swap_in
from mpbroker.log.retention.deletion import unlink_deleted
from mpbroker.storage import names
from mpbroker.storage.disk_errors import PASSING
from shm.counters import CounterPage

# A swap that fails for a full disk is tried again after this time.
TRY_AGAIN_S = 1.0
_log = logging.getLogger("mpbroker.log.compaction")


@dataclass
class _Grant:
    """The task that the cleaner works on."""

    ticket: int
    log: PartitionLog
    dirty: Dirty


@dataclass
class _Swap:
    """The swap of one segment, run in the I/O thread. It changes nothing if the new segment is missing."""

    fd: int
    bases: list[int]
    done: bool = False
    is_void: bool = False
    _has_begun: bool = False

    def run(self) -> None:
        try:
            if not self._has_begun:
                begin_swap(self.fd, self.bases[0])
                self._has_begun = True
            swap_in(self.fd, self.bases)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not self._has_begun:
                self.is_void = True
                return
            if error.errno not in PASSING:
                raise
            _log.warning("a cleaned segment cannot be put in place yet: %s", error)
            return
        self.done = True


class Compaction:
    def __init__(self, manager: LogManager, measuring: Measuring, counters: CounterPage) -> None:
        self._manager = manager
        self._measuring = measuring
        self._counters = counters
        self._grant: _Grant | None = None
        self._tickets = 0
        # The number of times a cleaner has asked for a task. A later call ends the choice for an earlier one.
        self._asked = 0
        # Partitions whose cleaning failed, until the next start.
        self._uncleanable: set[tuple[bytes, int]] = set()

    # ---- what next ----

    def choosing(self) -> Generator[None, None, calls.Message]:
        """Choose the dirtiest partition that is due. Return its task for the cleaner, or NothingToClean.

        If the cleaner dies and its successor asks, the choice for the dead cleaner ends without a result, so
        that it does not overwrite the successor's task.
        """
        self._grant = None
        self._asked += 1
        asked = self._asked
        best: tuple[Dirty, PartitionLog] | None = None
        dirtiest, delay_ms, uncleanable = 0.0, 0, [0, 0]
        slots = list(self._manager.logs)
        for at in range(0, len(slots), MEASURED_AT_ONCE):
            some = slots[at : at + MEASURED_AT_ONCE]
            self._forget_others(some)
            yield from self._measuring.until_measured(self._compacted(some))
            for log in self._compacted(some):
                dirty = self._dirty_part(log)
                if dirty is None:
                    continue
                if (log.topic_id, log.partition) in self._uncleanable:
                    uncleanable[0] += 1
                    uncleanable[1] += dirty.bytes_dirty
                    continue
                dirtiest, delay_ms = max(dirtiest, dirty.ratio), max(delay_ms, dirty.delay_ms)
                if is_due(dirty, log.config) and (best is None or dirty.ratio > best[0].ratio):
                    best = dirty, log
            yield
            if asked != self._asked:
                return calls.NothingToClean()
        self._counters.set(Counter.COUNT_CLEANER_DIRTY_PERCENT, round(dirtiest * 100))
        self._counters.set(Counter.COUNT_CLEANER_DELAY_MS, delay_ms)
        self._counters.set(Counter.COUNT_UNCLEANABLE_PARTITIONS, uncleanable[0])
        self._counters.set(Counter.COUNT_UNCLEANABLE_BYTES, uncleanable[1])
        return self._granted(best) if best is not None else calls.NothingToClean()

    def _compacted(self, slots: Iterable[int]) -> list[PartitionLog]:
        return [log for log in self._measuring.open_logs(slots) if COMPACT in log.config.cleanup_policy]

    def _forget_others(self, slots: Iterable[int]) -> None:
        """Drop the compaction checkpoints of those partitions in `slots` that are no longer compacted."""
        for log in self._measuring.open_logs(slots):
            if COMPACT not in log.config.cleanup_policy:
                self._manager.dirs[log.state.log_dir].forget_cleaned((log.topic, log.partition))

    def _dirty_part(self, log: PartitionLog) -> Dirty | None:
        """Return a log's dirty part, or None if it cannot be cleaned at the moment.

        It cannot be cleaned while it is being swapped or moved, or if a segment is unmeasured or unreadable.
        """
        if log.is_swapping or log.is_moving or not is_measured(log):
            return None
        segments = self._measuring.segments_of(log)
        if not segments:
            return None
        published = log.state.published
        # Readers read up to a mark's position in its segment, so a segment with a mark must stay as it is.
        safe_end = min(
            published.high_watermark_segment,
            published.last_stable_segment,
            published.last_stable_offset,
            self._manager.checkpoints.recovery_point(log),
        )
        log_dir = self._manager.dirs[log.state.log_dir]
        limits = Limits(
            log.log_start,
            log.state.log_end,
            safe_end,
            log_dir.known[names.CLEANER_OFFSETS].get((log.topic, log.partition)),
            self._manager.turn.clock_ms(),
        )
        first_ms = [*(segment.first_ms for segment in log.sealed), log.state.first_timestamp]
        return dirty_part(segments, first_ms, log.config, limits)

    def _granted(self, best: tuple[Dirty, PartitionLog]) -> calls.ToClean:
        dirty, log = best
        self._tickets += 1
        self._grant = _Grant(self._tickets, log, dirty)
        return calls.ToClean(
            ticket=self._tickets,
            directory=str(log.directory),
            must=dirty.must,
            bases=[segment.base for segment in log.sealed if segment.base < dirty.end],
            first_dirty=dirty.first_dirty,
            end=dirty.end,
            segment_bytes=log.config.segment_bytes,
            index_bytes=log.config.segment_index_bytes,
            index_interval_bytes=log.config.index_interval_bytes,
            delete_retention_ms=log.config.delete_retention_ms,
            now_ms=self._manager.turn.clock_ms(),
            producers=log.state.producers.snapshot(),
        )

    # ---- the swap ----

    def swapping(self, new: calls.SwapSegments) -> Generator[None, None, calls.Message]:
        """Put a new segment in place. Return a Swapped, which says whether that succeeded."""
        grant = self._grant
        if grant is None or grant.ticket != new.ticket or not self._may_replace(grant.log, new.bases):
            return calls.Swapped(False)
        log = grant.log
        try:
            fd = os.open(log.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            self._failed(log, error.errno or 0, str(error))
            return calls.Swapped(False)
        log.is_swapping = True
        try:
            if not (yield from self._recorded(log, grant.dirty.end)):
                return calls.Swapped(False)
            done = yield from self._done(log, _Swap(fd, new.bases))
        finally:
            os.close(fd)
            log.is_swapping = False
        if not done:
            return calls.Swapped(False)
        first = [segment.base for segment in log.sealed].index(new.bases[0])
        segment = Sealed(new.bases[0], new.size, new.largest_ms, new.first_ms)
        log.sealed = [*log.sealed[:first], segment, *log.sealed[first + len(new.bases) :]]
        self._counters.add(Counter.COUNT_SEGMENTS_CLEANED, len(new.bases))
        self._manager.removal.deletions.of(log, partial(unlink_deleted, log.directory, new.bases))
        return calls.Swapped(True)

    def _may_replace(self, log: PartitionLog, bases: list[int]) -> bool:
        """Return whether these consecutive segments still exist and may be replaced."""
        if not self._manager.is_served(log) or log.is_swapping or log.is_moving:
            return False
        there = [segment.base for segment in log.sealed]
        if not bases or bases[0] not in there:
            return False
        first = there.index(bases[0])
        return there[first : first + len(bases)] == bases

    def _recorded(self, log: PartitionLog, end: int) -> Generator[None, None, bool]:
        """Write the recovery point if it is below `end` on disk. Return whether it now is at least `end`."""
        log_dir, key = self._manager.dirs[log.state.log_dir], (log.topic, log.partition)
        if log_dir.on_disk[names.RECOVERY_POINTS].get(key, 0) >= end:
            return True
        log_dir.checkpoint(
            names.RECOVERY_POINTS,
            {key: self._manager.checkpoints.recovery_point(log)},
            self._manager.io_thread,
        )
        yield from self._manager.io_thread.catching_up()
        return self._manager.is_served(log) and log_dir.on_disk[names.RECOVERY_POINTS].get(key, 0) >= end

    def _done(self, log: PartitionLog, swap: _Swap) -> Generator[None, None, bool]:
        while True:
            self._manager.io_thread.submit(swap.run, log.state.log_dir)
            yield from self._manager.io_thread.catching_up()
            if swap.done or swap.is_void or not self._manager.is_served(log):
                return swap.done
            again = time.monotonic() + TRY_AGAIN_S
            while time.monotonic() < again:
                yield

    # ---- the end ----

    def ended(self, message: calls.CleaningEnded) -> None:
        grant, self._grant = self._grant, None
        if grant is None or grant.ticket != message.ticket:
            return
        log = grant.log
        if message.problem:
            self._failed(log, message.errno, message.problem)
        elif self._manager.is_served(log):
            log_dir, key = self._manager.dirs[log.state.log_dir], (log.topic, log.partition)
            log_dir.checkpoint(names.CLEANER_OFFSETS, {key: message.end}, self._manager.io_thread)

    def _failed(self, log: PartitionLog, errno: int, problem: str) -> None:
        """Note that a partition could not be cleaned.

        A temporary error is only logged, any other errno takes the log directory offline. Without an errno
        the partition itself is at fault, and is not cleaned again before the next start.
        """
        if not self._manager.is_served(log):
            return
        if errno in PASSING:
            _log.warning("%s cannot be compacted now: %s", log.directory, problem)
        elif errno:
            _log.error("%s cannot be compacted: %s", log.directory, problem)
            self._manager.turn.storage_failed(log.state.log_dir, errno)
        else:
            self._uncleanable.add((log.topic_id, log.partition))
            _log.error("%s is not compacted until the broker is restarted: %s", log.directory, problem)
            self._counters.set_last_error(f"{log.name} is not compacted: {problem}")
