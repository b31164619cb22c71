"""Produce jobs that several log workers have, each for its own partitions: who still owes its part, and the answer when nobody does.

The job lies in the processor's block, one for all; each worker fills its own batches and sends PRODUCED. Here, in the handler that has sent
it, an entry waits for all of them. While a worker owes it may read and write the block, so none is answered or forgotten before. A worker
that dies owes nothing any more, but nobody knows what it did: then the connection is closed. (Kafka: DelayedProduce.)
"""
from libc.stdint cimport uint8_t, uint32_t

from mpbroker.ipc.meters cimport MetersRef
from mpbroker.ipc.slots cimport ProduceSlot, ReplySlot

cdef struct SharedJob:
    ProduceSlot job             # as the processor asked
    uint32_t owing              # workers that have not returned it, a bit each
    bint used
    bint lost                   # a worker died that had it
    bint dropped                # its processor died: there is nobody to answer
    uint32_t next_free

cdef struct SharedJobs:
    SharedJob *entries
    uint32_t room
    uint32_t count              # in use
    uint32_t first_free

cdef SharedJob *shared_begin(SharedJobs *jobs, const ProduceSlot *job, uint8_t *arena) noexcept nogil
cdef SharedJob *shared_returned(SharedJobs *jobs, const ProduceSlot *back, uint32_t worker) noexcept nogil
cdef void shared_end(SharedJobs *jobs, SharedJob *entry) noexcept nogil
cdef void shared_answer(const SharedJob *entry, uint8_t *arena, MetersRef *meters, ReplySlot *reply) noexcept nogil
cdef void shared_free(SharedJobs *jobs) noexcept nogil

cdef inline uint32_t shared_number(const SharedJobs *jobs, const SharedJob *entry) noexcept nogil:
    """What its descriptors say as `request`."""
    return <uint32_t>(entry - jobs.entries)
