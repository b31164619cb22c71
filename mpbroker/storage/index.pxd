"""Layout of `.index` and `.timeindex` entries, and how they are appended (Kafka: OffsetIndex, TimeIndex).

Entries are big-endian; offsets are relative to the segment's base offset.

    .index      0  relative offset  i32   last offset of the batch
                4  position         i32   where this batch begins in the .log
    .timeindex  0  timestamp        i64   the largest seen in the segment ...
                8  relative offset  i32   ... up to this offset, the last one of its batch

Entries of zeros at the end are the unused tail of a file that Kafka has preallocated and mapped. mpbroker
appends entries to a file that is as long as its entries. Thus a full disk is an error and not a SIGBUS, a
kill leaves no tail of zeros, and thousands of partitions need no maps. An index is sparse: it stays valid
without an entry that could not be written.

Entries ascend. A start rebuilds the indexes if their last entry matches no batch (`index_sanity.py`). So a
new entry is at or below the last entry only if the segment is damaged. Such an entry is refused and counted,
and the count is logged when the segment ends (Kafka throws InvalidOffsetException). A full index refuses
entries, because its segment must end (`roll_due`).
"""
from libc.stdint cimport int32_t, int64_t, uint8_t
from posix.unistd cimport pwrite

from mpbroker.records.wire cimport store_u32, store_u64

cdef enum:
    OFFSET_ENTRY_BYTES = 8
    TIME_ENTRY_BYTES = 12
    LARGEST_RELATIVE = 0x7fffffff   # largest distance of an offset from its segment's base

cdef struct IndexRef:
    int fd                  # -1: the segment has no such file
    int64_t base            # of the segment
    int64_t entries
    int64_t room            # most entries the file may have
    int64_t last_key        # offset of the last entry, or its timestamp
    int64_t last_offset
    int64_t refused         # entries that were not above the last one

cdef inline bint index_full(const IndexRef *index) noexcept nogil:
    return index.entries >= index.room

cdef inline bint index_add(IndexRef *index, int64_t last_offset, int64_t position) noexcept nogil:
    """Append an entry to `.index`; return False if it was refused or could not be written."""
    cdef uint8_t entry[OFFSET_ENTRY_BYTES]
    if index_full(index) or last_offset - index.base > LARGEST_RELATIVE:
        return False
    if last_offset <= index.last_offset:
        index.refused += 1
        return False
    store_u32(entry, <int32_t>(last_offset - index.base))
    store_u32(entry + 4, <int32_t>position)
    if pwrite(index.fd, entry, OFFSET_ENTRY_BYTES, index.entries * OFFSET_ENTRY_BYTES) != OFFSET_ENTRY_BYTES:
        return False
    index.entries += 1
    index.last_key = index.last_offset = last_offset
    return True

cdef inline bint time_index_add(IndexRef *index, int64_t timestamp, int64_t offset, bint last) noexcept nogil:
    """Append an entry to `.timeindex` if it is later than the last one; return whether it was written.

    Only the final entry of the segment (`last`) may take the last slot.
    """
    cdef uint8_t entry[TIME_ENTRY_BYTES]
    if timestamp <= index.last_key or index.entries >= index.room - (0 if last else 1):
        return False
    if offset < index.last_offset:
        index.refused += 1
        return False
    store_u64(entry, <int64_t>timestamp)
    store_u32(entry + 8, <int32_t>(offset - index.base))
    if pwrite(index.fd, entry, TIME_ENTRY_BYTES, index.entries * TIME_ENTRY_BYTES) != TIME_ENTRY_BYTES:
        return False
    index.entries += 1
    index.last_key = timestamp
    index.last_offset = offset
    return True

cdef int64_t floor_entry(int fd, int64_t count, int size, int64_t key, uint8_t *found) noexcept nogil
