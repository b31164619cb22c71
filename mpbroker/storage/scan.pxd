"""A chunk of a segment file in memory, and functions that read batches from it."""
from libc.stdint cimport int64_t, uint8_t

cdef enum:
    CHUNK_BYTES = 16384

cdef struct Chunk:
    uint8_t *bytes
    int64_t room
    int64_t start               # position in the file
    int64_t count
    int error                   # errno of a failed read, which is no end of the file

cdef const uint8_t *have(Chunk *chunk, int fd, int64_t position, int64_t need, int64_t end) noexcept nogil
cdef int64_t batch_length(const uint8_t *header) noexcept nogil


cdef class ChunkBuffer:
    cdef Chunk chunk
    cdef int raise_error(self) except -1
