"""Native walk from batch to batch in bytes read from a segment.

The callers (the scrubber, and the copier of replicas) read the bytes and decide what to do about bad batches.
"""
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t

from mpbroker.log.partition.batch_checker cimport judge
from mpbroker.records.batch cimport BASE_OFFSET_AT, BATCH_HEADER_BYTES, LAST_OFFSET_DELTA_AT, LEADER_EPOCH_AT
from mpbroker.records.wire cimport load_u32, load_u64
from mpbroker.storage.scan cimport batch_length
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpbroker.storage.leader_epochs import Epochs


cdef enum:
    NO_EPOCH = -1

cdef const char *WRONG_EPOCH = "its leader epoch is another one than leader-epoch-checkpoint says"


cdef class Walk:
    """A walk over one segment: `position` in the file, and `next_offset` after the last batch.

    `before_position` and `before_base` are position and base offset of the previous batch.
    `before_expected` is what `next_offset` was when the walk reached that batch: if `before_base` is
    greater, there is a gap. All three are -1 without a previous batch. `epochs` are the (leader epoch,
    start offset) pairs that batches have to agree with, since the CRC does not cover the epoch. `need`:
    the number of bytes that `feed` needs from `position` on.
    """

    cdef readonly int64_t base, position, next_offset, batches
    cdef readonly int64_t before_position, before_base, before_expected
    cdef readonly int64_t need
    cdef object epochs
    cdef int64_t epoch, epoch_ends

    def __init__(self, int64_t base, int64_t position, int64_t next_offset, epochs: Epochs = ()):
        self.base, self.batches, self.epochs = base, 0, epochs
        self.jump(position, next_offset)

    def jump(self, int64_t position, int64_t next_offset) -> None:
        """Restart the walk at `position`. The next batch's base offset may not be below `next_offset`."""
        self.position, self.next_offset = position, next_offset
        self.before_position = self.before_base = self.before_expected = -1
        self.need = BATCH_HEADER_BYTES
        self.epoch_ends = -1

    cdef find_epoch(self, int64_t offset):
        """Set the epoch at `offset` (-1 if unknown) and the offset where it ends."""
        self.epoch, self.epoch_ends = NO_EPOCH, INT64_MAX
        for epoch, start in self.epochs:
            if start > offset:
                self.epoch_ends = start
                break
            self.epoch = epoch

    def feed(self, const uint8_t[::1] data, int64_t size) -> str:
        """Walk over the whole batches in `data`, the bytes at `position` in a file of `size` bytes.

        Returns the fault of the batch at the new `position`, or "". After "" call this again with at least
        `need` bytes from `position` on, unless `position` is the end of the file.
        """
        cdef int64_t at = 0, count = data.shape[0], length, offset, last_offset
        cdef int32_t epoch
        cdef const char *bad = NULL
        cdef const uint8_t *p
        with nogil:
            while True:
                self.need = BATCH_HEADER_BYTES
                if self.position == size:
                    break
                if self.position + self.need > size:
                    bad = "it is cut off"
                    break
                if at + self.need > count:
                    break
                p = &data[at]
                length = batch_length(p)
                if length == 0:
                    bad = "its length or magic is impossible"
                    break
                if self.position + length > size:
                    bad = "it is cut off"
                    break
                self.need = length
                if at + length > count:
                    break
                bad = judge(p, length, self.next_offset, self.base)
                if bad != NULL:
                    break
                offset = <int64_t>load_u64(p + BASE_OFFSET_AT)
                # By its last offset: if the log starts within the batch, its epoch's true start is unknown.
                last_offset = offset + <int32_t>load_u32(p + LAST_OFFSET_DELTA_AT)
                if last_offset >= self.epoch_ends:
                    with gil:
                        self.find_epoch(last_offset)
                epoch = <int32_t>load_u32(p + LEADER_EPOCH_AT)
                if epoch != self.epoch and epoch != NO_EPOCH and self.epoch != NO_EPOCH:
                    bad = WRONG_EPOCH
                    break
                self.before_position, self.before_base, self.before_expected = (
                    self.position, offset, self.next_offset,
                )
                self.next_offset = last_offset + 1
                self.position += length
                self.batches += 1
                at += length
        return bad.decode() if bad != NULL else ""


def next_whole(
    const uint8_t[::1] data, int64_t start, int64_t stop, int64_t next_offset, int64_t base, int64_t behind,
) -> int:
    """Return where in [start, stop) the first whole, valid batch begins; -1 if there is none.

    The batch's base offset lies in [next_offset, behind). `base` is the segment's base offset.
    """
    cdef int64_t at, length, count = data.shape[0], offset
    cdef const uint8_t *p
    with nogil:
        for at in range(start, stop):
            if at + BATCH_HEADER_BYTES > count:
                break
            p = &data[at]
            length = batch_length(p)
            if length == 0 or at + length > count:
                continue
            offset = <int64_t>load_u64(p + BASE_OFFSET_AT)
            if not next_offset <= offset < behind or judge(p, length, next_offset, base) != NULL:
                continue
            with gil:
                return at
    return -1


def base_offset(const uint8_t[::1] data, int64_t at) -> int:
    """Return the base offset of the batch whose header is at `at`. Raises ValueError if it is cut off."""
    if at + BATCH_HEADER_BYTES > data.shape[0]:
        raise ValueError("there is no whole header")
    return <int64_t>load_u64(&data[at] + BASE_OFFSET_AT)


def header_of(const uint8_t[::1] data) -> tuple[int, int]:
    """Return (last offset, leader epoch) of a batch's header. Raises ValueError if it is cut off."""
    return (
        base_offset(data, 0) + <int32_t>load_u32(&data[LAST_OFFSET_DELTA_AT]),
        <int32_t>load_u32(&data[LEADER_EPOCH_AT]),
    )
