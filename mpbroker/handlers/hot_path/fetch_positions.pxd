"""Segments that consumers read, and byte positions of the offsets that they will fetch next.

    FetchPositions    READERS places; a partition table slot has one place, which it may lose to another slot
    Reader           the last SEGMENTS segments read of one partition
    Segment          its open files, and the last FOUND positions in the log file

A position belongs to an open file and is forgotten when the file is closed, since compaction puts another
file under the same name.

Only data in the page cache (resident data) is located here; Python has other data read from the disk
(`mpbroker.handlers.fetch.disk_prefetch`).
A part that was found resident counts as resident for WARM_MS, together with later appends. So a fetch at the
end of a log needs no system call to find out.

Python fills the places (`learn`) when it has served a fetch that the turn could not serve. The places are
private to one handler. An offset that is not among the positions is looked up in the segment's index, as in
`mpbroker.storage.reader`.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from mpbroker.ipc.table cimport Bound, version_in
from mpbroker.storage.scan cimport Chunk, ChunkBuffer
from shm.atomics cimport load_relaxed

cdef enum:
    READERS = 256
    SEGMENTS = 2                # each has two open files
    FOUND = 8
    WARM_MS = 1000

cdef struct Found:
    int64_t offset              # -1: none
    int64_t position

cdef struct Segment:
    int64_t base                # -1: none
    int fd
    int index_fd                # -1: none; the segment is scanned from its beginning
    uint64_t inode
    char *path
    uint32_t path_length
    uint32_t next_found         # place that is overwritten next
    Found found[FOUND]
    int64_t index_warm_ms       # when the index was found resident
    int64_t warm_from           # a resident part of the log file, ...
    int64_t warm_to             # ... up to here; NO_END if appends follow it
    int64_t warm_ms             # ... as tested at this time

cdef struct Reader:
    uint32_t slot
    uint32_t generation         # 0: free
    uint32_t log_dir            # of its segments: a partition may move
    uint32_t next_segment       # place that is overwritten next
    Segment segments[SEGMENTS]

cdef struct Spot:
    Segment *segment
    int64_t position            # of the batch with the offset
    int64_t limit               # first byte of the segment that is not visible

cdef struct PlacesRef:
    Reader *readers
    Chunk *chunk
    const uint64_t *damaged     # a word per slot (ipc/table.pxd)
    int64_t now_ms              # set before each search

cdef inline bint is_damaged(const PlacesRef *places, uint32_t slot, uint32_t generation) noexcept nogil:
    """Return True if some range of the partition is damaged. Only Python knows the ranges."""
    return version_in(load_relaxed(&places.damaged[slot]), generation) != 0

cdef Reader *reader_of(
    PlacesRef *places, uint32_t slot, uint32_t generation, uint32_t log_dir,
) noexcept nogil
cdef bint locate(
    PlacesRef *places, Reader *reader, int64_t offset, const Bound *bound, Spot *spot,
) noexcept nogil
cdef bint is_warm(
    const Spot *spot, int64_t length, const Bound *bound, int64_t now_ms,
) noexcept nogil
cdef int64_t first_batch_bytes(Spot *spot, Chunk *chunk) noexcept nogil
cdef void remember(Segment *segment, int64_t offset, int64_t position) noexcept nogil


cdef class FetchPositions:
    cdef PlacesRef ref
    cdef ChunkBuffer buffer
    cdef const unsigned char[::1] words
    cdef public int partitions_max      # with a place at a time: file descriptors are limited
    cdef _open(self, Segment *segment, int64_t base, bytes path)
