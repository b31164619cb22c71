"""Lets Python test whether parts of files are in the page cache."""
from libc.stdint cimport int64_t

from mpbroker.storage.residency cimport is_resident, pages_by_probes


def resident(int fd, int64_t position, int64_t length, bint by_probes=False) -> bool:
    """Return whether `length` bytes at `position` can be read without waiting for the disk.

    The file must have all these bytes. `by_probes` forces the slower method (for kernels without cachestat).
    """
    if by_probes:
        return pages_by_probes(fd, position, length)
    return is_resident(fd, position, length)
