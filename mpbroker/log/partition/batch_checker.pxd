"""The check of one batch in a segment, given the offset that follows the previous batch."""
from libc.stdint cimport int64_t, uint8_t

cdef const char *judge(
    const uint8_t *p, int64_t length, int64_t next_offset, int64_t segment_base,
) noexcept nogil
