"""The request queue: each processor has a FIFO, and queued.max.requests limits the requests in all FIFOs and
those that handlers have not taken.

(Kafka: RequestChannel.requestQueue. A full queue blocks Kafka's network thread; here channels are not read.)

Patient requests (patience.pxd) wait for company while there are no others in the FIFO. They do not count as
queued meanwhile, since a full queue would hold up other requests.
"""
from libc.stdint cimport uint32_t, uint64_t

from mpbroker.network.processor.channel cimport Channel
from mpbroker.network.processor.peers cimport Peers

cdef enum:
    FIFO_PLACES = 65536         # a power of two; at least one for each channel and window entry there can be
    ENTRY_TAG = 1 << 31         # in the FIFO: marks a request of the channel's window
    COMPANY_MAX = 64            # patient requests that are enough company for each other

cdef struct Queue:
    uint32_t *fifo              # requests that wait for a handler: channels, with ENTRY_TAG for their windows
    uint64_t fifo_head
    uint64_t fifo_tail
    uint64_t patience_ns        # for how long patient requests wait for company at most
    uint64_t patient_until_ns   # all requests in the FIFO may wait until then; 0: they may not
    # a word per process: requests in its FIFO or untaken; each processor writes its own
    uint64_t *queued
    uint64_t queued_elsewhere
    uint64_t queue_floor        # how many may be queued here, however many others have
    uint32_t queued_requests_max

cdef void exchange_queue_lengths(Queue *q, Peers *p) noexcept nogil
cdef bint await_room(Queue *q, Peers *p) noexcept nogil

cdef inline void end_patience(Queue *q) noexcept nogil:
    """Let no request of the FIFO wait any longer."""
    q.patient_until_ns = 0

cdef inline bint is_waiting(Queue *q) noexcept nogil:
    """Return whether all requests in the FIFO wait for company."""
    return q.patient_until_ns != 0 and q.fifo_tail - q.fifo_head < COMPANY_MAX

cdef inline void enqueue(Queue *q, Channel *c) noexcept nogil:
    end_patience(q)
    q.fifo[q.fifo_tail & (FIFO_PLACES - 1)] = c.index
    q.fifo_tail += 1

cdef inline void enqueue_entry(Queue *q, Channel *c) noexcept nogil:
    """Queue a request of the channel's window. Dispatch takes the oldest one that was not handed over."""
    end_patience(q)
    q.fifo[q.fifo_tail & (FIFO_PLACES - 1)] = <uint32_t>ENTRY_TAG | c.index
    q.fifo_tail += 1

cdef inline uint64_t patience_of(Queue *q, uint64_t now_ns) noexcept nogil:
    """Return `patient_until_ns` as it is to be after a patient request is queued."""
    return now_ns + q.patience_ns if q.fifo_head == q.fifo_tail else q.patient_until_ns

cdef inline int until_dispatch_ms(Queue *q, int timeout_ms, uint64_t now_ns) noexcept nogil:
    """Return the ms until the requests that wait for company have to go, rounded up, `timeout_ms` at most."""
    cdef uint64_t left_ns
    if not is_waiting(q):
        return timeout_ms
    if q.patient_until_ns <= now_ns:
        return 0
    left_ns = q.patient_until_ns - now_ns
    return <int>((left_ns + 999999) // 1000000) if left_ns < <uint64_t>timeout_ms * 1000000 else timeout_ms

cdef inline uint64_t queued_here(Queue *q, Peers *p) noexcept nogil:
    return p.untaken if is_waiting(q) else q.fifo_tail - q.fifo_head + p.untaken

cdef inline bint queue_is_full(Queue *q, Peers *p) noexcept nogil:
    """Return whether the queue is full for this processor. Each processor with queued requests keeps an equal
    part of a full queue, so that processors that have many requests in it do not shut out the others.
    """
    cdef uint64_t here = queued_here(q, p)
    return here + q.queued_elsewhere >= q.queued_requests_max and here >= q.queue_floor
