"""Allocates zeroed memory whose untouched pages take no physical memory."""
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc
from posix.mman cimport MADV_DONTNEED, madvise
from posix.unistd cimport _SC_PAGESIZE, sysconf


cdef inline void *zeroed(size_t count, size_t size) noexcept nogil:
    """Allocate zeroed memory like calloc(), for an array that may stay empty. Free it with free().

    calloc() writes zeros to reused heap memory, and so touches its pages; this returns them to the kernel.
    """
    cdef uintptr_t page = <uintptr_t>sysconf(_SC_PAGESIZE)
    cdef void *made = calloc(count, size)
    cdef uintptr_t first = (<uintptr_t>made + page - 1) // page * page
    cdef uintptr_t end = (<uintptr_t>made + count * size) // page * page
    if made != NULL and first < end:
        madvise(<void *>first, end - first, MADV_DONTNEED)
    return made
