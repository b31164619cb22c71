"""State of a partition's idempotent producers.

(Kafka: ProducerStateManager, ProducerStateEntry, ProducerAppendInfo.)

The state is an open-addressed hash table by producer id. Clients choose the ids, so the hash has a secret
key. The state follows from the batches in the log alone, so recovery rebuilds it by replay. A producer is
forgotten after producer.id.expiration.ms. If there are more producers than `bound_producers` allows, those
whose last write is oldest are forgotten, too. A producer with an open transaction is never forgotten.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t

cdef extern from "shm/siphash.h" nogil:
    uint64_t siphash64(const void *data, uint64_t count, const uint64_t *key)

cdef enum:
    REMEMBERED_BATCHES = 5
    NO_EPOCH = -1
    LARGEST_SEQUENCE = 0x7fffffff
    NO_SEQUENCE = -1                    # of batches that a coordinator writes in a transaction

cdef enum ProducerVerdict:
    PRODUCER_OK = 0
    PRODUCER_DUPLICATE = -1             # the rest are Kafka's error codes
    PRODUCER_OUT_OF_ORDER = 45
    PRODUCER_OLD_EPOCH = 47
    PRODUCER_IN_TRANSACTION = 48
    PRODUCER_OLD_COORDINATOR = 52

cdef struct ProducerBatch:
    int64_t last_offset
    int64_t timestamp
    int32_t last_sequence
    int32_t offset_delta

cdef struct Producer:
    int64_t id
    int64_t txn_first_offset            # -1: no transaction is open
    int64_t last_timestamp
    int64_t ended_offset                # of a transaction whose end forgot the batches; LATEST: unknown
    int32_t coordinator_epoch
    int16_t epoch                       # NO_EPOCH: the entry is blank
    int16_t count
    ProducerBatch batches[5]            # oldest first

cdef struct ProducersRef:
    Producer *table
    uint64_t room                       # a power of two, or 0
    uint64_t used
    uint64_t key[2]                     # of the hash

cdef inline int32_t sequence_after(int32_t sequence, int32_t steps) noexcept nogil:
    """Add `steps` to a sequence number; 2^31 - 1 is followed by 0 (DefaultRecordBatch.incrementSequence)."""
    return <int32_t>((<int64_t>sequence + steps) & LARGEST_SEQUENCE)

cdef inline int32_t last_sequence_of(int32_t base_sequence, int32_t count) noexcept nogil:
    """Return the last sequence number of a batch (Kafka: DefaultRecordBatch.lastSequence)."""
    return sequence_after(base_sequence, count - 1) if base_sequence >= 0 else NO_SEQUENCE

cdef inline uint64_t producer_hash(const ProducersRef *producers, int64_t producer_id) noexcept nogil:
    return siphash64(&producer_id, sizeof(producer_id), producers.key)

cdef inline Producer *producer_find(ProducersRef *producers, int64_t producer_id) noexcept nogil:
    """Return the producer's entry; NULL if the table has no entry for it."""
    cdef uint64_t mask = producers.room - 1
    cdef uint64_t at
    if producers.room == 0:
        return NULL
    at = producer_hash(producers, producer_id) & mask
    while producers.table[at].id != -1:
        if producers.table[at].id == producer_id:
            return &producers.table[at]
        at = (at + 1) & mask
    return NULL

cdef Producer *producer_put(ProducersRef *producers, int64_t producer_id) noexcept nogil
cdef int producer_check(
    const Producer *producer, int16_t epoch, int32_t base_sequence, int32_t count, bint transactional,
    const ProducerBatch **original,
) noexcept nogil
cdef void producer_update(
    Producer *producer, int16_t epoch, int32_t base_sequence, int32_t count, int64_t base_offset,
    int64_t timestamp,
) noexcept nogil
cdef int64_t producer_ended(
    Producer *producer, int16_t epoch, int32_t coordinator_epoch, int64_t timestamp,
) noexcept nogil
cdef int64_t first_open(const ProducersRef *producers, int64_t but) noexcept nogil
cdef bint producer_wants(const Producer *producer) noexcept nogil
cdef void producer_recall(
    Producer *producer, int16_t epoch, int32_t base_sequence, int64_t base_offset, int64_t last_offset,
    int64_t timestamp,
) noexcept nogil

cdef inline void producer_begun(Producer *producer, int64_t base_offset) noexcept nogil:
    """Note a transactional batch. The first batch after a transaction's end opens the next transaction."""
    if producer.txn_first_offset < 0:
        producer.txn_first_offset = base_offset


cdef class Producers:
    cdef ProducersRef ref
    cdef Producer *put(self, int64_t producer_id) except NULL
    cdef int take(self, const uint8_t *entry, int64_t expired_before_ms) except -1
