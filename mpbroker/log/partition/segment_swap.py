"""Replace segments by the cleaned segment made of them, safely if a crash interrupts any step.

(Kafka: LocalLog.replaceSegments, LogLoader.removeTempFilesAndCollectSwapFiles.) The steps:

1. All files of the new segment are renamed from `.cleaned` to `.swap`, then the directory is synced. From
   here on the new segment is complete, and recovery finishes the swap. Before that, recovery drops it.
2. The old index is removed, then the new log file replaces the old one atomically, then its indexes get their
   names. A reader that opens the log, then an index, and then still finds this log under its name, has a
   matching pair or no index, which is legal. It never has the index of one file with the log of another.
3. The other old segments are removed. A listing of the directory covers every offset at any time.
4. The directory is synced, and `.log.swap`, until now a second name of the new log file, is removed.

Removed files get the suffix `.deleted` and stay readable for processes that have them open. Kafka moves the
old log file away before it puts the new one in place; a reader could then miss the file.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from mpbroker.log.partition.partition_log import SEGMENT_FILES, remove_segment
from mpbroker.storage import names, scan
from mpbroker.storage.checkpoints import fsync_directory, opened
from mpbroker.storage.segments import offsets_of, segments_of

# A further name of the new log file, which is renamed over the old one.
_PLACING_SUFFIX = ".placing.tmp"
_log = logging.getLogger("mpbroker.log")


def begin_swap(fd: int, new: int) -> None:
    """Rename the new log file, which begins the swap. On OSError nothing is changed."""
    name = names.segment_name(new)
    os.rename(name + names.CLEANED_FILE_SUFFIX, name + names.SWAP_FILE_SUFFIX, src_dir_fd=fd, dst_dir_fd=fd)


def swap_in(fd: int, bases: Sequence[int]) -> None:
    """Replace the segments of `bases` by the new segment of the first base, after `begin_swap`.

    `fd` is the partition's directory. Raises OSError; a second call then continues where the first stopped.
    """
    new = bases[0]
    for suffix in names.INDEX_SUFFIXES:
        name = names.segment_name(new, suffix)
        _rename(fd, name + names.CLEANED_FILE_SUFFIX, name + names.SWAP_FILE_SUFFIX)
    os.fsync(fd)
    if not _is_placed(fd, names.segment_name(new)):
        for suffix in names.INDEX_SUFFIXES[:2]:
            _set_aside(fd, names.segment_name(new, suffix))
        aborted = names.segment_name(new, names.TXN_INDEX_SUFFIX)
        has_aborted = _exists(fd, aborted + names.SWAP_FILE_SUFFIX)
        _place_log(fd, names.segment_name(new))
        if not has_aborted:
            # Not earlier: the old log file must never be read without it. Beside the new one it does no harm.
            _set_aside(fd, aborted)
    for suffix in names.INDEX_SUFFIXES:
        name = names.segment_name(new, suffix)
        _rename(fd, name + names.SWAP_FILE_SUFFIX, name)
    for base in bases[1:]:
        for suffix in SEGMENT_FILES:
            _set_aside(fd, names.segment_name(base, suffix))
    os.fsync(fd)
    _unlink(fd, names.segment_name(new) + names.SWAP_FILE_SUFFIX)
    os.fsync(fd)


def _is_placed(fd: int, name: str) -> bool:
    try:
        return os.path.samestat(os.stat(name, dir_fd=fd), os.stat(name + names.SWAP_FILE_SUFFIX, dir_fd=fd))
    except FileNotFoundError:
        # Without its swap name (`begin_swap`) the swap is done and only has to become durable.
        return True


def _exists(fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=fd)
    except FileNotFoundError:
        return False
    return True


def _place_log(fd: int, name: str) -> None:
    """Replace the log file atomically, so that its name always exists; the new file keeps its swap name."""
    _unlink(fd, name + names.DELETED_FILE_SUFFIX)
    os.link(name, name + names.DELETED_FILE_SUFFIX, src_dir_fd=fd, dst_dir_fd=fd)
    _unlink(fd, name + _PLACING_SUFFIX)
    os.link(name + names.SWAP_FILE_SUFFIX, name + _PLACING_SUFFIX, src_dir_fd=fd, dst_dir_fd=fd)
    os.rename(name + _PLACING_SUFFIX, name, src_dir_fd=fd, dst_dir_fd=fd)


def _set_aside(fd: int, name: str) -> None:
    _rename(fd, name, name + names.DELETED_FILE_SUFFIX)


def _rename(fd: int, name: str, to: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.rename(name, to, src_dir_fd=fd, dst_dir_fd=fd)


def _unlink(fd: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=fd)


def finish_swaps(directory: Path) -> None:
    """Finish the swaps that a crash of this broker or of Kafka interrupted, and drop incomplete segments.

    Indexes, which may be of the old or of the new log file, are removed: opening the partition rebuilds them.
    Raises OSError.
    """
    swapped = offsets_of(directory, names.LOG_SUFFIX + names.SWAP_FILE_SUFFIX)
    cleaned = [
        base
        for suffix in (names.LOG_SUFFIX, *names.INDEX_SUFFIXES)
        for base in offsets_of(directory, suffix + names.CLEANED_FILE_SUFFIX)
    ]
    incomplete = [base for base in swapped if cleaned and base >= min(cleaned)]
    for base in incomplete:
        # The log file comes first: without it the other files mean nothing.
        for suffix in (names.LOG_SUFFIX, *names.INDEX_SUFFIXES):
            (directory / names.segment_name(base, suffix + names.SWAP_FILE_SUFFIX)).unlink(missing_ok=True)
    if len(incomplete) < len(swapped):
        # The new segment's name may not be on disk yet, and old segments are about to be removed.
        fsync_directory(directory)
    for base in swapped:
        if base not in incomplete:
            _finish(directory, base)
    for suffix in names.INDEX_SUFFIXES:
        for base in offsets_of(directory, suffix + names.SWAP_FILE_SUFFIX):
            (directory / names.segment_name(base, suffix + names.SWAP_FILE_SUFFIX)).unlink()


def _finish(directory: Path, base: int) -> None:
    swap = directory / names.segment_name(base, names.LOG_SUFFIX + names.SWAP_FILE_SUFFIX)
    end = end_of(swap, base)
    _log.warning("%s: a cleaned segment, of offsets %d to %d, replaces the old one", directory, base, end - 1)
    for other in segments_of(directory):
        if base < other < end:
            remove_segment(directory, other)
    for suffix in names.INDEX_SUFFIXES[:2]:
        for more in ("", names.SWAP_FILE_SUFFIX):
            (directory / names.segment_name(base, suffix + more)).unlink(missing_ok=True)
    aborted = directory / names.segment_name(base, names.TXN_INDEX_SUFFIX)
    with contextlib.suppress(FileNotFoundError):
        aborted.with_name(aborted.name + names.SWAP_FILE_SUFFIX).rename(aborted)
    with opened(directory, os.O_DIRECTORY) as fd:
        placing = names.segment_name(base) + _PLACING_SUFFIX
        _unlink(fd, placing)
        os.link(swap.name, placing, src_dir_fd=fd, dst_dir_fd=fd)
        os.rename(placing, names.segment_name(base), src_dir_fd=fd, dst_dir_fd=fd)
        # rename() does nothing, and leaves both names, when both are of one file.
        _unlink(fd, placing)
        os.fsync(fd)
        os.unlink(swap.name, dir_fd=fd)
        os.fsync(fd)


def end_of(path: Path, base: int) -> int:
    """Return a segment's last offset + 1; `base` if it is empty. Raises OSError."""
    with opened(path) as fd:
        last = scan.last_batch(fd, 0, os.fstat(fd).st_size)
    return last.last_offset + 1 if last is not None else base
