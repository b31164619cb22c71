"""Helpers for processes that complete a produce job (`slots.pxd`) and its response."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from mpbroker.ipc.slots cimport PRODUCE_BACK, JobBatch, JobHeader, ProduceSlot

cdef extern from *:
    """
    #include <endian.h>
    #include <stdint.h>
    #include <string.h>
    static inline void put_big_u16(uint8_t *p, uint16_t x) { x = htobe16(x); memcpy(p, &x, sizeof x); }
    static inline void put_big_u64(uint8_t *p, uint64_t x) { x = htobe64(x); memcpy(p, &x, sizeof x); }
    """
    void put_big_u16(uint8_t *p, uint16_t x) noexcept nogil
    void put_big_u64(uint8_t *p, uint64_t x) noexcept nogil

cdef enum:
    PRODUCE_KEY = 0
    HOLE_BYTES = 18             # error_code i16, base_offset i64, log_append_time_ms i64
    LOG_START_BYTES = 8         # log_start_offset i64 after that, since version 5

cdef enum KafkaError:
    UNKNOWN_SERVER_ERROR = -1
    NO_ERROR = 0
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    INVALID_TXN_STATE = 48
    KAFKA_STORAGE_ERROR = 56

cdef inline JobBatch *batches_of(JobHeader *job) noexcept nogil:
    return <JobBatch *>(<uint8_t *>job + sizeof(JobHeader))

cdef inline bint is_shared(const ProduceSlot *slot) noexcept nogil:
    """Return whether other log workers have the same job.

    Such a job is in a processor's block, and a handler answers when all log workers have returned it.
    """
    return slot.kind == PRODUCE_BACK and slot.owner != slot.sender

cdef inline bint is_failure(int error) noexcept nogil:
    """Return whether Kafka counts the error as a failed produce (ReplicaManager.appendRecordsToLeader)."""
    if error == REQUEST_TIMED_OUT or error == UNKNOWN_TOPIC_OR_PARTITION or error == NOT_LEADER_OR_FOLLOWER:
        return False
    return (
        error != KAFKA_STORAGE_ERROR
        and error != RECORD_LIST_TOO_LARGE
        and error != CORRUPT_MESSAGE
        and error != MESSAGE_TOO_LARGE
    )

cdef inline void fill_holes(uint8_t *block, uint64_t capacity, JobHeader *job) noexcept nogil:
    """Write error, offsets and append time of each batch into the response, at the places left for them."""
    cdef JobBatch *batch
    cdef uint8_t *at
    cdef uint32_t i
    for i in range(job.batches):
        batch = &batches_of(job)[i]
        if batch.hole == 0 or (
            <uint64_t>batch.hole + HOLE_BYTES + (LOG_START_BYTES if batch.has_log_start else 0) > capacity
        ):
            continue
        at = block + batch.hole
        put_big_u16(at, <uint16_t>batch.error)
        put_big_u64(at + 2, <uint64_t>batch.base_offset)
        put_big_u64(at + 10, <uint64_t>batch.append_time_ms)
        if batch.has_log_start:
            put_big_u64(at + HOLE_BYTES, <uint64_t>batch.log_start_offset)
