"""Produce jobs that wait while a partition of theirs is put in place in another log directory, in their order."""
from libc.stdint cimport int32_t, uint32_t
from libc.string cimport memmove

from shm.ring cimport Slot

cdef struct HeldJob:
    Slot slot
    uint32_t batch              # those before it are appended

cdef struct HeldJobs:
    HeldJob *jobs
    int32_t count
    int32_t room
    int32_t retrying            # so many of the first ones are taken again, one a round

cdef inline int32_t take_held(HeldJobs *held, Slot *jobs, uint32_t *batch) noexcept nogil:
    """The first of them; it goes on where it stopped, so it has its round for itself."""
    jobs[0], batch[0] = held.jobs[0].slot, held.jobs[0].batch
    held.retrying -= 1
    held.count -= 1
    memmove(held.jobs, held.jobs + 1, held.count * sizeof(HeldJob))
    return 1
