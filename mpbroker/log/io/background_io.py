"""Reads and writes of background work, on a disk where commits wait behind them.

Whoever commits has its few kilobytes written and waits for them; the disk takes them when it is through with
what it was given before. So background work gives it one small piece at a time, waits for that, and then
leaves the disk alone for as long as the piece took: it takes at most half of a disk, however fast that is.
Read-ahead and what is left to the kernel's write-back come in megabytes instead.
"""

from __future__ import annotations

import mmap
import os
import time

from mpbroker.log.format.checkpoints import write_all_at
from mpbroker.log.io.file_system import write_back
from mpbroker.log.io.pace import Stints
from mpbroker.log.io.residency import resident

# What the disk is given at a time, to be written, at least (`mpbroker.log.io.piece_size`).
PIECE_BYTES = 64 << 10
# What leaves the page cache at a time: the kernel hardly lets anybody in between.
STEP_BYTES = 4 << 20
# An overlay, as a container's own file system is, takes asking for write-back for done, and passes syncs on:
# there it is these by which the disk gets a file bit by bit.
SYNC_EVERY_BYTES = 64 << 20


def no_read_ahead(fd: int) -> None:
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)


def read(fd: int, count: int, position: int, *, leaves_cache: bool = False) -> tuple[bytes, float]:
    """-> the bytes, fewer at the end of the file, and for how many seconds the disk was at work for them; 0:
    all of them were in the page cache. `leaves_cache`: otherwise none of them will be there afterwards.
    Raises OSError.
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
    """These bytes leave the page cache, with all of the page in which they begin: what comes before them was
    read in front of them. What has yet to be written stays.
    """
    start = position - position % mmap.PAGESIZE
    os.posix_fadvise(fd, start, position + count - start, os.POSIX_FADV_DONTNEED)


def write(fd: int, piece: memoryview, position: int) -> float:
    """-> for how many seconds the disk was at work for it. It has it then, but may not keep it: who wants
    that syncs, which takes no longer than the disk's own buffer does. Raises OSError.
    """
    began = time.monotonic()
    write_all_at(fd, piece, position)
    write_back(fd, position, len(piece))
    return time.monotonic() - began


def leave_cache(fd: int) -> None:
    """The whole file, as far as the disk has it; with rests for those who want the CPU. Raises OSError."""
    stints = Stints()
    for position in range(0, os.fstat(fd).st_size, STEP_BYTES):
        drop(fd, position, STEP_BYTES)
        stints.rest_if_due()


def sync(fd: int) -> float:
    """-> how many seconds that took. Raises OSError."""
    began = time.monotonic()
    os.fdatasync(fd)
    return time.monotonic() - began
