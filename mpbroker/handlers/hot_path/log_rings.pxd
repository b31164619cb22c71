"""Producing ends of the rings to the log workers, and growing lists of descriptors."""
from libc.stdint cimport uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memmove

from mpbroker.ipc.counters cimport COUNT_RING_FULL
from shm.counters cimport CountersRef, counter_add
from shm.doorbell cimport BellRef, bell_ring
from shm.ring cimport RingRef, Slot, ring_publish, ring_stage, ring_want_space

cdef struct SlotList:
    Slot *slots
    uint64_t count
    uint64_t room

cdef struct LogPeer:
    RingRef *ring               # carries jobs and calls
    BellRef *bell
    SlotList waiting            # descriptors that found the ring full, oldest first
    bint asked_for_space
    bint staged

cdef inline int append(SlotList *list, const Slot *slot) noexcept nogil:
    cdef Slot *grown
    if list.count == list.room:
        grown = <Slot *>realloc(list.slots, (list.room * 2 + 256) * sizeof(Slot))
        if grown == NULL:
            return -1
        list.slots = grown
        list.room = list.room * 2 + 256
    list.slots[list.count] = slot[0]
    list.count += 1
    return 0

cdef inline int to_log(LogPeer *log, const Slot *job, CountersRef *counters) noexcept nogil:
    if log.waiting.count == 0 and ring_stage(log.ring, job):
        log.staged = True
        return 0
    if log.waiting.count == 0:
        counter_add(counters, COUNT_RING_FULL, 1)
    return append(&log.waiting, job)

cdef inline void drain_to_log(LogPeer *log) noexcept nogil:
    """Stage waiting descriptors while there is room; ask the log worker to wake the handler for the rest."""
    cdef uint64_t i = 0
    if log.waiting.count == 0:
        return
    while i < log.waiting.count and ring_stage(log.ring, &log.waiting.slots[i]):
        i += 1
    if i:
        log.staged = True
        log.waiting.count -= i
        memmove(log.waiting.slots, log.waiting.slots + i, log.waiting.count * sizeof(Slot))
    if (log.waiting.count != 0) != log.asked_for_space:
        log.asked_for_space = log.waiting.count != 0
        ring_want_space(log.ring, log.asked_for_space)

cdef inline void publish_log(LogPeer *log) noexcept nogil:
    if log.staged:
        log.staged = False
        ring_publish(log.ring)
        bell_ring(log.bell)
