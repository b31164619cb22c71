"""The file system that a directory is on, to be synced as a whole by one call.

`syncfs` tells of each write-back that failed there since its descriptor was opened, also of files that are closed by now: who opens it
before they write hears of all that is theirs. (Linux from 5.8 on, and only of file systems that lie on a disk themselves: an overlay does
not hear of errors below it, and FUSE need not sync at all.)
"""
import os

from libc.errno cimport ENOSYS, EPERM, errno
from posix.unistd cimport close


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
    cdef int fd
    cdef object device
    cdef readonly bint is_synced_at_once

    def __cinit__(self, path):
        """Raises OSError."""
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

    def has(self, path) -> bool:
        """Whether that, which may be a descriptor, lies on it, and not, by a link or a mount, on another one. Raises OSError."""
        return os.stat(path).st_dev == self.device

    def sync(self) -> None:
        """All that was written before is on disk, if `is_synced_at_once`. Raises OSError."""
        cdef int failed
        with nogil:
            failed = syncfs(self.fd)
        if failed:
            raise OSError(errno, os.strerror(errno))


def set_aside(int fd, long long position, long long count) -> bool:
    """Gives the file room from `position` on and leaves its size; whether that is done. It is not on a full disk, nor where the file
    system knows no such thing."""
    cdef int failed
    with nogil:
        failed = fallocate(fd, FALLOC_FL_KEEP_SIZE, position, count)
    return failed == 0


def write_back(int fd, long long position, long long count) -> None:
    """Has the disk take what is dirty there, and waits for that. No sync: neither the disk's own buffer nor the file's size is written.
    Where that cannot be asked for it is left to the kernel, and to syncs. Raises OSError."""
    cdef int failed
    with nogil:
        failed = sync_file_range(
            fd, position, count, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER
        )
    if failed and errno not in (ENOSYS, EPERM):
        raise OSError(errno, os.strerror(errno))
