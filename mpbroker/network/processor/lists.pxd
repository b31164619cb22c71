"""The lists in which channels wait, and the changes between states of channels.

A channel is in a list while it waits for something, and at most once. Only in `marked` and `opening` its
place may be twice: another connection may get the place before Python has served the list.

    held        waits until the request queue has room; the longest waiting first
    starved     waits until the arena has memory; the longest waiting first
    deferred    waits for the next turn
    marked      waits for Python, which serves TLS and SASL
    opening     waits for Python to open segment files of its answer
    closed      waits for Python to log that its connection is closed (reports.pxd)

A channel may be in several lists, for example starved and deferred. `TABLE` in lists.pyx has, for each state,
the states that may follow and the lists that a channel may enter. Only `move` changes a state, and each
addition to a list is noted by `enter`. Both record what they did, and tests compare the records with `TABLE`.
"""
from libc.stdint cimport uint8_t, uint32_t

from mpbroker.network.processor.channel cimport Channel, ChannelState

cdef enum:
    CHANNEL_STATES = 8          # room for each ChannelState

cpdef enum ChannelList:
    LIST_HELD = 0
    LIST_STARVED = 1
    LIST_DEFERRED = 2
    LIST_MARKED = 3
    LIST_OPENING = 4
    LIST_CLOSED = 5

cdef struct Lists:
    uint32_t *free_channels
    uint32_t free_count
    uint32_t *held              # channels that wait for room in the queue, the longest waiting first
    uint32_t held_count
    uint32_t *marked            # channels that Python must serve; twice, if a place was reused meanwhile
    uint32_t marked_count
    uint32_t *deferred          # channels to serve in the next turn
    uint32_t deferred_count
    uint32_t *deferred_now
    bint soon                   # a deferred channel can go on at once: do not sleep
    uint32_t *starved           # channels that wait for memory, the longest waiting first
    uint32_t starved_count
    # channels in CHANNEL_OPENING since Python's last call; twice, if a place was reused meanwhile
    uint32_t *opening
    uint32_t opening_count
    uint32_t unopened_count     # the first of `opening` that found no room for their files when Python looked
    # by state, a bit each: the states that followed it, and the lists that a channel entered in it
    uint8_t moves[CHANNEL_STATES]
    uint8_t entries[CHANNEL_STATES]

cdef set noted_moves(Lists *l)
cdef set noted_entries(Lists *l)

cdef inline void move(Lists *l, Channel *c, uint8_t state) noexcept nogil:
    """Give the channel another state, and record the change."""
    l.moves[c.state] |= 1 << state
    c.state = state

cdef inline void enter(Lists *l, Channel *c, int which) noexcept nogil:
    """Record that a channel of this state enters a list."""
    l.entries[c.state] |= 1 << which

cdef inline void defer(Lists *l, Channel *c, bint soon) noexcept nogil:
    """Serve the channel again in the next turn. If `soon`, the next turn does not sleep first."""
    l.soon = l.soon or soon
    if not c.deferred:
        enter(l, c, ChannelList.LIST_DEFERRED)
        c.deferred = 1
        l.deferred[l.deferred_count] = c.index
        l.deferred_count += 1

cdef inline void defer_reading(Lists *l, Channel *c) noexcept nogil:
    if c.readable or c.stash or c.received:
        defer(l, c, True)

cdef inline void hold(Lists *l, Channel *c) noexcept nogil:
    """Stop reading the channel until there is room in the request queue."""
    c.checked_ns = 0
    if not c.held:
        enter(l, c, ChannelList.LIST_HELD)
        c.held = 1
        l.held[l.held_count] = c.index
        l.held_count += 1

cdef inline void starve(Lists *l, Channel *c) noexcept nogil:
    """Stop reading the channel until the arena of requests has memory."""
    c.checked_ns = 0
    if not c.starved:
        enter(l, c, ChannelList.LIST_STARVED)
        c.starved = 1
        l.starved[l.starved_count] = c.index
        l.starved_count += 1

cdef inline void mark(Lists *l, Channel *c) noexcept nogil:
    """Put the channel on the list of those that Python must serve."""
    if not c.marked:
        enter(l, c, ChannelList.LIST_MARKED)
        c.marked = 1
        l.marked[l.marked_count] = c.index
        l.marked_count += 1

cdef inline void await_files(Lists *l, Channel *c) noexcept nogil:
    enter(l, c, ChannelList.LIST_OPENING)
    l.opening[l.opening_count] = c.index
    l.opening_count += 1

cdef inline bint may_open(Lists *l, bint released) noexcept nogil:
    """Return whether Python should try to open files that answers wait for.

    It has not tried yet, or there was no room and files were `released` since.
    """
    return l.opening_count > l.unopened_count or (l.unopened_count and released)


cdef inline void free_place(Lists *l, Channel *c) noexcept nogil:
    """Free the place of a closed channel. If a list still has the channel, or Python has not read the report
    of its end, the code that takes it from the list or report calls this again.
    """
    move(l, c, ChannelState.CHANNEL_FREE)
    c.connection = 0
    if not c.deferred and not c.held and not c.starved and not c.unreported:
        l.free_channels[l.free_count] = c.index
        l.free_count += 1
