"""Native check of a segment after an unclean stop, which replays every batch (Kafka: LogSegment.recover)."""
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc

from mpbroker.log.partition.state cimport PartitionState
from mpbroker.records.wire cimport load_u16, load_u32, load_u64
from mpbroker.records.batch cimport (
    ATTRIBUTES_AT, BASE_OFFSET_AT, BASE_SEQUENCE_AT, CONTROL_BIT, CRC_AT, CRC_COVERS_FROM,
    LAST_OFFSET_DELTA_AT, BATCH_HEADER_BYTES, LEADER_EPOCH_AT, MAX_TIMESTAMP_AT, PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT, RECORD_COUNT_AT, TRANSACTIONAL_BIT, crc32c,
)
from mpbroker.records.markers cimport ABORT, Marker, read_marker
from mpbroker.storage.index cimport LARGEST_RELATIVE
from mpbroker.storage.producer_state cimport (
    Producer, Producers, first_open, producer_begun, producer_ended, producer_find, producer_put,
    producer_recall, producer_update, producer_wants,
)
from mpbroker.storage.scan cimport CHUNK_BYTES, ChunkBuffer, batch_length, have
from typing import NamedTuple

cdef enum:
    CHECK_CHUNK_BYTES = 1 << 20


# The result of a check. `reason` is empty if all batches were good. `aborted`: (producer id, first offset,
# last offset, last stable offset after it) of each transaction that is aborted in the range. `epochs`:
# (leader epoch, offset) of the first batch and wherever the epoch changes.
class Checked(NamedTuple):
    valid_bytes: int
    next_offset: int
    reason: str
    aborted: list[tuple[int, int, int, int]]
    epochs: list[tuple[int, int]]


cdef const char *judge(
    const uint8_t *p, int64_t length, int64_t next_offset, int64_t segment_base,
) noexcept nogil:
    """Return the fault of a whole batch as text; NULL if the batch is valid."""
    cdef int64_t base = <int64_t>load_u64(p + BASE_OFFSET_AT)
    cdef int64_t delta = <int32_t>load_u32(p + LAST_OFFSET_DELTA_AT)
    if crc32c(0, p + CRC_COVERS_FROM, length - CRC_COVERS_FROM) != load_u32(p + CRC_AT):
        return "the CRC does not match"
    if base < next_offset or delta < 0 or base + delta - segment_base > LARGEST_RELATIVE:
        return "its offsets are out of order"
    return NULL


def check_batches(
    int fd, int64_t position, int64_t end, int64_t next_offset, PartitionState state, bint apply_index,
    int64_t producers_from, int64_t most_bytes,
) -> Checked:
    """Check every batch in [position, end) and replay it into the state; return Checked.

    Producers are replayed from the offset `producers_from` on. The check stops at the first batch that is not
    whole and valid, and after `most_bytes`, so that the caller can send a heartbeat before it continues.
    Raises OSError, MemoryError.
    """
    cdef ChunkBuffer buffer = ChunkBuffer(CHECK_CHUNK_BYTES)
    cdef const uint8_t *p = NULL
    cdef const char *bad = NULL
    cdef int64_t length, last_offset
    cdef int64_t base = state.core.segment_base
    cdef bint no_memory = False
    cdef list aborted = [], epochs = []
    cdef int32_t epoch, before = -1
    cdef int64_t stop = min(end, position + most_bytes)
    with nogil:
        while position < stop:
            p = have(&buffer.chunk, fd, position, BATCH_HEADER_BYTES, end)
            if p == NULL:
                bad = "it is cut off"
                break
            length = batch_length(p)
            if length == 0:
                bad = "its length or magic is impossible"
                break
            p = have(&buffer.chunk, fd, position, length, end)
            if p == NULL:
                bad = "it is cut off"
                break
            bad = judge(p, length, next_offset, base)
            if bad != NULL:
                break
            last_offset = <int64_t>load_u64(p + BASE_OFFSET_AT) + <int32_t>load_u32(p + LAST_OFFSET_DELTA_AT)
            if not replay(state, p, length, position, last_offset, apply_index, producers_from, aborted):
                no_memory = True
                break
            epoch = <int32_t>load_u32(p + LEADER_EPOCH_AT)
            if epoch != before and epoch >= 0:
                before = epoch
                with gil:
                    epochs.append((epoch, <int64_t>load_u64(p + BASE_OFFSET_AT)))
            next_offset = last_offset + 1
            position += length
    buffer.raise_error()
    if no_memory:
        raise MemoryError("no memory for producer state")
    return Checked(position, next_offset, bad.decode() if bad != NULL else "", aborted, epochs)


cdef bint replay(
    PartitionState state, const uint8_t *p, int64_t length, int64_t position, int64_t last_offset,
    bint apply_index, int64_t producers_from, list aborted,
) noexcept nogil:
    """Replay a batch into the state; return False if memory is exhausted."""
    cdef int64_t producer_id = <int64_t>load_u64(p + PRODUCER_ID_AT)
    cdef int64_t base_offset = <int64_t>load_u64(p + BASE_OFFSET_AT)
    cdef int64_t max_timestamp = <int64_t>load_u64(p + MAX_TIMESTAMP_AT)
    cdef int attributes = load_u16(p + ATTRIBUTES_AT)
    cdef Producer *producer
    if apply_index:
        state.apply(last_offset, position, length, max_timestamp)
    if producer_id < 0 or base_offset < producers_from:
        return True
    if attributes & CONTROL_BIT:
        return replay_marker(state, p, length, last_offset, aborted)
    producer = producer_put(&state.producers.ref, producer_id)
    if producer == NULL:
        return False
    producer_update(
        producer, <int16_t>load_u16(p + PRODUCER_EPOCH_AT), <int32_t>load_u32(p + BASE_SEQUENCE_AT),
        <int32_t>(last_offset - base_offset + 1), base_offset, max_timestamp)
    # The marker of a batch that the cleaner emptied may be removed, too.
    if attributes & TRANSACTIONAL_BIT and load_u32(p + RECORD_COUNT_AT):
        producer_begun(producer, base_offset)
    return True


cdef bint replay_marker(
    PartitionState state, const uint8_t *p, int64_t length, int64_t offset, list aborted,
) noexcept nogil:
    """Replay a control batch into the state; return False if memory is exhausted."""
    cdef int64_t producer_id = <int64_t>load_u64(p + PRODUCER_ID_AT), first, stable
    cdef Producer *producer
    cdef Marker marker
    if not read_marker(p, length, &marker):
        return True
    producer = producer_put(&state.producers.ref, producer_id)
    if producer == NULL:
        return False
    first = producer_ended(
        producer, <int16_t>load_u16(p + PRODUCER_EPOCH_AT), marker.coordinator_epoch,
        <int64_t>load_u64(p + MAX_TIMESTAMP_AT))
    if first >= 0 and marker.kind == ABORT:
        stable = first_open(&state.producers.ref, -1)
        with gil:
            aborted.append((producer_id, first, offset, stable if stable >= 0 else offset + 1))
    return True


cdef struct Seen:
    int64_t producer_id
    int64_t base_offset
    int64_t last_offset
    int64_t timestamp
    int32_t base_sequence
    int16_t epoch


def recall_batches(int fd, int64_t position, int64_t end, Producers producers) -> None:
    """Add to each of `producers` its batches in [position, end) that precede its known ones without a gap.

    A producer remembers at most five batches. Raises OSError, MemoryError.
    """
    cdef ChunkBuffer buffer = ChunkBuffer(CHUNK_BYTES)
    cdef const uint8_t *p
    cdef int64_t length, count = 0
    cdef Producer *producer
    cdef Seen *one
    cdef Seen *seen = <Seen *>malloc(((end - position) // BATCH_HEADER_BYTES + 1) * sizeof(Seen))
    if seen == NULL:
        raise MemoryError("no memory for producer state")
    with nogil:
        while position < end:
            p = have(&buffer.chunk, fd, position, BATCH_HEADER_BYTES, end)
            length = batch_length(p) if p != NULL else 0
            if length == 0:
                break
            position += length
            producer = producer_find(&producers.ref, <int64_t>load_u64(p + PRODUCER_ID_AT))
            if producer == NULL or not producer_wants(producer) or load_u16(p + ATTRIBUTES_AT) & CONTROL_BIT:
                continue
            one = &seen[count]
            count += 1
            one.producer_id, one.base_offset = producer.id, <int64_t>load_u64(p + BASE_OFFSET_AT)
            one.last_offset = one.base_offset + <int32_t>load_u32(p + LAST_OFFSET_DELTA_AT)
            one.epoch, one.base_sequence = (
                <int16_t>load_u16(p + PRODUCER_EPOCH_AT), <int32_t>load_u32(p + BASE_SEQUENCE_AT),
            )
            one.timestamp = <int64_t>load_u64(p + MAX_TIMESTAMP_AT)
        while count:
            count -= 1
            one = &seen[count]
            producer_recall(
                producer_find(&producers.ref, one.producer_id), one.epoch, one.base_sequence, one.base_offset,
                one.last_offset, one.timestamp)
    free(seen)
    buffer.raise_error()


def good_batch_behind(
    int fd, int64_t position, int64_t end, int64_t next_offset, int64_t segment_base,
) -> bool:
    """Return whether the batch after the bad one at `position` is whole and valid.

    The bad batch's length is trusted.
    """
    cdef ChunkBuffer buffer = ChunkBuffer(CHUNK_BYTES)
    cdef const uint8_t *p = have(&buffer.chunk, fd, position, BATCH_HEADER_BYTES, end)
    cdef int64_t length = batch_length(p) if p != NULL else 0
    if length == 0:
        return False
    position += length
    p = have(&buffer.chunk, fd, position, BATCH_HEADER_BYTES, end)
    length = batch_length(p) if p != NULL else 0
    if length == 0:
        return False
    p = have(&buffer.chunk, fd, position, length, end)
    return p != NULL and judge(p, length, next_offset, segment_base) == NULL
