"""Where fetches begin: segments that consumers are reading, and byte positions of the offsets that they will ask for next.

    SegmentPlaces    READERS places; a partition table slot has one place, which it may lose to another slot
    Reader           the last SEGMENTS segments that were read of one partition, the last FOUND positions in them

Filled by Python (`learn`) when it has served a fetch that the turn could not; private to one handler. An offset
that is not among the positions is looked up in the segment's index, as `mpbroker.log.reader` does it.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from mpbroker.ipc.table cimport Bound, damage_version
from mpbroker.log.scan cimport Chunk, ChunkBuffer
from shm.atomics cimport load_relaxed

cdef enum:
    READERS = 256
    SEGMENTS = 2                # two files open of each
    FOUND = 8

cdef struct Segment:
    int64_t base                # -1: none
    int fd
    int index_fd                # -1: it has none, and is scanned from its beginning
    uint64_t inode
    char *path
    uint32_t path_length

cdef struct Found:
    int64_t offset              # -1: none
    int64_t base
    int64_t position

cdef struct Reader:
    uint32_t slot
    uint32_t generation         # 0: free
    uint32_t next_segment       # which is overwritten next
    uint32_t next_found
    Segment segments[SEGMENTS]
    Found found[FOUND]

cdef struct Spot:
    Segment *segment
    int64_t position            # of the batch with the offset
    int64_t limit               # the first byte of the segment that may not be seen

cdef struct PlacesRef:
    Reader *readers
    Chunk *chunk
    const uint64_t *damaged     # a word per slot (ipc/table.pxd)

cdef inline bint is_damaged(const PlacesRef *places, uint32_t slot, uint32_t generation) noexcept nogil:
    """Something of the partition is: only Python knows what."""
    return damage_version(load_relaxed(&places.damaged[slot]), generation) != 0

cdef Reader *reader_of(PlacesRef *places, uint32_t slot, uint32_t generation) noexcept nogil
cdef bint locate(Reader *reader, int64_t offset, const Bound *bound, Chunk *chunk, Spot *spot) noexcept nogil
cdef int64_t first_batch_bytes(Spot *spot, Chunk *chunk) noexcept nogil
cdef void remember(Reader *reader, int64_t offset, int64_t base, int64_t position) noexcept nogil


cdef class SegmentPlaces:
    cdef PlacesRef ref
    cdef ChunkBuffer buffer
    cdef const unsigned char[::1] words
    cdef _open(self, Segment *segment, int64_t base, bytes path)
