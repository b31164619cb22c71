from libc.stdint cimport int64_t, uint8_t

from mpbroker.records.batch cimport BatchInfo

cdef struct Range:
    int64_t producer_id
    int64_t first_offset
    int64_t last_offset

cdef class AbortedRanges:
    cdef Range *ranges
    cdef Py_ssize_t count
    cdef set handed_out

    cdef bint covers(self, int64_t producer_id, int64_t offset) noexcept nogil
    cdef int note_batch(
        self, const uint8_t *p, int64_t length, const BatchInfo *info, bint is_handed_out, int64_t position
    ) except -1
