"""The window of a connection: requests under way while the next one is read (window_apis.py has the APIs).

A whole request of such an API moves from its channel to an entry of the window, and the channel continues to
read. One handler has all of a window's requests at a time, in the order in which they came, since rings are
FIFO. Answers come in any order and are written in the order of the requests. A whole request of another API
waits until the window is empty (`barred`), and nothing after it is read. TLS channels receive and send
through OpenSSL (turn_tls.pyx).
"""
from libc.stdint cimport uint8_t, uint32_t

from mpbroker.network.processor.apis cimport API_KEYS, IN_PIECES_BYTES, Api
from mpbroker.network.processor.channel cimport NO_HANDLER, WINDOW_MOST, Channel, WindowEntry
from mpbroker.network.processor.peers cimport Peer, Peers
from mpbroker.network.processor.queue cimport Queue, enqueue_entry

cdef enum:
    WINDOW_ENTRIES = 32768      # requests in windows of all channels together

cdef struct Window:
    WindowEntry *entries        # requests in windows
    uint32_t *free_entries
    uint32_t free_entry_count
    uint32_t entries_used       # places from here on were never used
    uint32_t window_most        # requests of a connection that may be under way
    uint8_t in_window[API_KEYS]  # whether the API's requests go into windows (window_apis.py)

cdef void release_waiting(Window *w, Peers *p, Queue *q, Channel *c) noexcept nogil

cdef inline WindowEntry *entry_at(Window *w, Channel *c, uint32_t i) noexcept nogil:
    """Return the window's entry number `i`; 0 is the oldest."""
    return &w.entries[c.window[(c.window_first + i) % WINDOW_MOST]]

cdef inline bint window_is_full(Window *w, Channel *c) noexcept nogil:
    return c.window_count != 0 and c.window_count >= w.window_most

cdef inline bint window_holds_answers(Window *w, Channel *c) noexcept nogil:
    """Return whether the answer to the window's oldest request has come, but is not written yet."""
    return c.window_count != 0 and entry_at(w, c, 0).answered

cdef inline bint may_enter_window(Window *w, Channel *c) noexcept nogil:
    """Return whether the channel's request, whose header is parsed, may enter the window.

    Handlers keep the order of Produce requests. A long OffsetCommit must not enter, because it is served in
    pieces and later requests would overtake it.
    """
    return (
        w.window_most > 1 and w.in_window[c.request.api_key]
        and (c.request.api_key == Api.API_PRODUCE or c.request.needed < IN_PIECES_BYTES)
        and c.window_count < w.window_most
        and (w.free_entry_count != 0 or w.entries_used < WINDOW_ENTRIES)
    )

cdef inline void enter_window(Window *w, Queue *q, Channel *c) noexcept nogil:
    """Move the channel's request into its window and the FIFO."""
    cdef uint32_t place
    cdef WindowEntry *e
    if w.free_entry_count:
        w.free_entry_count -= 1
        place = w.free_entries[w.free_entry_count]
    else:
        place = w.entries_used
        w.entries_used += 1
    e = &w.entries[place]
    e.request = c.request
    e.channel, e.answered, e.waiting, e.sent = c.index, 0, 0, 0
    c.window[(c.window_first + c.window_count) % WINDOW_MOST] = place
    c.window_count += 1
    c.window_owed += 1
    c.request.number = 0        # an answer that names it is not the channel's
    c.request.block = 0
    c.request.kept = NULL
    c.request.needed = 0
    c.received = 0
    enqueue_entry(q, c)

cdef inline Peer *handler_of_window(Window *w, Peers *p, Channel *c) noexcept nogil:
    """Return the handler that has requests of the window; NULL if no handler has any."""
    cdef uint32_t i
    cdef WindowEntry *e
    for i in range(c.window_count):
        e = entry_at(w, c, i)
        if not e.answered and e.request.handler != NO_HANDLER:
            return &p.handlers[e.request.handler]
    return NULL

cdef inline WindowEntry *next_of_window(Window *w, Channel *c) noexcept nogil:
    """Return the window's oldest entry that is in the FIFO; NULL if there is none."""
    cdef uint32_t i
    cdef WindowEntry *e
    for i in range(c.window_count):
        e = entry_at(w, c, i)
        if not e.answered and not e.waiting and e.request.handler == NO_HANDLER:
            return e
    return NULL

cdef inline WindowEntry *entry_of(Window *w, Channel *c, uint32_t number) noexcept nogil:
    """Return the window's entry of the request `number` if it is not answered; otherwise NULL."""
    cdef uint32_t i
    cdef WindowEntry *e
    for i in range(c.window_count):
        e = entry_at(w, c, i)
        if e.request.number == number:
            return e if not e.answered else NULL
    return NULL

cdef inline void leave_window(Window *w, Channel *c) noexcept nogil:
    """Remove the window's oldest entry, whose block is freed already."""
    w.free_entries[w.free_entry_count] = c.window[c.window_first]
    w.free_entry_count += 1
    c.window_first = (c.window_first + 1) % WINDOW_MOST
    c.window_count -= 1
