from libc.stdint cimport uint32_t

from mpbroker.network.processor.channel cimport Channel, WindowEntry
from mpbroker.network.processor.peers cimport Peers
from mpbroker.network.processor.queue cimport Queue, enqueue_entry


cdef void release_waiting(Window *w, Peers *p, Queue *q, Channel *c) noexcept nogil:
    """Queue a channel's waiting requests, unless a handler must first answer other requests of its window."""
    cdef uint32_t i
    cdef WindowEntry *e
    if c.window_closes or handler_of_window(w, p, c) != NULL:
        return
    for i in range(c.window_count):
        e = entry_at(w, c, i)
        if e.waiting:
            e.waiting = 0
            enqueue_entry(q, c)
    c.window_waiting = 0
