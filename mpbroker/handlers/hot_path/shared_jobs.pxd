"""Produce jobs that several log workers share, each for its own partitions.

There is one job for all, in the processor's block. Each worker fills its own batches and returns the job with
PRODUCED. The handler that sent the job has an entry for it (`SharedJob`) until all workers have returned it,
since a worker may read and write the block before. A worker that dies need not return the job. Whether it has
appended its part is unknown, so the connection is closed. (Kafka: DelayedProduce.)
"""
from libc.stdint cimport uint8_t, uint32_t

from mpbroker.ipc.meters cimport MetersRef
from mpbroker.ipc.slots cimport ProduceSlot, ReplySlot

cdef struct SharedJob:
    ProduceSlot job             # as the processor asked
    uint32_t owing              # workers that have not returned the job, a bit each
    bint used
    bint lost                   # a worker died while it owed its part
    bint dropped                # the processor died: no answer is sent
    uint32_t next_free

cdef struct SharedJobs:
    SharedJob *entries
    uint32_t room
    uint32_t count              # in use
    uint32_t first_free

cdef SharedJob *shared_begin(SharedJobs *jobs, const ProduceSlot *job, uint8_t *arena) noexcept nogil
cdef SharedJob *shared_returned(SharedJobs *jobs, const ProduceSlot *back, uint32_t worker) noexcept nogil
cdef void shared_end(SharedJobs *jobs, SharedJob *entry) noexcept nogil
cdef void shared_answer(
    const SharedJob *entry, uint8_t *arena, MetersRef *meters, ReplySlot *reply
) noexcept nogil
cdef void shared_free(SharedJobs *jobs) noexcept nogil

cdef inline uint32_t shared_number(const SharedJobs *jobs, const SharedJob *entry) noexcept nogil:
    """Return the number of the entry, which is in the field `request` of the job's descriptors."""
    return <uint32_t>(entry - jobs.entries)
