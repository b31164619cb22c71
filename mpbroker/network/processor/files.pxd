"""The table of open segment files, keyed by (slot, slot generation, segment base, inode)."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    FILE_PLACES = 4096          # a power of two; at most half are used
    OPEN_FILES_MAX = 2048

cdef struct OpenFile:
    int fd                      # -1: the place is empty
    uint32_t slot
    uint32_t slot_generation
    uint32_t users              # channels that are sending from it
    int64_t segment_base
    uint64_t inode
    uint64_t used               # running number of the last use

cdef struct FileTable:
    OpenFile places[FILE_PLACES]
    uint32_t count
    uint32_t most               # files that may be open; beyond half of it, idle ones are closed
    bint released               # a file lost its last user since Python looked at the waiting answers
    uint64_t next_closing_ns    # when deleted files are closed
    uint64_t clock
    # `used` from which on a file is needed by the answer whose files are being opened
    uint64_t wanted_from

cdef inline uint32_t file_hash(
    uint32_t slot, uint32_t slot_generation, int64_t segment_base, uint64_t inode
) noexcept nogil:
    cdef uint64_t h = (<uint64_t>slot << 32 | slot_generation) * <uint64_t>0x9E3779B97F4A7C15
    h ^= (<uint64_t>segment_base + inode) * <uint64_t>0xC2B2AE3D27D4EB4F
    return <uint32_t>((h ^ (h >> 29)) & (FILE_PLACES - 1))

cdef inline OpenFile *file_find(
    FileTable *table, uint32_t slot, uint32_t slot_generation, int64_t segment_base, uint64_t inode
) noexcept nogil:
    cdef uint32_t place = file_hash(slot, slot_generation, segment_base, inode)
    cdef OpenFile *entry
    while True:
        entry = &table.places[place]
        if entry.fd < 0:
            return NULL
        if (
            entry.slot == slot and entry.slot_generation == slot_generation
            and entry.segment_base == segment_base and entry.inode == inode
        ):
            table.clock += 1
            entry.used = table.clock
            return entry
        place = (place + 1) & (FILE_PLACES - 1)

cdef void place_file(FileTable *files, const OpenFile *file) noexcept nogil
cdef int forget_files(FileTable *files) except -1
cdef bint has_room(FileTable *files, uint32_t more) except -1
cdef void close_deleted(FileTable *files, uint64_t now_ns) noexcept nogil
