"""Native search for batches in a segment file (Kafka: FileRecords).

Files are read with pread, never mapped: the active segment can still shrink under a map.
"""
from libc.errno cimport ENOMEM, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t
from libc.stdlib cimport free, malloc, realloc
from posix.unistd cimport pread

from mpbroker.records.markers cimport Marker, read_marker
from mpbroker.records.wire cimport load_u16, load_u32, load_u64
from mpbroker.records.batch cimport (
    ATTRIBUTES_AT, BASE_OFFSET_AT, BATCH_HEADER_BYTES, BATCH_LENGTH_AT, CONTROL_BIT, CURRENT_MAGIC,
    LAST_OFFSET_DELTA_AT, LEADER_EPOCH_AT, LENGTH_COUNTS_FROM, MAGIC_AT, MAX_TIMESTAMP_AT, PRODUCER_ID_AT,
    RECORD_COUNT_AT, TRANSACTIONAL_BIT,
)
from mpbroker.storage.scan cimport CHUNK_BYTES, Chunk, ChunkBuffer
import os
from typing import NamedTuple

from mpbroker.records.errors import CorruptBatch

# A literal would be folded into a constant that C takes for unsigned.
cdef extern from "<stdint.h>" nogil:
    const int64_t INT64_MIN


class BatchAt(NamedTuple):
    base_offset: int
    last_offset: int
    position: int
    length: int
    max_timestamp: int
    leader_epoch: int


cdef const uint8_t *have(Chunk *chunk, int fd, int64_t position, int64_t need, int64_t end) noexcept nogil:
    """Return a pointer to `need` bytes at `position`; NULL if `end` comes before, or the read fails.

    If the read fails, `chunk.error` is set to its errno.
    """
    cdef ssize_t got
    cdef int64_t want
    cdef uint8_t *grown
    if position >= chunk.start and position + need <= chunk.start + chunk.count:
        return chunk.bytes + (position - chunk.start)
    if position + need > end:
        return NULL
    if need > chunk.room:
        grown = <uint8_t *>realloc(chunk.bytes, need)
        if grown == NULL:
            chunk.error = ENOMEM
            return NULL
        chunk.bytes = grown
        chunk.room = need
    want = chunk.room if chunk.room < end - position else end - position
    chunk.start = position
    chunk.count = 0
    while chunk.count < want:
        got = pread(fd, chunk.bytes + chunk.count, want - chunk.count, position + chunk.count)
        if got < 0 and chunk.count >= need:
            break               # the failed part is not needed yet
        if got < 0 and want > need:
            want = need         # the bad sector may be after the needed bytes
            continue
        if got < 0:
            chunk.error = errno
            return NULL
        if got == 0:
            break
        chunk.count += got
    return chunk.bytes if chunk.count >= need else NULL


cdef int64_t batch_length(const uint8_t *header) noexcept nogil:
    """Return the length of the batch in bytes; 0 if this is not a valid header of magic 2."""
    cdef int64_t length = <int64_t><int32_t>load_u32(header + BATCH_LENGTH_AT) + LENGTH_COUNTS_FROM
    if length < BATCH_HEADER_BYTES or header[MAGIC_AT] != CURRENT_MAGIC:
        return 0
    return length


cdef const uint8_t *whole_batch(
    Chunk *chunk, int fd, int64_t position, int64_t end, int64_t *length,
) noexcept nogil:
    """Return the header of the batch at `position` and set `length`.

    Returns NULL if no whole batch is between `position` and `end`, or if the read fails (`chunk.error`).
    """
    cdef const uint8_t *p = have(chunk, fd, position, BATCH_HEADER_BYTES, end)
    length[0] = batch_length(p) if p != NULL else 0
    return p if length[0] and position + length[0] <= end else NULL


cdef class ChunkBuffer:
    """A chunk and its memory, which is freed with this object."""

    def __cinit__(self, int64_t room):
        self.chunk.bytes = <uint8_t *>malloc(room)
        if self.chunk.bytes == NULL:
            raise MemoryError()
        self.chunk.room = room
        self.chunk.start = self.chunk.count = self.chunk.error = 0

    def __dealloc__(self):
        free(self.chunk.bytes)

    cdef int raise_error(self) except -1:
        """Raise OSError if a read failed, which otherwise would look like the end of the batches."""
        if self.chunk.error:
            raise OSError(self.chunk.error, f"a segment cannot be read: {os.strerror(self.chunk.error)}")
        return 0


cdef object found(const uint8_t *p, int64_t position, int64_t length):
    base = <int64_t>load_u64(p + BASE_OFFSET_AT)
    last = base + <int32_t>load_u32(p + LAST_OFFSET_DELTA_AT)
    return BatchAt(
        base, last, position, length,
        <int64_t>load_u64(p + MAX_TIMESTAMP_AT), <int32_t>load_u32(p + LEADER_EPOCH_AT),
    )


cdef object search(int fd, int64_t position, int64_t end, int64_t offset, int64_t timestamp, bint strict):
    """Find the first batch from `position` that reaches both `offset` and `timestamp`; None if there is none.

    "Reaches" means that the last offset and the maximum timestamp are at least these. A batch whose header
    extends beyond `end` is not found. With `strict`, CorruptBatch is raised for an invalid batch, and for a
    batch whose header ends within `end` but whose records extend beyond. Raises OSError.
    """
    cdef ChunkBuffer buffer = ChunkBuffer(CHUNK_BYTES)
    cdef const uint8_t *p = NULL
    cdef int64_t length = 0
    cdef bint hit = False, is_batch = True
    with nogil:
        while True:
            p = have(&buffer.chunk, fd, position, BATCH_HEADER_BYTES, end)
            if p == NULL:
                break
            length = batch_length(p)
            if length == 0:
                is_batch = False
                break
            hit = (
                <int64_t>load_u64(p + BASE_OFFSET_AT) + <int32_t>load_u32(p + LAST_OFFSET_DELTA_AT) >= offset
                and <int64_t>load_u64(p + MAX_TIMESTAMP_AT) >= timestamp
                # The cleaner leaves headers of batches without records.
                and (timestamp == INT64_MIN or load_u32(p + RECORD_COUNT_AT) != 0)
            )
            if hit:
                break
            position += length
    buffer.raise_error()
    if strict and not is_batch:
        raise CorruptBatch(position, "its length or magic is impossible")
    if strict and hit and position + length > end:
        raise CorruptBatch(position, "it reaches beyond the end")
    if strict and not hit and length and position > end:
        raise CorruptBatch(position - length, "it reaches beyond the end")
    return found(p, position, length) if hit else None


def find_offset(int fd, int64_t position, int64_t end, int64_t offset, bint strict=False) -> BatchAt | None:
    """Find the first batch from `position` whose last offset is not below `offset`; None if there is none.

    Raises OSError, and if `strict` also CorruptBatch.
    """
    return search(fd, position, end, offset, INT64_MIN, strict)


def find_timestamp(
    int fd, int64_t position, int64_t end, int64_t offset, int64_t timestamp_ms, bint strict=False,
) -> BatchAt | None:
    """Find the first batch from `position` that reaches `offset` and has a record at `timestamp_ms` or later.

    The batch's last offset is at least `offset`. Returns None if there is no such batch. Raises OSError, and
    if `strict` also CorruptBatch.
    """
    return search(fd, position, end, offset, timestamp_ms, strict)


def batches(int fd, int64_t position, int64_t end) -> list[BatchAt]:
    """Return all whole batches in the bytes [position, end) of a file. Raises OSError."""
    cdef ChunkBuffer buffer = ChunkBuffer(CHUNK_BYTES)
    cdef const uint8_t *p
    cdef int64_t length
    out = []
    while True:
        p = whole_batch(&buffer.chunk, fd, position, end, &length)
        if p == NULL:
            buffer.raise_error()
            return out
        out.append(found(p, position, length))
        position += length


def last_batch(int fd, int64_t position, int64_t end) -> BatchAt | None:
    """Find the last whole batch in [position, end); None if there is none. Raises OSError.

    Unlike `batches` this builds no list, since a segment may have millions of batches.
    """
    cdef ChunkBuffer buffer = ChunkBuffer(CHUNK_BYTES)
    cdef const uint8_t *p
    cdef int64_t length, before = -1
    with nogil:
        while True:
            p = whole_batch(&buffer.chunk, fd, position, end, &length)
            if p == NULL:
                break
            before = position
            position += length
        p = (
            have(&buffer.chunk, fd, before, BATCH_HEADER_BYTES, end)
            if before >= 0 and buffer.chunk.error == 0 else NULL
        )
    buffer.raise_error()
    return found(p, before, position - before) if p != NULL else None


def epochs_in(int fd, int64_t position, int64_t end) -> list[tuple[int, int]]:
    """List (epoch, base offset) of each batch whose leader epoch differs from the batch before.

    Only headers are read. Raises OSError.
    """
    cdef ChunkBuffer buffer = ChunkBuffer(CHUNK_BYTES)
    cdef const uint8_t *p
    cdef int64_t length
    cdef int32_t epoch, before = -1
    out = []
    with nogil:
        while True:
            p = whole_batch(&buffer.chunk, fd, position, end, &length)
            if p == NULL:
                break
            epoch = <int32_t>load_u32(p + LEADER_EPOCH_AT)
            if epoch != before and epoch >= 0:
                before = epoch
                with gil:
                    out.append((epoch, <int64_t>load_u64(p + BASE_OFFSET_AT)))
            position += length
    buffer.raise_error()
    return out


def transaction_steps(int fd, int64_t position, int64_t end) -> list[tuple[int, int, int]]:
    """List (producer id, base offset, marker) of whole transactional batches. Raises OSError.

    The marker is ABORT or COMMIT of mpbroker.records.markers, or -1 for a data batch. Of data batches of one
    producer that have no other transactional batch between them, the list has only the first.
    """
    cdef ChunkBuffer buffer = ChunkBuffer(CHUNK_BYTES)
    cdef const uint8_t *p
    cdef int64_t length, producer_id, before = -1
    cdef uint16_t attributes
    cdef Marker marker
    out = []
    with nogil:
        while True:
            p = whole_batch(&buffer.chunk, fd, position, end, &length)
            if p == NULL:
                break
            attributes = load_u16(p + ATTRIBUTES_AT)
            if attributes & TRANSACTIONAL_BIT:
                producer_id = <int64_t>load_u64(p + PRODUCER_ID_AT)
                if not attributes & CONTROL_BIT:
                    if producer_id != before:
                        before = producer_id
                        with gil:
                            out.append((producer_id, <int64_t>load_u64(p + BASE_OFFSET_AT), -1))
                else:
                    p = have(&buffer.chunk, fd, position, length, end)
                    if p == NULL:
                        break
                    if read_marker(p, length, &marker):
                        before = -1
                        with gil:
                            out.append((producer_id, <int64_t>load_u64(p + BASE_OFFSET_AT), marker.kind))
            position += length
    buffer.raise_error()
    return out
