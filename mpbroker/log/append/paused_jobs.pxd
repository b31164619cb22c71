"""Produce jobs held, in their order, while one of their partitions is put in place in another log directory.
"""
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.string cimport memmove

from mpbroker.ipc.slots cimport ProduceSlot
from shm.ring cimport Slot

cdef struct PausedJob:
    Slot slot
    uint32_t batch              # those before it are appended already

cdef struct PausedJobs:
    PausedJob *jobs
    int32_t count
    int32_t room
    int32_t retrying            # how many of the first ones are retried, one a round

cdef inline int32_t take_paused(PausedJobs *held, Slot *jobs, uint32_t *batch) noexcept nogil:
    """Take the first held job. It resumes at the batch where it stopped, so it gets a round of its own."""
    jobs[0], batch[0] = held.jobs[0].slot, held.jobs[0].batch
    held.retrying -= 1
    held.count -= 1
    memmove(held.jobs, held.jobs + 1, held.count * sizeof(PausedJob))
    return 1

cdef inline bint is_behind_paused(PausedJobs *held, const Slot *job) noexcept nogil:
    """Return whether an earlier job of the same connection is held. The first `retrying` ones come later than
    one that is being retried.
    """
    cdef uint64_t connection = (<const ProduceSlot *>job).connection
    cdef int32_t i
    if connection == 0:
        return False
    for i in range(held.retrying, held.count):
        if (<const ProduceSlot *>&held.jobs[i].slot).connection == connection:
            return True
    return False
