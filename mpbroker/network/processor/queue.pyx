from libc.stdint cimport uint32_t, uint64_t

from mpbroker.network.processor.peers cimport CONTROL_PROCESSOR, FIRST_PROCESSOR, Peers, count_taken
from shm.atomics cimport load_relaxed, store_relaxed
from shm.ring cimport ring_want_space


cdef void exchange_queue_lengths(Queue *q, Peers *p) noexcept nogil:
    """Publish how many requests this processor has queued, and add up the numbers of the other processors."""
    cdef uint64_t elsewhere = 0, queued, busy = 1
    cdef uint32_t i
    count_taken(p)
    store_relaxed(&q.queued[p.process], queued_here(q, p))
    if p.process != CONTROL_PROCESSOR:      # the control plane has a queue of its own
        for i in range(<uint32_t>FIRST_PROCESSOR, <uint32_t>CONTROL_PROCESSOR):
            if i != p.process:
                queued = load_relaxed(&q.queued[i])
                elsewhere += queued
                busy += queued != 0
    q.queued_elsewhere = elsewhere
    q.queue_floor = (q.queued_requests_max + busy - 1) // busy

cdef bint await_room(Queue *q, Peers *p) noexcept nogil:
    """Ask handlers to wake this processor when they take its requests. Return whether there is room by now.

    Room also appears when handlers take requests of other processors, but then no handler wakes this
    processor. So callers must check again soon.
    """
    cdef uint64_t before = p.untaken
    cdef uint32_t h
    for h in range(p.handler_count):
        if p.handlers[h].alive and not p.handlers[h].wants_room:
            p.handlers[h].wants_room = True
            ring_want_space(&p.handlers[h].requests, True)
    exchange_queue_lengths(q, p)
    return p.untaken != before or not queue_is_full(q, p)
