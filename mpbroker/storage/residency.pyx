"""Tests whether parts of files are in the page cache, for Python."""
from libc.stdint cimport int64_t

from mpbroker.storage.residency cimport is_resident, pages_by_probes


def resident(int fd, int64_t position, int64_t length, bint by_probes=False) -> bool:
    """Return whether `length` bytes, which the file has, can be read without waiting for the disk.

    `by_probes` probes pages, as is done where the kernel does not count them.
    """
    if by_probes:
        return pages_by_probes(fd, position, length)
    return is_resident(fd, position, length)
