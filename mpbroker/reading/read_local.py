"""Reads a task's range from mapped segment files.

A part of a segment (a window) is mapped at a time, since `spark.executor.pyspark.memory` limits the address
space of a worker. An open segment stays readable even if retention deletes its file.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from mpbroker.reading.columns import Columns
from mpbroker.reading.errors import CorruptLog, SourceUnavailable
from mpbroker.reading.log_dirs import is_of, permission_needed
from mpbroker.reading.plan import LocalFiles, TaskRange, report_loss
from mpbroker.reading.segments import Piece, opened_piece, segment_ranges, windows
from mpbroker.reading.transactions import aborted_in, check_later_markers
from mpbroker.records.aborted import AbortedRanges
from mpbroker.records.errors import CorruptBatch
from mpbroker.storage.checkpoints import CheckpointCorrupt, read_topic_id
from mpbroker.storage.names import segment_name
from mpbroker.storage.reader import SegmentGone
from mpbroker.storage.remote_segments import read_remote_segments

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

WINDOW_BYTES = 64 << 20
Fetch: TypeAlias = "Callable[[TaskRange], Iterator[pa.RecordBatch]]"
"""Reads a range from the broker."""
# Exists since Linux 5.14; on older kernels pages come when they are touched. Python's mmap does not name it.
_MADV_POPULATE_READ = 22

# The cleaner may replace segments while they are read; then the rest of the range is looked up again.
TRIES = 100
_LOG = logging.getLogger("mpbroker.spark")


def is_here(files: LocalFiles) -> bool:
    """Return whether this host has the planned log directory.

    False for another broker's directory at the same path. Raises FilesUnavailable if this process may not
    read the directory.
    """
    directory = Path(files.directory)
    if not is_of(directory.parent, files.cluster_id, files.node_id):
        return False
    with permission_needed(directory), suppress(FileNotFoundError):
        # The partition may have moved to another log directory since, where it is read then.
        os.listdir(directory)  # noqa: PTH208
    return True


def read_local(
    task: TaskRange,
    files: LocalFiles,
    columns: Columns,
    *,
    fail_on_data_loss: bool,
    read_committed: bool,
    fetch: Fetch | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of the range. List the files again if some are replaced or moved meanwhile.

    `fetch` reads what the broker has moved to its object store since the range was planned; None: nobody can
    be asked. Raises DataLoss, CorruptLog, SourceUnavailable, OSError.
    """
    start, tries = task.start, 0
    aborted: AbortedRanges | None = None if read_committed else AbortedRanges()
    while True:
        try:
            directory = _directory_of(task.topic_id, files)
            with _moves_noticed(directory, task, files):
                if aborted is None:
                    # Read before any segment is opened: see `aborted_in`.
                    ranges = [*files.aborted, *aborted_in(directory, task.start, task.end)]
                    aborted = AbortedRanges(ranges, complete=True)
                first, found = segment_ranges(directory, files.bound, start, task.end)
        except _HasMoved as error:
            tries += 1
            if tries <= TRIES:
                continue
            report_loss(fail_on_data_loss, f"Cannot read {task}: {error}.")
            return
        except (SegmentGone, FileNotFoundError) as error:
            report_loss(fail_on_data_loss, f"Cannot read {task}: {error}.")
            return
        if first > start and _is_stored(directory, start):
            yield from _fetched(task, start, min(first, task.end), fetch)
            start = first
        if first > start:
            lost = min(first, task.end) - 1
            report_loss(
                fail_on_data_loss,
                f"Cannot read offsets {start} to {lost} of {task}: the log starts at {first} now.",
            )
            start = first
        for part in found:
            try:
                with opened_piece(directory, part) as piece:
                    yield from _read_piece(directory, piece, task, columns, aborted)
            except (SegmentGone, FileNotFoundError) as error:
                start, tries = part.start, tries + 1
                if tries > TRIES:
                    report_loss(fail_on_data_loss, f"Cannot read a part of {task}: {error}.")
                    return
                break
        else:
            _check_later_markers(task, files, aborted)
            return


def _is_stored(directory: Path, offset: int) -> bool:
    """Return whether the object store has an offset that the files lack. Raises CorruptLog."""
    try:
        return read_remote_segments(directory).end > offset
    except CheckpointCorrupt as error:
        raise CorruptLog(str(error)) from error


def _fetched(task: TaskRange, start: int, end: int, fetch: Fetch | None) -> Iterator[pa.RecordBatch]:
    """Yield the offsets [start, end) of the range from the broker. Raises SourceUnavailable."""
    away = replace(task, start=start, end=end, files=None)
    if fetch is None:
        raise SourceUnavailable(
            f"{away} are in the broker's object store since the query was planned. Give "
            "kafka.bootstrap.servers too (and readMode auto), so that tasks can fetch them"
        )
    yield from fetch(away)


class _HasMoved(Exception):
    """The partition moved to another log directory while its files were listed."""


def _directory_of(topic_id: bytes | None, files: LocalFiles) -> Path:
    """Return the partition's directory, which may have moved to another log directory. Raises SegmentGone."""
    planned = Path(files.directory)
    for directory in files.places():
        if directory.is_dir() and read_topic_id(directory) == topic_id:
            return directory
    if planned.is_dir():
        raise SegmentGone(f"{planned} belongs to another topic of that name now")
    raise SegmentGone(f"{planned} was deleted")


def _check_later_markers(task: TaskRange, files: LocalFiles, aborted: AbortedRanges) -> None:
    """Check the outcome of transactions that end after the task's range and were read as committed.

    Raises CorruptLog if a later marker aborts one of them. Checks nothing if the partition was deleted.
    """
    if not aborted.unmarked:
        return
    for _ in range(TRIES):
        with suppress(SegmentGone, FileNotFoundError):
            check_later_markers(_directory_of(task.topic_id, files), files.bound, task.end, aborted.unmarked)
            return


@contextmanager
def _moves_noticed(directory: Path, task: TaskRange, files: LocalFiles) -> Iterator[None]:
    """Turn errors of missing files into _HasMoved if the partition is in another log directory now."""
    try:
        yield
    except (SegmentGone, FileNotFoundError) as error:
        if not directory.is_dir() and _directory_of(task.topic_id, files) != directory:
            raise _HasMoved(f"it is in another log directory than {directory} again and again") from error
        raise


def _read_piece(
    directory: Path, piece: Piece, task: TaskRange, columns: Columns, aborted: AbortedRanges
) -> Iterator[pa.RecordBatch]:
    fd = piece.fd
    for position, end in windows(directory, piece, WINDOW_BYTES):
        mapped_from = position - position % mmap.ALLOCATIONGRANULARITY
        if os.fstat(fd).st_size < end:
            raise CorruptLog(
                f"{directory / segment_name(piece.base)} became shorter than {end} bytes while it was read"
            )
        window = mmap.mmap(
            fd, end - mapped_from, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED, offset=mapped_from
        )
        window.madvise(mmap.MADV_SEQUENTIAL)
        window.madvise(mmap.MADV_WILLNEED)
        if end < piece.end_position:
            # The disk reads the next window while this one is decoded.
            ahead = min(WINDOW_BYTES, piece.end_position - end)
            os.posix_fadvise(fd, end, ahead, os.POSIX_FADV_WILLNEED)
        try:
            _populate(window)
        except OSError as error:
            if error.errno != errno.EFAULT:
                raise
            raise OSError(
                errno.EIO,
                f"bytes {mapped_from} to {end} cannot be read, in {task}: the disk has an error there "
                "(see the kernel's log), or the file became shorter",
                str(directory / segment_name(piece.base)),
            ) from error
        try:
            yield from columns.decode(
                window, position - mapped_from, end - mapped_from, task.start, task.end, aborted
            )
        except CorruptBatch as error:
            path = directory / segment_name(piece.base)
            raise CorruptLog(
                f"{path} is damaged at position {mapped_from + error.position}: {error.reason}, in {task}"
            ) from error


def _populate(window: mmap.mmap) -> None:
    """Read the window's pages into memory.

    Raises OSError, with EFAULT for a page that the disk cannot read or that is beyond the end of the file:
    access to such a page would kill the process with SIGBUS.
    """
    try:
        window.madvise(_MADV_POPULATE_READ)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
