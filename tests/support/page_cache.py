"""Files and the page cache: what is not on the disk yet, and what is put out of memory."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import pytest

from mpbroker.storage.residency import resident
from shm.region import file_system_of

CACHESTAT = 451


class _Range(ctypes.Structure):
    _fields_ = (("from", ctypes.c_uint64), ("bytes", ctypes.c_uint64))


class _Cached(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recent")
    )


def unwritten_pages(path: Path, begin: int, count: int) -> int:
    """Return how many pages of a file are in the page cache and not on the disk (Linux 6.5: cachestat).

    The test is skipped where files are in memory alone.
    """
    if file_system_of(path.parent) == "tmpfs":
        pytest.skip("nothing is written back here: the directory is in memory")
    libc, found = ctypes.CDLL(None, use_errno=True), _Cached()
    with path.open("rb") as file:
        wanted = _Range(begin, count)
        if libc.syscall(CACHESTAT, file.fileno(), ctypes.byref(wanted), ctypes.byref(found), 0):
            code = ctypes.get_errno()
            if code == errno.ENOSYS:
                pytest.skip("this kernel does not tell what of a file is dirty")
            raise OSError(code, os.strerror(code))
    return int(found.dirty + found.writeback)


def evict(path: Path) -> None:
    """It is on the disk, and nowhere else; the test is skipped where files are in memory alone.

    Files that are open are read as before: the kernel keeps what it knows of a reader with the descriptor."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if resident(fd, 0, 1):
            pytest.skip("nothing leaves the page cache here: the directory is in memory")
    finally:
        os.close(fd)
