"""The file system of a directory, synced as a whole by one call.

`syncfs` reports each write-back that has failed since its descriptor was opened, even if the file is closed
now. So a descriptor that was opened before the first write misses no failure. (This needs Linux 5.8 and a
file system directly on a disk: overlays do not report errors below them, and FUSE need not sync at all.)
"""
import os

from libc.errno cimport ENOSYS, EPERM, errno
from posix.unistd cimport close
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


cdef extern from "<sys/vfs.h>" nogil:
    cdef struct Described "statfs":
        long f_type

    int fstatfs(int fd, Described *into)

cdef extern from "<unistd.h>" nogil:
    int syncfs(int fd)

cdef extern from "<fcntl.h>" nogil:
    int fallocate(int fd, int mode, long long position, long long count)
    enum:
        FALLOC_FL_KEEP_SIZE
    int sync_file_range(int fd, long long position, long long count, unsigned int flags)
    enum:
        SYNC_FILE_RANGE_WAIT_BEFORE
        SYNC_FILE_RANGE_WRITE
        SYNC_FILE_RANGE_WAIT_AFTER

# ext2 to ext4, XFS, btrfs, F2FS, tmpfs.
_TOLD_OF_ERRORS = frozenset({0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x01021994})
_FIRST_LINUX = (5, 8)


def _linux() -> tuple:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()))


cdef class FileSystem:
    """An open file system. `is_synced_at_once`: `sync` can replace syncs of single files."""

    cdef int fd
    cdef object device
    cdef readonly bint is_synced_at_once

    def __cinit__(self, path: Path):
        """Open the file system of the directory `path`. Raises OSError."""
        cdef Described described
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if fstatfs(self.fd, &described) != 0:
            raise OSError(errno, os.strerror(errno), os.fspath(path))
        self.device = os.fstat(self.fd).st_dev
        self.is_synced_at_once = described.f_type in _TOLD_OF_ERRORS and _linux() >= _FIRST_LINUX

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)

    def has(self, path: Path | str | int) -> bool:
        """Return whether a path or descriptor lies on this file system. Raises OSError.

        A link or a mount may lead to another file system.
        """
        return os.stat(path).st_dev == self.device

    def sync(self) -> None:
        """Sync the file system. Raises OSError, but may miss a failed write unless `is_synced_at_once`."""
        cdef int failed
        with nogil:
            failed = syncfs(self.fd)
        if failed:
            raise OSError(errno, os.strerror(errno))


def set_aside(int fd, long long position, long long count) -> bool:
    """Allocate room in a file from `position` on, keeping its size; return whether that succeeded.

    A full disk, or a file system without such allocation, refuses.
    """
    cdef int failed
    with nogil:
        failed = fallocate(fd, FALLOC_FL_KEEP_SIZE, position, count)
    return failed == 0


def write_back(int fd, long long position, long long count) -> None:
    """Write dirty pages of a range to the disk and wait for that. Raises OSError.

    It does not sync: neither the disk's own buffer nor the file's size is written. Without kernel support it
    does nothing, and the kernel's own write-back and syncs do the work.
    """
    cdef int failed
    with nogil:
        failed = sync_file_range(
            fd, position, count,
            SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER,
        )
    if failed and errno not in (ENOSYS, EPERM):
        raise OSError(errno, os.strerror(errno))
