"""Producer state of one partition: check, update, snapshot files. `producer_state.pxd` defines the structs.

A snapshot (Kafka: ProducerSnapshot.json), big-endian:

    0   version          i16  1
    2   CRC-32C          u32  of all that follows it
    6   entry count      i32
    10  entries of 46 bytes: producer id i64, epoch i16, last sequence i32, last offset i64, offset delta i32,
        timestamp i64, coordinator epoch i32, first offset of the open transaction i64 (-1: none);
        last offset and sequence are -1 without a batch

A snapshot holds only the last batch of each producer. Recovery finds the earlier batches in the log
(`mpbroker.log.recovery.producer_history`).
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memmove, memset

from mpbroker.records.batch cimport crc32c
from mpbroker.records.wire cimport load_u16, load_u32, load_u64

import os
import struct

from mpbroker.records.batch import checksum

cdef enum:
    CRC_ENDS_AT = 6
    HEAD_BYTES = 10
    ENTRY_BYTES = 46

SNAPSHOT_VERSION = 1
_HEAD = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
assert _HEAD.size == HEAD_BYTES and _ENTRY.size == ENTRY_BYTES


class SnapshotCorrupt(ValueError):
    """A snapshot that cannot be used; recovery uses an older one, or replays from the start."""


# An offset that is not known, and counts as later than all others.
cdef int64_t LATEST = 0x7fffffffffffffff
# The same for all partitions of this process; 0: no bound. Set by `bound_producers`.
cdef uint64_t producers_max = 0
cdef uint64_t hash_key[2]
hash_key[0], hash_key[1] = struct.unpack("=QQ", os.urandom(16))


cdef bint rebuild(ProducersRef *producers, uint64_t room, int64_t forgotten_until) noexcept nogil:
    """Move the producers into a new table. Return False, with nothing changed, if memory is exhausted.

    Producers whose last offset is at most `forgotten_until` and that have no open transaction are left out.
    """
    cdef ProducersRef made
    cdef uint64_t i
    cdef Producer *p
    made.room, made.used = room, 0
    made.key[0], made.key[1] = producers.key[0], producers.key[1]
    made.table = <Producer *>calloc(room, sizeof(Producer))
    if made.table == NULL:
        return False
    for i in range(room):
        made.table[i].id = -1
    for i in range(producers.room):
        p = &producers.table[i]
        if p.id != -1 and (p.txn_first_offset >= 0 or last_offset_of(p) > forgotten_until):
            free_place(&made, p.id)[0] = p[0]
            made.used += 1
    free(producers.table)
    producers[0] = made
    return True


cdef inline int64_t last_offset_of(const Producer *producer) noexcept nogil:
    """Return the offset of the producer's last known record; LATEST if no offset is known."""
    return producer.batches[producer.count - 1].last_offset if producer.count else producer.ended_offset


cdef Producer *free_place(ProducersRef *producers, int64_t producer_id) noexcept nogil:
    """Return the free entry for an id that is not in the table. The table must have a free entry."""
    cdef uint64_t mask = producers.room - 1
    cdef uint64_t at = producer_hash(producers, producer_id) & mask
    while producers.table[at].id != -1:
        at = (at + 1) & mask
    return &producers.table[at]


cdef int compare_offsets(const void *one, const void *other) noexcept nogil:
    cdef int64_t a = (<const int64_t *>one)[0], b = (<const int64_t *>other)[0]
    return (a > b) - (a < b)


cdef bint forget_oldest(ProducersRef *producers) noexcept nogil:
    """Forget the producers whose last writes are oldest; return False if memory is exhausted.

    Producers with open transactions or unknown offsets are never forgotten. An eighth of the other producers
    is forgotten in one call, so that a new producer is cheap on average. If the other producers are at most
    an eighth of all producers, none is forgotten.
    """
    cdef int64_t *offsets = <int64_t *>malloc(producers.used * sizeof(int64_t))
    cdef uint64_t i, count = 0
    cdef bint done = True
    cdef const Producer *p
    if offsets == NULL:
        return False
    for i in range(producers.room):
        p = &producers.table[i]
        if p.id != -1 and p.txn_first_offset < 0 and last_offset_of(p) != LATEST:
            offsets[count] = last_offset_of(p)
            count += 1
    if count > producers.used // 8:
        qsort(offsets, count, sizeof(int64_t), compare_offsets)
        done = rebuild(producers, producers.room, offsets[max(count // 8, 1) - 1])
    free(offsets)
    return done


cdef Producer *producer_put(ProducersRef *producers, int64_t producer_id) noexcept nogil:
    """Return the producer's entry, for a new producer a blank one; NULL if memory is exhausted.

    The table may move in memory, so that pointers to other entries become invalid.
    """
    cdef Producer *found = producer_find(producers, producer_id)
    if found != NULL:
        return found
    if producers_max and producers.used >= producers_max and not forget_oldest(producers):
        return NULL
    # Some places stay empty: a search ends there. Most partitions have at most one producer.
    if (producers.used + 1) * 4 > producers.room * 3:
        if not rebuild(producers, max(producers.room * 2, 2), -1):
            return NULL
    found = free_place(producers, producer_id)
    memset(found, 0, sizeof(Producer))
    found.id = producer_id
    found.epoch = NO_EPOCH
    found.txn_first_offset = found.last_timestamp = -1
    found.coordinator_epoch = -1
    producers.used += 1
    return found


cdef int producer_check(
    const Producer *producer, int16_t epoch, int32_t base_sequence, int32_t count, bint transactional,
    const ProducerBatch **original,
) noexcept nogil:
    """Return the ProducerVerdict on a batch; set `original` to the batch that a duplicate repeats.

    Sequences and duplicates are not checked for a batch without a sequence. It comes from a coordinator,
    which sends each batch once.
    """
    cdef int32_t last_sequence = last_sequence_of(base_sequence, count), next_sequence
    cdef const ProducerBatch *batch
    cdef int i
    if producer == NULL or producer.epoch == NO_EPOCH:
        return PRODUCER_OK
    if epoch == producer.epoch and base_sequence >= 0:
        for i in range(producer.count):
            batch = &producer.batches[i]
            if batch.last_sequence == last_sequence and batch.offset_delta == count - 1:
                original[0] = batch
                return PRODUCER_DUPLICATE
    if epoch < producer.epoch:
        return PRODUCER_OLD_EPOCH
    if epoch > producer.epoch or producer.count == 0:
        next_sequence = 0
    else:
        next_sequence = sequence_after(producer.batches[producer.count - 1].last_sequence, 1)
    if base_sequence >= 0 and base_sequence != next_sequence:
        return PRODUCER_OUT_OF_ORDER
    return PRODUCER_IN_TRANSACTION if producer.txn_first_offset >= 0 and not transactional else PRODUCER_OK


cdef void producer_update(
    Producer *producer, int16_t epoch, int32_t base_sequence, int32_t count, int64_t base_offset,
    int64_t timestamp,
) noexcept nogil:
    """Add an appended batch to the producer's last five, as the newest."""
    cdef ProducerBatch *batch
    if epoch != producer.epoch:
        producer.epoch = epoch
        producer.count = 0
    if producer.count == REMEMBERED_BATCHES:
        memmove(&producer.batches[0], &producer.batches[1], (REMEMBERED_BATCHES - 1) * sizeof(ProducerBatch))
        producer.count -= 1
    batch = &producer.batches[producer.count]
    batch.last_offset = base_offset + count - 1
    batch.timestamp = timestamp
    batch.last_sequence = last_sequence_of(base_sequence, count)
    batch.offset_delta = count - 1
    producer.count += 1
    producer.last_timestamp = timestamp


cdef int64_t producer_ended(
    Producer *producer, int16_t epoch, int32_t coordinator_epoch, int64_t timestamp,
) noexcept nogil:
    """Note a marker; return the first offset of the transaction that the marker ends, -1 if none was open.

    Sequence numbers continue after the marker, unless the marker has a new epoch.
    """
    cdef int64_t first = producer.txn_first_offset
    if epoch != producer.epoch:
        # Its batches are forgotten, but not that it wrote: a late one of the old epoch has to be refused.
        producer.ended_offset = last_offset_of(producer)
        if first > producer.ended_offset:
            producer.ended_offset = first
        producer.epoch = epoch
        producer.count = 0
    producer.coordinator_epoch = coordinator_epoch
    producer.last_timestamp = timestamp
    producer.txn_first_offset = -1
    return first


cdef int64_t first_open(const ProducersRef *producers, int64_t but) noexcept nogil:
    """Return the first offset of the earliest open transaction, except producer `but`'s; -1 if none."""
    cdef int64_t first = -1
    cdef uint64_t i
    cdef const Producer *producer
    for i in range(producers.room):
        producer = &producers.table[i]
        if producer.id == -1 or producer.id == but or producer.txn_first_offset < 0:
            continue
        if first < 0 or producer.txn_first_offset < first:
            first = producer.txn_first_offset
    return first


cdef bint producer_wants(const Producer *producer) noexcept nogil:
    """Return whether the log must be searched for earlier batches of the producer.

    Five known batches are enough. Fewer are enough if the oldest of them begins with sequence 0, because it
    is the first of its epoch, or has no sequence, because duplicates are recognized by their sequences. A
    producer without a known batch needs no search.
    """
    cdef const ProducerBatch *oldest = &producer.batches[0]
    if producer.count == 0 or producer.count == REMEMBERED_BATCHES or oldest.last_sequence == NO_SEQUENCE:
        return False
    return sequence_after(oldest.last_sequence, -oldest.offset_delta) != 0


cdef void producer_recall(
    Producer *producer, int16_t epoch, int32_t base_sequence, int64_t base_offset, int64_t last_offset,
    int64_t timestamp,
) noexcept nogil:
    """Insert an older batch if its sequence numbers directly precede those of the oldest known batch."""
    cdef ProducerBatch *oldest = &producer.batches[0]
    cdef int32_t delta = <int32_t>(last_offset - base_offset)
    if (
        epoch != producer.epoch or not producer_wants(producer)
        or last_offset >= oldest.last_offset - oldest.offset_delta
    ):
        return
    if (
        base_sequence < 0
        or sequence_after(base_sequence, delta + 1)
        != sequence_after(oldest.last_sequence, -oldest.offset_delta)
    ):
        return
    memmove(&producer.batches[1], &producer.batches[0], producer.count * sizeof(ProducerBatch))
    producer.count += 1
    oldest.last_offset, oldest.timestamp = last_offset, timestamp
    oldest.last_sequence, oldest.offset_delta = sequence_after(base_sequence, delta), delta


def bound_producers(uint64_t most) -> None:
    """Set how many producers each partition of this process remembers (max.producer.ids.per.partition).

    0 means no limit. A forgotten producer may write again with any sequence number, like an expired producer.
    """
    global producers_max
    producers_max = most


cdef class Producers:
    """The producer state of one partition, with methods for Python."""

    def __cinit__(self):
        memset(&self.ref, 0, sizeof(self.ref))
        self.ref.key[0], self.ref.key[1] = hash_key[0], hash_key[1]

    def __dealloc__(self):
        free(self.ref.table)

    def __len__(self) -> int:
        return self.ref.used

    def check(
        self, int64_t producer_id, int epoch, int32_t base_sequence, int32_t count, bint transactional=False,
    ) -> tuple[int, int, int]:
        """Check whether a batch may be appended.

        Returns (verdict, base offset, timestamp). The verdict is 0, an error code, or -1 for a duplicate.
        Offset and timestamp are those of the batch that a duplicate repeats, otherwise -1.
        """
        cdef const ProducerBatch *original = NULL
        cdef int verdict = producer_check(
            producer_find(&self.ref, producer_id), epoch, base_sequence, count, transactional, &original)
        if verdict == PRODUCER_DUPLICATE:
            return verdict, original.last_offset - original.offset_delta, original.timestamp
        return verdict, -1, -1

    def update(
        self, int64_t producer_id, int epoch, int32_t base_sequence, int32_t count, int64_t base_offset,
        int64_t timestamp, bint transactional=False,
    ) -> None:
        cdef Producer *producer = self.put(producer_id)
        producer_update(producer, epoch, base_sequence, count, base_offset, timestamp)
        if transactional:
            producer_begun(producer, base_offset)

    cdef Producer *put(self, int64_t producer_id) except NULL:
        cdef Producer *producer = producer_put(&self.ref, producer_id)
        if producer == NULL:
            raise MemoryError("no memory for producer state")
        return producer

    def check_marker(self, int64_t producer_id, int epoch, int32_t coordinator_epoch) -> int:
        """Return 0 for a valid marker, an error code if its producer or coordinator epoch is old."""
        cdef const Producer *producer = producer_find(&self.ref, producer_id)
        if producer == NULL:
            return PRODUCER_OK
        if epoch < producer.epoch:
            return PRODUCER_OLD_EPOCH
        return PRODUCER_OLD_COORDINATOR if coordinator_epoch < producer.coordinator_epoch else PRODUCER_OK

    def ended(self, int64_t producer_id, int epoch, int32_t coordinator_epoch, int64_t timestamp) -> int:
        """Note a marker; return the first offset of the transaction that it ends, -1 if none was open."""
        return producer_ended(self.put(producer_id), epoch, coordinator_epoch, timestamp)

    def open_from(self, int64_t producer_id) -> int:
        """Return the first offset of the producer's open transaction; -1 if none is open."""
        cdef const Producer *producer = producer_find(&self.ref, producer_id)
        return producer.txn_first_offset if producer != NULL else -1

    def first_open(self, int64_t but=-1) -> int:
        """Return the first offset of the earliest open transaction, except producer `but`'s; -1 if none."""
        return first_open(&self.ref, but)

    def entries(self) -> list[tuple[int, int, int, int, list[tuple[int, int, int, int]]]]:
        """Return all producers, sorted by id.

        An entry is (id, epoch, coordinator epoch, first offset of the open transaction or -1, batches); a
        batch is (last sequence, last offset, offset delta, timestamp), oldest first.
        """
        cdef uint64_t i
        cdef Producer *p
        out = []
        for i in range(self.ref.room):
            p = &self.ref.table[i]
            if p.id != -1 and p.epoch != NO_EPOCH:
                batches = [
                    (
                        p.batches[j].last_sequence, p.batches[j].last_offset, p.batches[j].offset_delta,
                        p.batches[j].timestamp,
                    )
                    for j in range(p.count)
                ]
                out.append((p.id, p.epoch, p.coordinator_epoch, p.txn_first_offset, batches))
        return sorted(out)

    def last_ms(self, int64_t producer_id) -> int:
        """Return the timestamp (ms) of the producer's last batch or marker; -1 if the producer is unknown."""
        cdef const Producer *producer = producer_find(&self.ref, producer_id)
        return producer.last_timestamp if producer != NULL else -1

    def snapshot(self) -> bytes:
        """Return the content of a snapshot file."""
        body = bytearray()
        entries = self.entries()
        for producer_id, epoch, coordinator_epoch, transaction, batches in entries:
            timestamp = self.last_ms(producer_id)
            sequence, offset, delta, _ = batches[len(batches) - 1] if batches else (-1, -1, 0, -1)
            body += _ENTRY.pack(
                producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, transaction,
            )
        counted = len(entries).to_bytes(4, "big") + bytes(body)
        return _HEAD.pack(SNAPSHOT_VERSION, checksum(counted), len(entries)) + bytes(body)

    def load(self, bytes data, int64_t expired_before_ms=-1) -> None:
        """Add the producers of a snapshot. Raises SnapshotCorrupt.

        Producers without an open transaction are left out if last seen before `expired_before_ms`.
        """
        cdef const uint8_t *p = data
        cdef int64_t i, count, size = len(data)
        if size < HEAD_BYTES:
            raise SnapshotCorrupt(f"it has {size} bytes")
        version = <int16_t>load_u16(p)
        count = <int32_t>load_u32(p + 6)
        if version != SNAPSHOT_VERSION:
            raise SnapshotCorrupt(f"its version is {version}, not {SNAPSHOT_VERSION}")
        if (
            crc32c(0, p + CRC_ENDS_AT, size - CRC_ENDS_AT) != load_u32(p + 2) or count < 0
            or size != HEAD_BYTES + count * ENTRY_BYTES
        ):
            raise SnapshotCorrupt("its checksum or its length is wrong")
        for i in range(count):
            self.take(p + HEAD_BYTES + i * ENTRY_BYTES, expired_before_ms)

    cdef int take(self, const uint8_t *entry, int64_t expired_before_ms) except -1:
        cdef Producer *producer
        cdef int16_t epoch = <int16_t>load_u16(entry + 8)
        cdef int32_t sequence = <int32_t>load_u32(entry + 10), delta = <int32_t>load_u32(entry + 22)
        cdef int64_t offset = <int64_t>load_u64(entry + 14), timestamp = <int64_t>load_u64(entry + 26)
        cdef int64_t transaction = <int64_t>load_u64(entry + 38)
        if transaction < 0 and timestamp < expired_before_ms:
            return 0
        producer = self.put(<int64_t>load_u64(entry))
        if offset >= 0:
            sequence = sequence_after(sequence, -delta) if sequence >= 0 else NO_SEQUENCE
            producer_update(producer, epoch, sequence, delta + 1, offset - delta, timestamp)
        else:
            producer.ended_offset = LATEST
        producer.epoch = epoch
        producer.last_timestamp = timestamp
        producer.coordinator_epoch = <int32_t>load_u32(entry + 34)
        producer.txn_first_offset = transaction
        return 0

    def wanting(self) -> int:
        """Return the offset below which the log must be searched for earlier batches, -1 for no search."""
        cdef uint64_t i
        cdef Producer *p
        cdef int64_t newest = -1
        for i in range(self.ref.room):
            p = &self.ref.table[i]
            if p.id != -1 and producer_wants(p):
                newest = max(newest, p.batches[0].last_offset - p.batches[0].offset_delta)
        return newest

    def carried(self) -> bytes:
        """Return the state as bytes that `carry` loads, for another process of the same broker."""
        return (<char *>self.ref.table)[:self.ref.room * sizeof(Producer)] if self.ref.room else b""

    def carry(self, bytes data) -> None:
        """Load what `carried` returned in another process. This object must be empty."""
        cdef uint64_t i
        cdef const Producer *table = <const Producer *><const char *>data
        for i in range(len(data) // sizeof(Producer)):
            if table[i].id != -1:
                self.put(table[i].id)[0] = table[i]

    def longest_search(self) -> int:
        """Return the largest number of table entries that a search for one of the producers reads."""
        cdef uint64_t i, mask = self.ref.room - 1, longest = 0
        for i in range(self.ref.room):
            if self.ref.table[i].id != -1:
                longest = max(longest, ((i - producer_hash(&self.ref, self.ref.table[i].id)) & mask) + 1)
        return longest

    def expire(self, int64_t before_ms) -> int:
        """Forget producers without open transactions that last wrote before `before_ms`; return how many."""
        cdef ProducersRef kept
        cdef uint64_t i
        cdef Producer *p
        memset(&kept, 0, sizeof(kept))
        kept.key[0], kept.key[1] = self.ref.key[0], self.ref.key[1]
        before = self.ref.used
        for i in range(self.ref.room):
            p = &self.ref.table[i]
            if (
                p.id != -1 and p.epoch != NO_EPOCH
                and (p.txn_first_offset >= 0 or p.last_timestamp >= before_ms)
            ):
                copy = producer_put(&kept, p.id)
                if copy == NULL:
                    free(kept.table)
                    raise MemoryError("no memory for producer state")
                copy[0] = p[0]
        free(self.ref.table)
        self.ref = kept
        return before - self.ref.used
