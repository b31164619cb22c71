"""The cleaner's native work per batch: put keys into the offset map, write kept records to the new segment.

(Kafka: Cleaner, MemoryRecords.filterTo.) A file is read in pieces of many batches. Plain batches are handled
here. The walk stops at a compressed, transactional or control batch, which Python decides about, and goes on
after it. Most of the work is done without the GIL: the thread may be suspended for long where CPUs are
scarce, and other threads of its process must not wait for it.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from mpbroker.log.compaction.offset_map cimport MapRef, OffsetMap, map_get, map_put
from mpbroker.log.partition.state cimport PartitionState, note_batch
from mpbroker.records cimport batch as c
from mpbroker.storage.producer_state cimport Producer, Producers, producer_find

from enum import IntEnum

from mpbroker.records.batch import reason_text
from mpbroker.records.errors import CorruptBatch

cdef enum:
    LARGEST_POSITION = 0x7fffffff


class Stop(IntEnum):
    """The reason why a walk over batches ends."""

    END = 0         # no whole batch is left in this piece
    FOR_PYTHON = 1
    FULL = 2        # the offset map is full


class Verdict(IntEnum):
    """The filter's decision on a batch."""

    DROPPED = 0
    COPIED = 1      # as it is
    EMPTIED = 2     # only its header stays
    REBUILT = 3


cdef enum:
    DROPPED = 0
    COPIED = 1
    EMPTIED = 2
    REBUILT = 3


cdef struct Judged:
    int32_t kept
    int has_tombstone
    int64_t first_timestamp     # of the first record that is kept
    int64_t max_timestamp       # the largest of the records that are kept


cdef class BatchWalk:
    """A walk over one piece of a segment file, which checks each batch when it reaches it."""

    cdef const uint8_t[::1] data
    cdef readonly bytes piece
    cdef readonly int64_t at
    cdef int64_t length
    cdef c.BatchInfo info
    cdef int64_t base_offset

    def __init__(self, bytes piece):
        self.piece = piece
        self.data = piece
        self.at = 0

    cdef int look(self) except -1:
        """Read the header of the batch at `at` into `info`. Return 1, or 0 if no whole batch is left.

        Raises CorruptBatch if the bytes are not a valid batch.
        """
        cdef const uint8_t *p
        cdef int reason, verdict
        cdef int64_t left = self.data.shape[0] - self.at
        if left <= 0:
            return 0
        p = &self.data[self.at]
        with nogil:
            verdict = c.whole_batch(p, left, True, &self.length, &reason)
        if verdict == c.BATCH_TRAILING:
            return 0
        if verdict != c.BATCH_OK:
            raise CorruptBatch(self.at, reason_text(reason))
        c.read_header(p, <int32_t>self.length, &self.info)
        self.base_offset = c.load_i64(p + <int>c.BASE_OFFSET_AT)
        return 1

    cdef bint is_plain(self) noexcept nogil:
        return self.info.codec == 0 and not self.info.attributes & (c.TRANSACTIONAL_BIT | c.CONTROL_BIT)

    cdef void step(self) noexcept nogil:
        self.at += self.length


def map_plain(BatchWalk walk, OffsetMap offsets, int64_t start) -> int:
    """Put the keys of records from offset `start` on into the map. Return a Stop.

    Raises CorruptBatch if a batch or record is malformed.
    """
    cdef const uint8_t *p
    cdef bint full, well_formed
    while walk.look():
        if not walk.is_plain():
            return Stop.FOR_PYTHON
        p = &walk.data[walk.at]
        with nogil:
            well_formed = map_stream(
                walk, &offsets.ref, p + <int>c.BATCH_HEADER_BYTES, p + walk.length, start, &full
            )
        if not well_formed:
            raise CorruptBatch(walk.at, "a record is malformed")
        if full:
            return Stop.FULL
        pass_by(walk, offsets, start)
    return Stop.END


def map_one(BatchWalk walk, OffsetMap offsets, int64_t start, const uint8_t[::1] stream) -> int:
    """Put the keys of the batch at which the walk stopped into the map. Return a Stop.

    `stream`: the uncompressed records, empty to add no keys. Raises CorruptBatch if a record is malformed.
    """
    cdef bint full = False
    if stream.shape[0]:
        if not map_stream(walk, &offsets.ref, &stream[0], &stream[0] + stream.shape[0], start, &full):
            raise CorruptBatch(walk.at, "a record is malformed")
        if full:
            return Stop.FULL
    pass_by(walk, offsets, start)
    return Stop.END


cdef void pass_by(BatchWalk walk, OffsetMap offsets, int64_t start) noexcept:
    cdef int64_t last = walk.base_offset + walk.info.last_offset_delta
    if last >= start and last > offsets.ref.latest:
        offsets.ref.latest = last
    walk.step()


cdef bint map_stream(
    BatchWalk walk, MapRef *offsets, const uint8_t *at, const uint8_t *end, int64_t start, bint *full
) noexcept nogil:
    cdef c.RecordView record
    cdef int64_t offset
    cdef int32_t _
    full[0] = False
    for _ in range(walk.info.count):
        if c.read_record(&at, end, &record):
            return False
        offset = walk.base_offset + record.offset_delta
        if record.key != NULL and offset >= start:
            if not map_put(offsets, record.key, record.key_bytes, offset):
                full[0] = True
                return True
    return at == end


cdef class Filter:
    """A filter that writes the retained batches and records of a segment into a buffer, which `take` empties.

    `end`: the end offset of the cleaned part. `producers`: the active producers, with the last batch of each.
    """

    cdef OffsetMap offsets
    cdef Producers producers
    cdef int64_t now_ms
    cdef int64_t horizon_ms
    cdef int64_t end
    cdef PartitionState segment
    cdef uint8_t *out
    cdef int64_t used
    cdef int64_t room
    cdef Judged judged
    cdef readonly int64_t records_read
    cdef readonly int64_t records_kept

    def __init__(
        self, OffsetMap offsets, Producers producers, int64_t now_ms, int64_t delete_retention_ms, int64_t end
    ):
        self.offsets = offsets
        self.producers = producers
        self.now_ms = now_ms
        self.horizon_ms = min(c.add_wrapping(now_ms, delete_retention_ms), 0x7fffffffffffffff)
        if delete_retention_ms > 0 and self.horizon_ms < now_ms:
            self.horizon_ms = 0x7fffffffffffffff
        self.end = end

    def __dealloc__(self):
        free(self.out)

    def into(self, PartitionState segment) -> None:
        """Write to a new segment from now on. Each batch written updates `segment` and its indexes."""
        self.segment = segment

    def take(self) -> bytes:
        """Return the bytes written since the last call."""
        data = self.out[: self.used] if self.used else b""
        self.used = 0
        return data

    def plain(self, BatchWalk walk) -> int:
        """Filter batches up to the first one that needs Python. Return a Stop.

        Raises CorruptBatch if a batch or record is malformed.
        """
        cdef const uint8_t *p
        while walk.look():
            if not walk.is_plain():
                return Stop.FOR_PYTHON
            p = &walk.data[walk.at]
            self.one(walk, p + <int>c.BATCH_HEADER_BYTES, p + walk.length, False, False, True)
            walk.step()
        return Stop.END

    def judge_one(self, BatchWalk walk, const uint8_t[::1] stream, bint discards, bint marks_nothing) -> int:
        """Filter the batch at which the walk stopped. Return a Verdict.

        `stream`: the batch's records, uncompressed. `discards`: retain none of them. `marks_nothing`: the
        batch is the marker of a transaction without other batches. A compressed batch with the verdict
        REBUILT is not done yet: `rebuilt` returns its records, which are to be compressed and given to `put`.
        """
        cdef const uint8_t *p = &stream[0] if stream.shape[0] else NULL
        cdef int verdict = self.one(
            walk, p, p + stream.shape[0], discards, marks_nothing, walk.info.codec == 0
        )
        if verdict != REBUILT or walk.info.codec == 0:
            walk.step()
        return verdict

    def rebuilt(self, BatchWalk walk, const uint8_t[::1] stream, bint marks_nothing) -> bytes:
        cdef int64_t before = self.used
        self.rewrite(walk, &stream[0], &stream[0] + stream.shape[0], self.base_timestamp(walk, marks_nothing))
        records = self.out[before : self.used]
        self.used = before
        return records

    def put(self, BatchWalk walk, const uint8_t[::1] compressed, bint marks_nothing) -> None:
        """Write the walk's batch with these records, which are compressed with the batch's codec."""
        cdef int64_t at = self.used
        self.reserve(c.BATCH_HEADER_BYTES + compressed.shape[0])
        memcpy(self.out + at + <int>c.BATCH_HEADER_BYTES, &compressed[0], compressed.shape[0])
        self.used += c.BATCH_HEADER_BYTES + compressed.shape[0]
        self.finish(walk, at, marks_nothing)
        walk.step()

    # ---- one batch ----

    cdef int one(
        self, BatchWalk walk, const uint8_t *records, const uint8_t *end, bint discards, bint marks_nothing,
        bint writes
    ) except -1:
        cdef const uint8_t *whole = &walk.data[walk.at]
        cdef bint stays = self.must_stay(walk)
        cdef bint well_formed
        cdef int64_t at
        self.records_read += walk.info.count
        if discards and not stays:
            return DROPPED
        with nogil:
            well_formed = self.judge(walk, records, end, discards)
        if not well_formed:
            raise CorruptBatch(walk.at, "a record is malformed")
        self.records_kept += self.judged.kept
        if self.judged.kept == 0:
            if not stays:
                return DROPPED
            self.write_empty(walk)
            return EMPTIED
        if self.judged.kept == walk.info.count and not self.sets_horizon(walk, marks_nothing):
            self.reserve(walk.length)
            memcpy(self.out + self.used, whole, walk.length)
            self.used += walk.length
            self.note(walk, walk.length, walk.info.header_max_timestamp)
            return COPIED
        if writes:
            at = self.used
            self.reserve(c.BATCH_HEADER_BYTES)
            self.used += c.BATCH_HEADER_BYTES
            self.rewrite(walk, records, end, self.base_timestamp(walk, marks_nothing))
            self.finish(walk, at, marks_nothing)
        return REBUILT

    cdef bint must_stay(self, BatchWalk walk) noexcept:
        """Return whether at least the batch's header must be retained.

        This is so for the last batch of an active producer, and for the last batch of the cleaned part.
        """
        cdef int64_t last = walk.base_offset + walk.info.last_offset_delta
        cdef Producer *producer
        if last + 1 == self.end:
            return True
        if walk.info.producer_id < 0:
            return False
        producer = producer_find(&self.producers.ref, walk.info.producer_id)
        if producer == NULL:
            return False
        if producer.count:
            return producer.batches[producer.count - 1].last_offset == last
        return bool(walk.info.attributes & c.CONTROL_BIT) and producer.epoch == walk.info.producer_epoch

    cdef bint sets_horizon(self, BatchWalk walk, bint marks_nothing) noexcept nogil:
        return (
            (self.judged.has_tombstone or marks_nothing)
            and not walk.info.attributes & c.DELETE_HORIZON_BIT
        )

    cdef bint keeps(self, BatchWalk walk, const c.RecordView *record) noexcept nogil:
        """Return whether the record is retained (Kafka: Cleaner.shouldRetainRecord)."""
        cdef int64_t offset = walk.base_offset + record.offset_delta
        cdef bint is_control = walk.info.attributes & c.CONTROL_BIT
        if is_control or offset > self.offsets.ref.latest:
            return True
        if record.key == NULL or offset < map_get(&self.offsets.ref, record.key, record.key_bytes):
            return False
        if record.value != NULL or not walk.info.attributes & c.DELETE_HORIZON_BIT:
            return True
        return self.now_ms < walk.info.base_timestamp

    cdef bint judge(
        self, BatchWalk walk, const uint8_t *at, const uint8_t *end, bint discards
    ) noexcept nogil:
        """Describe the batch's retained records in `judged`. Return False if a record is malformed."""
        cdef c.RecordView record
        cdef int64_t timestamp
        cdef int32_t _
        cdef Judged *judged = &self.judged
        judged.kept, judged.has_tombstone = 0, 0
        judged.first_timestamp = judged.max_timestamp = c.NO_TIMESTAMP
        if discards:
            return True
        for _ in range(walk.info.count):
            if c.read_record(&at, end, &record):
                return False
            if not self.keeps(walk, &record):
                continue
            timestamp = self.timestamp_of(walk, &record)
            if judged.kept == 0:
                judged.first_timestamp = timestamp
            judged.max_timestamp = max(judged.max_timestamp, timestamp)
            judged.kept += 1
            if record.value == NULL:
                judged.has_tombstone = 1
        return at == end

    cdef int64_t timestamp_of(self, BatchWalk walk, const c.RecordView *record) noexcept nogil:
        if walk.info.attributes & c.LOG_APPEND_TIME_BIT:
            return walk.info.header_max_timestamp
        return c.add_wrapping(walk.info.base_timestamp, record.timestamp_delta)

    cdef int64_t base_timestamp(self, BatchWalk walk, bint marks_nothing) noexcept nogil:
        """Return the base timestamp of the rebuilt batch: its delete horizon if it has one (KIP-534)."""
        if self.sets_horizon(walk, marks_nothing):
            return self.horizon_ms
        if walk.info.attributes & c.DELETE_HORIZON_BIT:
            return walk.info.base_timestamp
        return self.judged.first_timestamp

    # ---- writing ----

    cdef int rewrite(
        self, BatchWalk walk, const uint8_t *at, const uint8_t *end, int64_t base_timestamp
    ) except -1:
        """Write the records that are kept, without the batch's header."""
        cdef c.RecordView record
        cdef const uint8_t *start
        cdef uint8_t head[32]
        cdef uint8_t *p
        cdef int64_t body, size, delta
        cdef int32_t _
        for _ in range(walk.info.count):
            start = at
            if c.read_record(&at, end, &record):
                raise CorruptBatch(walk.at, "a record is malformed")
            if not self.keeps(walk, &record):
                continue
            c.read_varint(&start, at)
            head[0] = start[0]
            start += 1
            c.read_varlong(&start, at)
            c.read_varint(&start, at)
            delta = c.subtract_wrapping(self.timestamp_of(walk, &record), base_timestamp)
            p = c.write_varlong(c.write_varlong(head + 1, delta), record.offset_delta)
            size = p - head
            body = size + (at - start)
            self.reserve(body + c.varlong_bytes(body))
            p = c.write_varlong(self.out + self.used, body)
            memcpy(p, head, size)
            memcpy(p + size, start, at - start)
            self.used = p - self.out + body
        return 0

    cdef int finish(self, BatchWalk walk, int64_t at, bint marks_nothing) except -1:
        """Write the header of the batch that begins at `at` of the output."""
        cdef c.BatchInfo info = walk.info
        info.count = self.judged.kept
        info.base_timestamp = self.base_timestamp(walk, marks_nothing)
        info.max_timestamp = walk.info.header_max_timestamp
        if not info.attributes & c.LOG_APPEND_TIME_BIT:
            info.max_timestamp = self.judged.max_timestamp
        if self.sets_horizon(walk, marks_nothing):
            info.attributes |= c.DELETE_HORIZON_BIT
        self.write_header(walk, at, &info)
        return self.note(walk, self.used - at, info.max_timestamp)

    cdef int write_empty(self, BatchWalk walk) except -1:
        """Write the header of a batch without records (Kafka: DefaultRecordBatch.writeEmptyHeader).

        The segment's timestamps ignore those of the batch, because it has no records.
        """
        cdef c.BatchInfo info = walk.info
        cdef int64_t at = self.used
        self.reserve(c.BATCH_HEADER_BYTES)
        self.used += c.BATCH_HEADER_BYTES
        info.count = 0
        info.base_timestamp = c.NO_TIMESTAMP
        info.max_timestamp = walk.info.header_max_timestamp
        info.attributes &= c.LOG_APPEND_TIME_BIT | c.TRANSACTIONAL_BIT | c.CONTROL_BIT
        self.write_header(walk, at, &info)
        return self.note(walk, c.BATCH_HEADER_BYTES, c.NO_TIMESTAMP)

    cdef void write_header(self, BatchWalk walk, int64_t at, const c.BatchInfo *info) noexcept:
        cdef int32_t epoch = c.load_i32(&walk.data[walk.at] + <int>c.LEADER_EPOCH_AT)
        c.write_header(self.out + at, self.used - at, walk.base_offset, epoch, info)

    cdef int note(self, BatchWalk walk, int64_t length, int64_t max_timestamp) except -1:
        if self.segment.core.size + length > LARGEST_POSITION:
            raise OverflowError("the cleaned segment is larger than its index can say")
        note_batch(
            &self.segment.core, walk.base_offset + walk.info.last_offset_delta, self.segment.core.size,
            length, max_timestamp
        )
        return 0

    cdef int reserve(self, int64_t count) except -1:
        cdef uint8_t *grown
        if self.used + count > self.room:
            grown = <uint8_t *>realloc(self.out, 2 * self.room + count)
            if grown == NULL:
                raise MemoryError("no memory for the cleaner's output")
            self.out, self.room = grown, 2 * self.room + count
        return 0
