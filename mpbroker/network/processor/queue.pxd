"""The request queue: each processor has a FIFO, and queued.max.requests limits the requests in all FIFOs and
those that handlers have not taken.

(Kafka: RequestChannel.requestQueue. A full queue blocks Kafka's network thread; here channels are not read.)
"""
from libc.stdint cimport uint32_t, uint64_t

from mpbroker.network.processor.channel cimport Channel
from mpbroker.network.processor.peers cimport Peers

cdef enum:
    FIFO_PLACES = 65536         # a power of two; at least one for each channel and window entry there can be
    ENTRY_TAG = 1 << 31         # in the FIFO: marks a request of the channel's window

cdef struct Queue:
    uint32_t *fifo              # requests that wait for a handler: channels, with ENTRY_TAG for their windows
    uint64_t fifo_head
    uint64_t fifo_tail
    # a word per process: requests in its FIFO or untaken; each processor writes its own
    uint64_t *queued
    uint64_t queued_elsewhere
    uint64_t queue_floor        # how many may be queued here, however many others have
    uint32_t queued_requests_max

cdef void exchange_queue_lengths(Queue *q, Peers *p) noexcept nogil
cdef bint await_room(Queue *q, Peers *p) noexcept nogil

cdef inline void enqueue(Queue *q, Channel *c) noexcept nogil:
    q.fifo[q.fifo_tail & (FIFO_PLACES - 1)] = c.index
    q.fifo_tail += 1

cdef inline void enqueue_entry(Queue *q, Channel *c) noexcept nogil:
    """Queue a request of the channel's window. Dispatch takes the oldest one that was not handed over."""
    q.fifo[q.fifo_tail & (FIFO_PLACES - 1)] = <uint32_t>ENTRY_TAG | c.index
    q.fifo_tail += 1

cdef inline uint64_t queued_here(Queue *q, Peers *p) noexcept nogil:
    return q.fifo_tail - q.fifo_head + p.untaken

cdef inline bint queue_is_full(Queue *q, Peers *p) noexcept nogil:
    """Return whether the queue is full for this processor. Each processor with queued requests keeps an equal
    part of a full queue, so that processors that have many requests in it do not shut out the others.
    """
    cdef uint64_t here = queued_here(q, p)
    return here + q.queued_elsewhere >= q.queued_requests_max and here >= q.queue_floor
