"""A task's range out of the mapped segment files.

Only windows are mapped, never whole segments: `spark.executor.pyspark.memory` limits the address space of a
worker. A mapping outlives the unlinking of its file, so retention can only take what has not been opened yet.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mpbroker.log.checkpoints import read_topic_id
from mpbroker.log.names import META_PROPERTIES, segment_name
from mpbroker.log.reader import SegmentGone
from mpbroker.records.errors import CorruptBatch
from spark_integration.columns import Columns
from spark_integration.errors import CorruptLog
from spark_integration.plan import LocalFiles, TaskRange, report_loss
from spark_integration.segments import Piece, opened, pieces, windows

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

WINDOW_BYTES = 64 << 20
# Linux 5.14 has it; before, pages come when they are touched. The module does not name it.
_MADV_POPULATE_READ = 22

# The cleaner may replace segments while they are read: what is left is looked for again.
TRIES = 100
_LOG = logging.getLogger("mpbroker.spark")


def is_here(files: LocalFiles) -> bool:
    """Whether this host has the log directory that the range was planned from."""
    return (Path(files.directory).parent / META_PROPERTIES).is_file()


def read_local(
    task: TaskRange, files: LocalFiles, columns: Columns, *, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """Raises DataLoss, CorruptLog, OSError."""
    start, tries = task.start, 0
    while True:
        try:
            directory = _directory_of(files)
            first, found = _pieces_of(directory, files, start, task.end)
        except _HasMoved as error:
            tries += 1
            if tries <= TRIES:
                continue
            report_loss(fail_on_data_loss, f"Cannot read {task}: {error}.")
            return
        except (SegmentGone, FileNotFoundError) as error:
            report_loss(fail_on_data_loss, f"Cannot read {task}: {error}.")
            return
        if first > start:
            lost = min(first, task.end) - 1
            report_loss(
                fail_on_data_loss,
                f"Cannot read offsets {start} to {lost} of {task}: the log starts at {first} now.",
            )
            start = first
        for piece in found:
            begun = max(start, piece.base)
            try:
                with opened(directory, piece.base, inode=piece.inode) as fd:
                    yield from _read_piece(directory, piece, fd, task, columns)
            except SegmentGone as error:
                start, tries = begun, tries + 1
                if tries > TRIES:
                    report_loss(fail_on_data_loss, f"Cannot read a part of {task}: {error}.")
                    return
                break
        else:
            return


class _HasMoved(Exception):
    """Between two looks at it."""


def _directory_of(files: LocalFiles) -> Path:
    """Where the partition is now: it may be in another log directory since. Raises SegmentGone."""
    planned = Path(files.directory)
    for directory in (planned, *(Path(log_dir) / planned.name for log_dir in files.log_dirs)):
        if directory.is_dir() and read_topic_id(directory) == files.topic_id:
            return directory
    if planned.is_dir():
        raise SegmentGone(f"{planned} belongs to another topic of that name now")
    raise SegmentGone(f"{planned} is gone")


def _pieces_of(directory: Path, files: LocalFiles, start: int, end: int) -> tuple[int, list[Piece]]:
    """Raises SegmentGone, FileNotFoundError, _HasMoved."""
    try:
        return pieces(directory, files.bound, start, end)
    except (SegmentGone, FileNotFoundError) as error:
        if not directory.is_dir() and _directory_of(files) != directory:
            raise _HasMoved(f"it is in another log directory than {directory} again and again") from error
        raise


def _read_piece(
    directory: Path, piece: Piece, fd: int, task: TaskRange, columns: Columns
) -> Iterator[pa.RecordBatch]:
    for position, end in windows(directory, piece, fd, WINDOW_BYTES):
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
            # The disk works on it while this one is decoded.
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
                "(the kernel's log says more), or the file became shorter",
                str(directory / segment_name(piece.base)),
            ) from error
        try:
            yield from columns.decode(window, position - mapped_from, end - mapped_from, task.start, task.end)
        except CorruptBatch as error:
            path = directory / segment_name(piece.base)
            raise CorruptLog(
                f"{path} is damaged at position {mapped_from + error.position}: {error.reason}, in {task}"
            ) from error


def _populate(window: mmap.mmap) -> None:
    """Touching a page that the disk does not give, or behind the end of the file, would end the process with
    SIGBUS: this way it is EFAULT. Raises OSError.
    """
    try:
        window.madvise(_MADV_POPULATE_READ)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
