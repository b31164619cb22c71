"""Tests whether parts of files are in the page cache (`residency.h`)."""
from libc.stdint cimport int64_t

cdef extern from "mpbroker/storage/residency.h" nogil:
    bint is_resident(int fd, int64_t position, int64_t length) noexcept
    bint pages_by_probes(int fd, int64_t position, int64_t length) noexcept
