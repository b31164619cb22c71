# The turn's own memory and descriptors, all made at its start and given back at its end.
from libc.stdint cimport uint32_t
from libc.stdlib cimport free
from posix.unistd cimport close

from mpbroker.network.processor.activity cimport Links
from mpbroker.network.processor.channel cimport Channel, WindowEntry
from mpbroker.network.processor.files cimport FILE_PLACES, OPEN_FILES_MAX
from mpbroker.network.processor.peers cimport HANDLERS_MAX
from mpbroker.network.processor.queue cimport FIFO_PLACES
from mpbroker.network.processor.reports cimport Event
from mpbroker.network.processor.window_entries cimport WINDOW_ENTRIES
from shm.zeroed cimport zeroed


cdef void *allocated(size_t count, size_t size) except NULL:
    """Allocate zeroed memory. Pages that are never used cost nothing. Raise MemoryError."""
    cdef void *made = zeroed(count, size)
    if made == NULL:
        raise MemoryError(f"{count} times {size} bytes")
    return made

cdef ChannelTurn *empty_turn() except NULL:
    """Allocate a turn whose descriptors are unset, so that `release_turn` is always safe to call."""
    cdef ChannelTurn *t = <ChannelTurn *>allocated(1, sizeof(ChannelTurn))
    cdef uint32_t i
    t.epoll_fd = -1
    t.files.most = OPEN_FILES_MAX
    for i in range(<uint32_t>FILE_PLACES):
        t.files.places[i].fd = -1
    return t

cdef allocate_places(ChannelTurn *t, uint32_t channel_places):
    """Allocate the arrays for `channel_places` channels. Places that are never used cost no memory."""
    t.channel_places = channel_places
    t.channels = <Channel *>allocated(channel_places, sizeof(Channel))
    t.activity.links = <Links *>allocated(channel_places + 1, sizeof(Links))
    t.activity.head = channel_places
    t.activity.links[channel_places].before = t.activity.links[channel_places].after = channel_places
    t.mutes.timers = <uint32_t *>allocated(channel_places + 1, sizeof(uint32_t))
    t.lists.held = <uint32_t *>allocated(2 * channel_places, sizeof(uint32_t))
    t.lists.starved = <uint32_t *>allocated(2 * channel_places, sizeof(uint32_t))
    t.lists.marked = <uint32_t *>allocated(2 * channel_places, sizeof(uint32_t))
    t.lists.opening = <uint32_t *>allocated(2 * channel_places, sizeof(uint32_t))
    t.reports.late = <Event *>allocated(channel_places, sizeof(Event))
    t.reports.closed = <Event *>allocated(channel_places, sizeof(Event))
    t.lists.free_channels = <uint32_t *>allocated(channel_places, sizeof(uint32_t))
    t.lists.deferred = <uint32_t *>allocated(channel_places, sizeof(uint32_t))
    t.lists.deferred_now = <uint32_t *>allocated(channel_places, sizeof(uint32_t))
    t.queue.fifo = <uint32_t *>allocated(FIFO_PLACES, sizeof(uint32_t))
    t.window.entries = <WindowEntry *>allocated(WINDOW_ENTRIES, sizeof(WindowEntry))
    t.window.free_entries = <uint32_t *>allocated(WINDOW_ENTRIES, sizeof(uint32_t))

cdef void connect_parts(ChannelTurn *t) noexcept:
    """Set the pointers from parts of the turn to other parts. They never change again."""
    t.activity.channels = t.mutes.channels = t.channels
    t.peers.process = t.process
    t.peers.arena = t.memory.arena
    t.peers.counters = t.memory.counters = t.metering.counters = t.mutes.counters = t.counters
    t.metering.sessions = t.sessions
    t.metering.peers = &t.peers

cdef inline void close_own(Channel *c) noexcept nogil:
    """Close the descriptor of a channel if it belongs to the turn, not to Python."""
    if c.connection and not c.owned and c.fd >= 0:
        close(c.fd)

cdef void release_turn(ChannelTurn *t) noexcept nogil:
    """Free the turn. Read no shared memory, so that this is safe even if the broker's memory is damaged."""
    cdef uint32_t i
    for i in range(t.channels_used):
        close_own(&t.channels[i])
        free(t.channels[i].request.kept)
    for i in range(t.window.entries_used):
        free(t.window.entries[i].request.kept)
    for i in range(<uint32_t>FILE_PLACES):
        if t.files.places[i].fd >= 0:
            close(t.files.places[i].fd)
    for i in range(t.metering.told_count):
        free(t.metering.told[i].text)
    for i in range(<uint32_t>HANDLERS_MAX):
        free(t.peers.handlers[i].owed)
    free(t.metering.told)
    free(t.window.entries)
    free(t.window.free_entries)
    free(t.queue.fifo)
    free(t.lists.deferred_now)
    free(t.lists.deferred)
    free(t.lists.free_channels)
    free(t.reports.late)
    free(t.reports.closed)
    free(t.lists.opening)
    free(t.lists.marked)
    free(t.lists.starved)
    free(t.lists.held)
    free(t.mutes.timers)
    free(t.activity.links)
    free(t.channels)
    if t.epoll_fd >= 0:
        close(t.epoll_fd)
    free(t)
