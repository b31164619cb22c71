"""The segments and positions that the fetch turn knows; `fetch_positions.pxd` lays them out."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy
from posix.fcntl cimport O_CLOEXEC, O_RDONLY, open as open_file
from posix.stat cimport fstat, stat, struct_stat
from posix.unistd cimport close

from mpbroker.ipc.slots cimport file_generation_of
from mpbroker.ipc.table cimport Bound
from mpbroker.records.wire cimport load_u32, load_u64
from mpbroker.records.batch cimport BASE_OFFSET_AT, BATCH_HEADER_BYTES, LAST_OFFSET_DELTA_AT
from mpbroker.handlers.hot_path.fetch_positions cimport (
    FOUND, READERS, SEGMENTS, Found, PlacesRef, Reader, Segment, Spot,
)
from mpbroker.storage.index cimport OFFSET_ENTRY_BYTES, floor_entry
from mpbroker.storage.residency cimport is_resident
from mpbroker.storage.scan cimport CHUNK_BYTES, Chunk, ChunkBuffer, batch_length, have
from shm.zeroed cimport zeroed

LOG_SUFFIX, INDEX_SUFFIX = b".log", b".index"
FILES_PER_PARTITION = 2 * SEGMENTS

cdef int64_t NO_END = <int64_t>1 << 62


cdef Reader *reader_of(
    PlacesRef *places, uint32_t slot, uint32_t generation, uint32_t log_dir,
) noexcept nogil:
    """Return the Reader of a partition with files in this log directory; NULL if it is not remembered."""
    cdef Reader *reader = &places.readers[slot % READERS]
    if (
        reader.generation == 0 or reader.slot != slot
        or reader.generation != generation or reader.log_dir != log_dir
    ):
        return NULL
    return reader


cdef int64_t file_bytes(int fd) noexcept nogil:
    cdef struct_stat status
    return status.st_size if fstat(fd, &status) == 0 else -1


cdef bint is_deleted(const Segment *segment) noexcept nogil:
    """Return True if one of the segment's open files is deleted."""
    cdef struct_stat status
    if segment.base < 0:
        return False
    if fstat(segment.fd, &status) == 0 and status.st_nlink == 0:
        return True
    return segment.index_fd >= 0 and fstat(segment.index_fd, &status) == 0 and status.st_nlink == 0


cdef int64_t limit_of(const Segment *segment, const Bound *bound) noexcept nogil:
    """Return the position of the first byte that is not visible; -1 if nothing of the segment is visible.

    Segments before the bound's segment are wholly visible. A file that ends before the bound counts as not
    visible: it is another file of the same name, since the partition has moved between log directories.
    """
    cdef int64_t size = file_bytes(segment.fd) if segment.base <= bound.segment_base else -1
    if segment.base == bound.segment_base:
        return bound.position if bound.position <= size else -1
    return size


cdef bint remembered(Reader *reader, int64_t offset, const Bound *bound, Spot *spot) noexcept nogil:
    cdef Segment *segment
    cdef int i, k
    for k in range(SEGMENTS):
        segment = &reader.segments[k]
        if segment.base < 0:
            continue
        for i in range(FOUND):
            if segment.found[i].offset == offset:
                spot.segment, spot.position = segment, segment.found[i].position
                spot.limit = limit_of(segment, bound)
                if spot.position < spot.limit:
                    return True
    return False


cdef bint is_warm(
    const Spot *spot, int64_t length, const Bound *bound, int64_t now_ms,
) noexcept nogil:
    """Return True if the visible part of `length` bytes from the spot on is in the page cache."""
    cdef Segment *segment = spot.segment
    cdef int64_t position = spot.position, end = min(position + length, spot.limit)
    cdef bint known = segment.warm_from <= position <= segment.warm_to
    if now_ms - segment.warm_ms > WARM_MS:
        known = False
    if known and end <= segment.warm_to:
        return True
    if not is_resident(segment.fd, position, end - position):
        return False
    if not known:
        segment.warm_from, segment.warm_ms = position, now_ms
    segment.warm_to = end
    if segment.base == bound.segment_base and end == bound.position:
        segment.warm_to = NO_END
    return True


cdef bint index_is_warm(Segment *segment, int64_t now_ms) noexcept nogil:
    if segment.index_fd < 0 or now_ms - segment.index_warm_ms <= WARM_MS:
        return True
    if not is_resident(segment.index_fd, 0, file_bytes(segment.index_fd)):
        return False
    segment.index_warm_ms = now_ms
    return True


cdef int64_t indexed(const Segment *segment, int64_t offset, int64_t *named) noexcept nogil:
    """Return the position of a batch at or before the offset; -1 if the index cannot be read.

    Sets `named` to the offset in the index entry, which that batch must contain; -1 if there is no entry.
    """
    cdef uint8_t entry[16]
    cdef int64_t bytes, place
    named[0] = -1
    if segment.index_fd < 0:
        return 0
    bytes = file_bytes(segment.index_fd)
    if bytes < 0:
        return -1
    place = floor_entry(
        segment.index_fd, bytes // OFFSET_ENTRY_BYTES, OFFSET_ENTRY_BYTES, offset - segment.base, entry,
    )
    if place == -1:
        return 0                # the offset is below the first entry
    if place < 0:
        return -1
    named[0] = segment.base + <int32_t>load_u32(entry)
    return <int32_t>load_u32(entry + 4)


cdef bint locate(
    PlacesRef *places, Reader *reader, int64_t offset, const Bound *bound, Spot *spot,
) noexcept nogil:
    """Set `spot` to the batch that contains the offset.

    Returns False if the offset is not in a known segment, or if finding it would wait for the disk.
    """
    cdef Chunk *chunk = places.chunk
    cdef const uint8_t *header
    cdef int64_t length, named
    cdef int i
    if remembered(reader, offset, bound, spot):
        return True
    spot.segment = NULL
    for i in range(SEGMENTS):
        if 0 <= reader.segments[i].base <= offset:
            if spot.segment == NULL or reader.segments[i].base > spot.segment.base:
                spot.segment = &reader.segments[i]
    if spot.segment == NULL or not index_is_warm(spot.segment, places.now_ms):
        return False
    spot.limit, spot.position = limit_of(spot.segment, bound), indexed(spot.segment, offset, &named)
    chunk.count = 0             # the chunk may hold another file
    while 0 <= spot.position < spot.limit:
        if not is_warm(spot, CHUNK_BYTES, bound, places.now_ms):
            return False
        header = have(chunk, spot.segment.fd, spot.position, BATCH_HEADER_BYTES, spot.limit)
        length = batch_length(header) if header != NULL else 0
        if length == 0 or (named >= 0 and <int64_t>load_u64(header + BASE_OFFSET_AT) > named):
            return False        # an entry with a later position would hide earlier batches
        named = -1
        if (
            <int64_t>load_u64(header + BASE_OFFSET_AT)
            + <int32_t>load_u32(header + LAST_OFFSET_DELTA_AT) >= offset
        ):
            remember(spot.segment, offset, spot.position)
            return True
        spot.position += length
    return False


cdef int64_t first_batch_bytes(Spot *spot, Chunk *chunk) noexcept nogil:
    """Return the length of the batch at the spot in bytes; 0 if it cannot be read."""
    cdef const uint8_t *header
    chunk.count = 0
    header = have(chunk, spot.segment.fd, spot.position, BATCH_HEADER_BYTES, spot.limit)
    return batch_length(header) if header != NULL else 0


cdef void remember(Segment *segment, int64_t offset, int64_t position) noexcept nogil:
    cdef Found *place = NULL
    cdef int i
    for i in range(FOUND):
        if segment.found[i].offset == offset:
            place = &segment.found[i]
    if place == NULL:
        place = &segment.found[segment.next_found % FOUND]
        segment.next_found += 1
    place.offset, place.position = offset, position


cdef void forget_segment(Segment *segment) noexcept:
    if segment.base >= 0:
        close(segment.fd)
        if segment.index_fd >= 0:
            close(segment.index_fd)
        free(segment.path)
    segment.base = -1


cdef void forget_reader(Reader *reader) noexcept:
    cdef int i
    if reader.generation:
        for i in range(SEGMENTS):
            forget_segment(&reader.segments[i])
        reader.generation = 0


cdef class FetchPositions:
    """The segment files and positions that Python gives to the fetch turn."""

    def __cinit__(self):
        self.buffer = ChunkBuffer(CHUNK_BYTES)
        self.ref.chunk = &self.buffer.chunk
        self.ref.readers = <Reader *>zeroed(READERS, sizeof(Reader))
        if self.ref.readers == NULL:
            raise MemoryError("no memory for the places of fetches")

    def __init__(self, const unsigned char[::1] damaged):
        """Remember no partition yet. `damaged`: a word per slot of the partition table (ipc/table.pxd)."""
        self.words = damaged
        self.partitions_max = READERS
        self.ref.damaged = <const uint64_t *>&damaged[0]

    def __dealloc__(self):
        if self.ref.readers != NULL:
            self.forget_all()
            free(self.ref.readers)

    def __len__(self) -> int:
        """Return the number of partitions that are remembered."""
        cdef int i
        return sum(self.ref.readers[i].generation != 0 for i in range(READERS))

    def learn(
        self, uint32_t slot, uint32_t generation, int64_t base, uint64_t inode, bytes path,
        uint32_t log_dir=0,
    ) -> None:
        """Remember the segment that a fetch was served from. Each partition keeps at most SEGMENTS segments.

        Partitions with the same `slot % READERS` share a place, in which a new partition replaces the former
        one. A free place is used only while fewer than `partitions_max` partitions are remembered.
        `generation` is at least 1.
        """
        cdef Reader *reader = &self.ref.readers[slot % READERS]
        cdef Segment *segment
        cdef int i
        if reader_of(&self.ref, slot, generation, log_dir) == NULL:
            if reader.generation == 0 and len(self) >= self.partitions_max:
                return
            forget_reader(reader)
            reader.slot, reader.generation, reader.log_dir = slot, generation, log_dir
            for i in range(SEGMENTS):
                reader.segments[i].base = -1
        for i in range(SEGMENTS):
            segment = &reader.segments[i]
            if segment.base == base and segment.inode == inode:
                return
            if segment.base == base:
                forget_segment(segment)     # another file has its name now
        segment = &reader.segments[reader.next_segment % SEGMENTS]
        reader.next_segment += 1
        forget_segment(segment)
        self._open(segment, base, path)

    cdef _open(self, Segment *segment, int64_t base, bytes path):
        cdef struct_stat status
        cdef bytes index = path.removesuffix(LOG_SUFFIX) + INDEX_SUFFIX
        cdef int fd = open_file(<const char *>path, O_RDONLY | O_CLOEXEC), i
        if fd < 0:
            return              # it was just deleted
        segment.path = <char *>malloc(len(path))
        if segment.path == NULL or fstat(fd, &status):
            close(fd)
            free(segment.path)
            return
        memcpy(segment.path, <const char *>path, len(path))
        segment.path_length, segment.fd = len(path), fd
        segment.inode = file_generation_of(status.st_ino, status.st_dev)
        segment.index_warm_ms = segment.warm_ms = -WARM_MS - 1
        for i in range(FOUND):
            segment.found[i].offset = -1
        segment.index_fd = open_file(<const char *>index, O_RDONLY | O_CLOEXEC)
        segment.base = base
        if (
            stat(<const char *>path, &status)
            or file_generation_of(status.st_ino, status.st_dev) != segment.inode
        ):
            # It was just cleaned: the index may belong to the new file.
            forget_segment(segment)

    def forget(self, uint32_t slot) -> None:
        """Forget a partition, because a processor has found another file at the path of a slice."""
        if self.ref.readers[slot % READERS].slot == slot:
            forget_reader(&self.ref.readers[slot % READERS])

    def forget_deleted(self) -> None:
        """Close files that were deleted: they keep their disk space for as long as they are open."""
        cdef int i, k
        for i in range(READERS):
            for k in range(SEGMENTS):
                if self.ref.readers[i].generation and is_deleted(&self.ref.readers[i].segments[k]):
                    forget_reader(&self.ref.readers[i])

    def forget_all(self) -> None:
        """Forget all partitions: a new log process may have cut or replaced files."""
        cdef int i
        for i in range(READERS):
            forget_reader(&self.ref.readers[i])
