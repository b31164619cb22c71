"""Produce jobs that several log workers share, each for its own partitions.

The job lies in the processor's block, one for all. Each worker fills its own batches and sends PRODUCED. An
entry in the handler that sent the job waits for all of them. A worker that owes its part may still read and
write the block, so the job is not answered or forgotten before. A worker that dies owes nothing, but may
have appended its part or not: the connection is closed. (Kafka: DelayedProduce.)
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
    """Return the number that the job's descriptors carry as `request`."""
    return <uint32_t>(entry - jobs.entries)
