"""The paused produce jobs, in the order of their arrival.

A job is paused while one of its partitions is switched to another log directory, or for a round of other jobs
after Python has appended many batches of it.
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

cdef inline int32_t take_paused(PausedJobs *paused, Slot *jobs, uint32_t *batch) noexcept nogil:
    """Move the first paused job to `jobs`, and its next batch to `batch`. Return 1, the number of jobs."""
    jobs[0], batch[0] = paused.jobs[0].slot, paused.jobs[0].batch
    paused.retrying -= 1
    paused.count -= 1
    memmove(paused.jobs, paused.jobs + 1, paused.count * sizeof(PausedJob))
    return 1

cdef inline bint is_behind_paused(PausedJobs *paused, const Slot *job) noexcept nogil:
    """Return whether an earlier job of the same connection is paused.

    The first `retrying` paused jobs do not count: they are later than the job that is being retried.
    """
    cdef uint64_t connection = (<const ProduceSlot *>job).connection
    cdef int32_t i
    if connection == 0:
        return False
    for i in range(paused.retrying, paused.count):
        if (<const ProduceSlot *>&paused.jobs[i].slot).connection == connection:
            return True
    return False
