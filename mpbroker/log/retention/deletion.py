"""The deletion of segments and records, in steps between which the log appends.

The log start offset moves first, in the table and in its checkpoint. Then the files are renamed, and
`file.delete.delay.ms` later they are removed. Readers that have a file open continue; later readers get
OFFSET_OUT_OF_RANGE. A kill at any point loses nothing at or above the log start offset: retention finds files
below that offset again, and renamed files are removed when the partition is opened. (Kafka:
LogManager.cleanupLogs, UnifiedLog.deleteOldSegments, ReplicaManager.deleteRecords.)

Local retention of a tiered partition deletes files alone, of segments that the object store has: the log
start stays where it is, and so do the leader epochs from there on.

The checkpoint needs room on the disk, and deletion makes room. If the checkpoint fails on a full disk,
segments are deleted nevertheless, because the first remaining segment gives the log start. Only records
deleted within a segment need the checkpoint; their deletion is acknowledged when the checkpoint is on disk.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Generator, Iterable
from functools import partial
from pathlib import Path

from mpbroker.ipc import calls
from mpbroker.ipc.table import PartitionFlag
from mpbroker.log.append.turn_partitions import ship_log_start
from mpbroker.log.io.background_io import remove_file
from mpbroker.log.manager.log_manager import LogManager
from mpbroker.log.manager.measuring import MEASURED_AT_ONCE, Measuring, is_measured
from mpbroker.log.partition.partition_log import SEGMENT_FILES, PartitionLog
from mpbroker.log.retention.retention import (
    Doomed,
    Expired,
    Marks,
    below_log_start,
    expired,
    expired_locally,
)
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.numbers import HIGH_WATERMARK
from mpbroker.storage.checkpoints import write_epochs_at
from mpbroker.storage.names import DELETED_FILE_SUFFIX, segment_name

_log = logging.getLogger("mpbroker.log.retention")


class Deletion:
    def __init__(self, manager: LogManager, measuring: Measuring) -> None:
        self._manager = manager
        self._measuring = measuring

    # ---- retention ----

    def deleting_expired(self) -> Generator[None, None, None]:
        """Check every partition once, and delete its expired segments."""
        slots = list(self._manager.logs)
        for at in range(0, len(slots), MEASURED_AT_ONCE):
            some = slots[at : at + MEASURED_AT_ONCE]
            yield from self._measuring.until_measured(self._measuring.open_logs(some))
            now_ms = self._manager.turn.clock_ms()
            # Some logs may have been removed meanwhile, so ask for the open ones again.
            found = [(log, self._expired(log, now_ms)) for log in self._measuring.open_logs(some)]
            if shipped := (yield from self._shipped([(log, one.log_start) for log, one in found])):
                again = [(log, self._expired(log, now_ms)) for log in self._measuring.open_logs(some)]
                # What has expired since has to be shipped before, in the next check.
                found = [(log, one) for log, one in again if one.log_start <= shipped.get(log, log.log_start)]
            self._delete(found)
            yield

    def _shipped(
        self, starts: Iterable[tuple[PartitionLog, int]]
    ) -> Generator[None, None, dict[PartitionLog, int]]:
        """Yield until the object store has log start offsets that are to be. Return those that it got.

        With mpbroker.remote.acks=ledger no log start moves before. Otherwise a broker that takes over would
        bring back what is gone. One that another request has sent may be on its way: it is sent again.
        """
        turn = self._manager.turn
        moving = [(log, start) for log, start in starts if turn.ships and start > log.log_start]
        while any(log.is_paused for log, _ in moving):
            # No commit round may have the partition while it changes its log directory.
            yield
        # Nor after its topic was deleted meanwhile.
        moving = [(log, start) for log, start in moving if self._manager.is_here(log)]
        rounds = [ship_log_start(turn, log.state, start) for log, start in moving]
        while rounds and turn.commit_rounds < rounds[-1]:
            yield
        return dict(moving)

    def _expired(self, log: PartitionLog, now_ms: int) -> Expired:
        segments = [] if log.is_swapping or not is_measured(log) else self._measuring.segments_of(log)
        if not segments:
            return Expired(log.log_start, [])
        marks = self._marks(log, now_ms)
        found = expired(segments, log.config, marks)
        if log.state.tiering & PartitionFlag.PARTITION_TIERED:
            return expired_locally(segments, log.config, marks, found, self._measuring.stored(log))
        if log.state.tiering & PartitionFlag.PARTITION_REMOTE_DELETED:
            return found._replace(log_start=max(found.log_start, log.local_start))
        return found

    def _marks(self, log: PartitionLog, now_ms: int) -> Marks:
        return Marks(log.log_start, log.state.high_watermark, now_ms, log.remote)

    # ---- records ----

    def deleting(self, call: calls.DeleteRecords) -> Generator[None, None, calls.DeletedRecords]:
        """Delete records below the requested offsets, and answer when the deletions are on disk."""
        manager = self._manager
        wanted = [self._wanted(one) for one in call.partitions]
        yield from self._shipped([(log, offset) for _, log, offset in wanted if log is not None])
        while any(self._is_paused(one.slot) for one in call.partitions):
            yield
        results = [self._delete_before(*one) for one in wanted]
        # Delete the segments of a partition once, even if the request names it twice.
        logs = list(dict.fromkeys(log for _, log, _ in results if log is not None))
        manager.checkpoints.write_log_starts(logs)
        self._delete([(log, Expired(log.log_start, self._below_start(log))) for log in logs])
        yield from manager.io_thread.catching_up()
        answers = []
        for error, log, start in results:
            if log is None:
                answers.append(calls.DeletedBefore(error))
            elif manager.checkpoints.log_start_on_disk(log) < start:
                answers.append(calls.DeletedBefore(ErrorCode.KAFKA_STORAGE_ERROR))
            else:
                answers.append(calls.DeletedBefore(0, start))
        return calls.DeletedRecords(answers)

    def _is_paused(self, slot: int) -> bool:
        """Return whether a move has paused the partition, whose log start must then not change."""
        log = self._manager.logs.get(slot)
        return log is not None and log.is_paused

    def _wanted(self, wanted: calls.DeleteBefore) -> tuple[int, PartitionLog | None, int]:
        """Return (error code, log, the log start that is asked for). The log is None if there is an error."""
        log = self._manager.logs.get(wanted.slot)
        if log is None or log.state.generation != wanted.slot_generation:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, None, -1
        if log.state.is_offline:
            return ErrorCode.KAFKA_STORAGE_ERROR, None, -1
        end = log.state.high_watermark
        offset = end if wanted.offset == HIGH_WATERMARK else wanted.offset
        if not 0 <= offset <= end:
            return ErrorCode.OFFSET_OUT_OF_RANGE, None, -1
        return 0, log, offset

    def _delete_before(
        self, error: int, log: PartitionLog | None, offset: int
    ) -> tuple[int, PartitionLog | None, int]:
        """Move the log start of one partition. Return (error code, log, its new start).

        The log is None if there is an error. The log start may move further before this start is on disk.
        """
        if log is None:
            return error, None, -1
        if not self._manager.is_here(log):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, None, -1
        if log.state.is_offline:
            return ErrorCode.KAFKA_STORAGE_ERROR, None, -1
        if offset > log.log_start:
            _log.info("%s: records below offset %d are deleted, as asked for", log.name, offset)
            log.move_start(offset)
            log.state.publish(self._manager.table)
        return 0, log, log.log_start

    def _below_start(self, log: PartitionLog) -> list[Doomed]:
        if log.is_swapping:
            # The next run deletes them.
            return []
        return below_log_start(self._measuring.segments_of(log), self._marks(log, 0))

    # ---- files ----

    def _delete(self, found: Iterable[tuple[PartitionLog, Expired]]) -> None:
        """Delete the segments `found`. Checkpoint all new log starts at once, before the first rename."""
        jobs: list[tuple[PartitionLog, list[Doomed], int]] = []
        moved = []
        for log, (start, going, rolls) in found:
            if rolls:
                self._roll(log)
            if not going:
                if start > log.log_start:
                    self._move_start(log, start)
                    moved.append(log)
                continue
            try:
                directory = os.open(log.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                self._measuring.cannot_reach(log, error)
                continue
            going = self._without_active(log, going)
            if not going:
                os.close(directory)
                continue
            log.sealed = log.sealed[len(going) :]
            self._move_start(log, min(start, log.state.segment_base))
            jobs.append((log, going, directory))
        if not jobs and not moved:
            return
        manager = self._manager
        manager.checkpoints.write_log_starts([*moved, *(log for log, _, _ in jobs)])
        for log, going, directory in jobs:
            job = partial(_set_aside, directory, log.directory, going, list(log.epochs))
            manager.io_thread.submit(job, log.state.log_dir)
            bases = [segment.base for segment, _ in going]
            manager.removal.deletions.of(log, partial(unlink_deleted, log.directory, bases))

    def _without_active(self, log: PartitionLog, going: list[Doomed]) -> list[Doomed]:
        """Roll the log if `going` has its active segment. Return `going`, without it if the roll fails."""
        is_whole = going[-1].segment.base != log.state.segment_base or self._roll(log)
        return going if is_whole else going[:-1]

    def _roll(self, log: PartitionLog) -> bool:
        """Seal the active segment, all of it below the high watermark. Return whether that succeeded."""
        try:
            self._manager.roll(log)
        except OSError as error:
            self._measuring.cannot_reach(log, error)
            return False
        # The high watermark stays where it was: at the log end.
        log.state.all_is_durable(log.state.synced)
        log.state.publish(self._manager.table)
        return True

    def _move_start(self, log: PartitionLog, start: int) -> None:
        if start > log.log_start:
            log.move_start(start)
        log.state.publish(self._manager.table)


# ---- in the I/O thread ----


def _set_aside(fd: int, directory: Path, going: list[Doomed], epochs: list[tuple[int, int]]) -> None:
    """Rename the files of these segments, and write the leader epochs.

    `fd`: the open directory; its name may belong to another topic by now. A segment's log file is renamed
    first: index files without a log file are removed when the partition is opened.
    """
    try:
        for segment, reason in going:
            name = segment_name(segment.base)
            with contextlib.suppress(FileNotFoundError):
                size = os.stat(name, dir_fd=fd).st_size
                _log.info(
                    "%s: deleting the segment of offsets %d to %d, %d bytes: %s",
                    directory / name,
                    segment.base,
                    segment.end - 1,
                    size,
                    reason,
                )
            for suffix in SEGMENT_FILES:
                name = segment_name(segment.base, suffix)
                with contextlib.suppress(FileNotFoundError):
                    os.rename(name, name + DELETED_FILE_SUFFIX, src_dir_fd=fd, dst_dir_fd=fd)
        write_epochs_at(fd, epochs)
    finally:
        os.close(fd)


def unlink_deleted(directory: Path, bases: list[int]) -> None:
    """Remove the renamed files of these segments."""
    for base in bases:
        for suffix in SEGMENT_FILES:
            remove_file(directory / (segment_name(base, suffix) + DELETED_FILE_SUFFIX))
