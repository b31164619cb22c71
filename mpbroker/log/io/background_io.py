"""Reads and writes of background work, on a disk that commits wait for.

A commit writes a few kilobytes and waits for all earlier requests of the disk. So background work gives the
disk one small piece at a time, waits for it, and then leaves the disk idle for as long as the piece took. It
uses at most half of the disk's time, however fast the disk is. Read-ahead and the kernel's own write-back are
avoided, since they transfer megabytes at a time.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import time
from pathlib import Path

from mpbroker.log.io.file_system import write_back
from mpbroker.log.io.pace import Stints
from mpbroker.storage.checkpoints import opened, write_all_at
from mpbroker.storage.residency import resident

# The least that is written at a time (`PieceSize`).
PIECE_BYTES = 64 << 10
# Dropped from the page cache at a time: the kernel hardly lets other threads run meanwhile.
STEP_BYTES = 4 << 20
# An overlay, a container's own file system, ignores a request for write-back but passes syncs on: there only
# syncs give the disk a file bit by bit.
SYNC_EVERY_BYTES = 64 << 20


def no_read_ahead(fd: int) -> None:
    """Turn off the kernel's read-ahead for an open file."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)


def read(fd: int, count: int, position: int, *, leaves_cache: bool = False) -> tuple[bytes, float]:
    """Return `count` bytes (fewer at the end of the file), and the seconds that the disk took for them.

    The time is 0 if all bytes were in the page cache. If they were not, `leaves_cache` drops them from the
    cache again. Raises OSError.
    """
    was_there, began = resident(fd, position, count), time.monotonic()
    data = os.pread(fd, count, position)
    while len(data) < count and (more := os.pread(fd, count - len(data), position + len(data))):
        data += more
    took_s = time.monotonic() - began
    if leaves_cache and not was_there:
        drop(fd, position, len(data))
    return data, 0.0 if was_there else took_s


def drop(fd: int, position: int, count: int) -> None:
    """Drop a range of bytes from the page cache, from the start of its first page on. Dirty pages stay."""
    start = position - position % mmap.PAGESIZE
    os.posix_fadvise(fd, start, position + count - start, os.POSIX_FADV_DONTNEED)


def write(fd: int, piece: memoryview, position: int) -> float:
    """Write a piece, wait for its write-back but not for a sync; return the seconds taken. Raises OSError."""
    began = time.monotonic()
    write_all_at(fd, piece, position)
    write_back(fd, position, len(piece))
    return time.monotonic() - began


def leave_cache(fd: int) -> None:
    """Drop a file's clean pages from the page cache, in small steps with pauses. Raises OSError."""
    stints = Stints()
    for position in range(0, os.fstat(fd).st_size, STEP_BYTES):
        drop(fd, position, STEP_BYTES)
        stints.rest_if_due()


def sync(fd: int) -> float:
    """Sync a file's data. Return how many seconds the sync took. Raises OSError."""
    began = time.monotonic()
    os.fdatasync(fd)
    return time.monotonic() - began


def remove_file(path: Path) -> None:
    """Remove a file if it exists, without delaying clients. Raises OSError.

    Unlinking a file drops all its pages from the page cache at once, 60 us for each MiB, and the kernel
    hardly lets other threads run meanwhile: tens of milliseconds for a segment, many times when a topic is
    deleted. So the pages are dropped first, in small steps with rests. A process that still has the file open
    reads it from the disk.
    """
    with contextlib.suppress(FileNotFoundError):
        if path.is_file() and not path.is_symlink():
            _leave_cache(path)
        path.unlink()


def remove_tree(directory: Path) -> None:
    """Remove a directory that may be partly removed already. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        for path in list(directory.iterdir()):
            if not path.is_dir() or path.is_symlink():
                remove_file(path)
        shutil.rmtree(directory)


def _leave_cache(path: Path) -> None:
    with opened(path) as fd:
        leave_cache(fd)
