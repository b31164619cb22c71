"""Sizes and times of segments, for retention, compaction and the metrics.

The log process reads no sealed segment when it starts. The I/O thread measures such a segment when its size
or time is first needed. The sizes and times of segments sealed later are known.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Generator, Iterable
from functools import partial
from pathlib import Path

from mpbroker.ipc.metadata import METADATA_SLOT
from mpbroker.ipc.table import PartitionFlag, version_of
from mpbroker.log.manager.log_manager import LogManager
from mpbroker.log.partition.partition_log import PartitionLog, Sealed, Segment
from mpbroker.storage import scan
from mpbroker.storage.checkpoints import CheckpointCorrupt
from mpbroker.storage.disk_errors import PASSING
from mpbroker.storage.names import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, segment_name
from mpbroker.storage.remote_segments import NO_SEGMENTS, RemoteSegments, read_remote_segments
from mpbroker.storage.trusted_entries import LATEST_TIME, time_before
from shm.word import Words

# Partitions handled in one step: a fraction of a millisecond.
MEASURED_AT_ONCE = 64

_log = logging.getLogger("mpbroker.log")


def is_measured(log: PartitionLog) -> bool:
    return all(segment.size >= 0 for segment in log.sealed)


class Measuring:
    """`remote_words`: the tier's word for each slot of the partition table."""

    def __init__(self, manager: LogManager, remote_words: Words) -> None:
        self._manager = manager
        self._remote_words = remote_words
        # Logs that the I/O thread has found to be older copies of what the object store has.
        self._older: list[PartitionLog] = []

    def open_logs(self, slots: Iterable[int]) -> list[PartitionLog]:
        """Return the live logs in these slots, without the metadata log, whose records must stay."""
        logs = (self._manager.logs.get(slot) for slot in slots if slot != METADATA_SLOT)
        return [log for log in logs if log is not None and log.state.flags == PartitionFlag.PARTITION_LIVE]

    def until_measured(self, logs: Iterable[PartitionLog]) -> Generator[None, None, None]:
        """Yield until the I/O thread has measured `logs`. Skip logs whose files compaction is swapping.

        If the tier has changed the file of a log's remote segments, the thread reads it again. A log that
        turns out to be an older copy goes offline.
        """
        for log in logs:
            version = self._remote_version(log)
            if version != log.remote_version:
                job = partial(read_remote, log, version, self._older)
                self._manager.io_thread.submit(job, log.state.log_dir)
            unknown = [segment for segment in log.sealed if segment.size < 0]
            if unknown and not log.is_swapping:
                self._manager.io_thread.submit(partial(measure, log.directory, unknown), log.state.log_dir)
        yield from self._manager.io_thread.catching_up()
        while self._older:
            self._take_offline(self._older.pop())

    def _take_offline(self, log: PartitionLog) -> None:
        """Refuse all requests for an older copy, which would give offsets out again (see `read_remote`)."""
        if self._manager.is_served(log):
            log.state.flags = PartitionFlag.PARTITION_OFFLINE
            log.state.publish(self._manager.table)

    def _remote_version(self, log: PartitionLog) -> int:
        return version_of(self._remote_words.load(log.state.table_slot), log.state.generation)

    def stored(self, log: PartitionLog) -> RemoteSegments:
        """Return the segments that the object store certainly has; none if the tier has not said so.

        The tier's file outlasts the broker. It counts only once the tier of this start has seen the store and
        set the partition's word. If the word has changed since the file was read, the file may name segments
        that are to be removed: it counts again after the next reading.
        """
        version = self._remote_version(log)
        return log.remote if version and version == log.remote_version else NO_SEGMENTS

    def segments_of(self, log: PartitionLog) -> list[Segment]:
        """Return the log's segments, the active one last; [] if they cannot be read."""
        try:
            largest_ms = log.largest_ms()
        except OSError as error:
            self.cannot_reach(log, error)
            return []
        state = log.state
        ends = [*(segment.base for segment in log.sealed[1:]), state.segment_base]
        sealed = [
            Segment(segment.base, end, segment.size, segment.largest_ms)
            for segment, end in zip(log.sealed, ends, strict=False)
        ]
        active = Segment(state.segment_base, state.log_end, state.size, largest_ms, is_active=True)
        return [*sealed, active]

    def cannot_reach(self, log: PartitionLog, error: OSError) -> None:
        """Report an online log's I/O error. Unless it is temporary, take the log directory offline."""
        if log.state.is_offline:
            return
        _log.error("%s: its segments cannot be reached: %s", log.directory, error)
        if error.errno not in PASSING:
            self._manager.turn.storage_failed(log.state.log_dir, error.errno or 0)


# ---- in the I/O thread ----


def read_remote(log: PartitionLog, version: int, older: list[PartitionLog]) -> None:
    """Read which segments the object store has. `version`: the tier's word as it was before the call.

    A log that ends before these segments do is added to `older`.
    """
    try:
        found = read_remote_segments(log.directory)
    except CheckpointCorrupt as error:
        _log.error("%s: local retention waits until the tier has written it again: %s", log.name, error)
        log.remote_version = 0
        return
    if found.end > (end := log.state.log_end):
        _log.error(
            "%s: %s ends at offset %d, and the object store has its offsets up to %d: it is an older copy, "
            "and they would be given to other records. The partition is offline, and no local segment "
            "is deleted. Stop the broker and restore the directory, or delete the topic",
            log.name,
            log.directory,
            end,
            found.end - 1,
        )
        older.append(log)
        found = NO_SEGMENTS
    log.remote, log.remote_version = found, version


def measure(directory: Path, segments: list[Sealed]) -> None:
    """Fill in sizes and times of `segments`. One that was deleted by hand counts as empty and very old."""
    for segment in segments:
        try:
            status = (directory / segment_name(segment.base)).stat()
        except FileNotFoundError:
            segment.largest_ms = segment.size = 0
            continue
        largest_ms = _largest_ms(directory, segment.base, status.st_size)
        segment.largest_ms = largest_ms if largest_ms >= 0 else status.st_mtime_ns // 1_000_000
        segment.size = status.st_size
        segment.first_ms = _first_ms(directory, segment.base, status.st_size)


@contextlib.contextmanager
def _opened(directory: Path, base: int, suffix: str) -> Generator[int, None, None]:
    """Yield a descriptor of a segment's file `suffix`, -1 if it does not exist. Close it at the end."""
    try:
        fd = os.open(directory / segment_name(base, suffix), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield -1
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _first_ms(directory: Path, base: int, size: int) -> int:
    """Return the largest timestamp of a segment's first batch, in ms; -1 if the segment has no batch."""
    with _opened(directory, base, LOG_SUFFIX) as fd:
        batch = scan.find_offset(fd, 0, size, base) if fd >= 0 else None
    return batch.max_timestamp if batch is not None else -1


def _largest_ms(directory: Path, base: int, size: int) -> int:
    """Return the largest timestamp of a sealed segment, in ms; -1 if it has no batch.

    Use the last entry of the time index, written when the segment is sealed, if the log agrees with it. Else
    scan the batches.
    """
    with (
        _opened(directory, base, LOG_SUFFIX) as fd,
        _opened(directory, base, INDEX_SUFFIX) as index_fd,
        _opened(directory, base, TIME_INDEX_SUFFIX) as time_fd,
    ):
        if fd < 0:
            return -1
        found = time_before(fd, index_fd, time_fd, base, LATEST_TIME)[0] if time_fd >= 0 else -1
        if found >= 0:
            return found
        return max((batch.max_timestamp for batch in scan.batches(fd, 0, size)), default=-1)
