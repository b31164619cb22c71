"""Zeroed memory whose unused pages cost nothing, wherever it is in the heap."""
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc
from posix.mman cimport MADV_DONTNEED, madvise
from posix.unistd cimport _SC_PAGESIZE, sysconf


cdef inline void *zeroed(size_t count, size_t size) noexcept nogil:
    """Allocate as calloc() does, for an array that may stay empty for long. free() frees it.

    calloc() writes zeros where the heap was used before. Whole pages of them are given back.
    """
    cdef uintptr_t page = <uintptr_t>sysconf(_SC_PAGESIZE)
    cdef void *made = calloc(count, size)
    cdef uintptr_t first = (<uintptr_t>made + page - 1) // page * page
    cdef uintptr_t end = (<uintptr_t>made + count * size) // page * page
    if made != NULL and first < end:
        madvise(<void *>first, end - first, MADV_DONTNEED)
    return made
