# The turn's own memory and descriptors, all made at its start and given back at its end. Part of turn.pyx.

cdef void *allocated(size_t count, size_t size) except NULL:
    """Allocate zeroed memory; pages never used cost nothing. Raises MemoryError."""
    cdef void *made = calloc(count, size)
    if made == NULL:
        raise MemoryError(f"{count} times {size} bytes")
    return made

cdef ChannelTurn *empty_turn() except NULL:
    """Make a turn without descriptors, so that `release_turn` may be called whatever is missing later."""
    cdef ChannelTurn *t = <ChannelTurn *>allocated(1, sizeof(ChannelTurn))
    cdef uint32_t i
    t.epoll_fd = -1
    t.files.most = OPEN_FILES_MAX
    for i in range(<uint32_t>FILE_PLACES):
        t.files.places[i].fd = -1
    return t

cdef allocate_places(ChannelTurn *t, uint32_t channel_places):
    """Allocate the arrays for `channel_places` channels. Places are used from the lowest on."""
    t.channel_places = channel_places
    t.channels = <Channel *>allocated(channel_places, sizeof(Channel))
    t.links = <Links *>allocated(channel_places + 1, sizeof(Links))
    t.links[channel_places].before = t.links[channel_places].after = channel_places
    t.timers = <uint32_t *>allocated(channel_places + 1, sizeof(uint32_t))
    t.held = <uint32_t *>allocated(2 * channel_places, sizeof(uint32_t))
    t.starved = <uint32_t *>allocated(2 * channel_places, sizeof(uint32_t))
    t.marked = <uint32_t *>allocated(2 * channel_places, sizeof(uint32_t))
    t.opening = <uint32_t *>allocated(2 * channel_places, sizeof(uint32_t))
    t.late = <Event *>allocated(channel_places, sizeof(Event))
    t.closed = <Event *>allocated(channel_places, sizeof(Event))
    t.free_channels = <uint32_t *>allocated(channel_places, sizeof(uint32_t))
    t.deferred = <uint32_t *>allocated(channel_places, sizeof(uint32_t))
    t.deferred_now = <uint32_t *>allocated(channel_places, sizeof(uint32_t))
    t.fifo = <uint32_t *>allocated(FIFO_PLACES, sizeof(uint32_t))
    t.entries = <WindowEntry *>allocated(WINDOW_ENTRIES, sizeof(WindowEntry))
    t.free_entries = <uint32_t *>allocated(WINDOW_ENTRIES, sizeof(uint32_t))

cdef inline void close_own(Channel *c) noexcept nogil:
    """Close the descriptor of a channel, unless Python closes it."""
    if c.connection and not c.owned and c.fd >= 0:
        close(c.fd)

cdef void release_turn(ChannelTurn *t) noexcept nogil:
    """Free the turn. Nothing of it is shared, so this is safe whatever became of the broker's memory."""
    cdef uint32_t i
    for i in range(t.channels_used):
        close_own(&t.channels[i])
        free(t.channels[i].request.kept)
    for i in range(t.entries_used):
        free(t.entries[i].request.kept)
    for i in range(<uint32_t>FILE_PLACES):
        if t.files.places[i].fd >= 0:
            close(t.files.places[i].fd)
    for i in range(t.told_count):
        free(t.told[i].text)
    for i in range(<uint32_t>HANDLERS_MAX):
        free(t.handlers[i].owed)
    free(t.told)
    free(t.entries)
    free(t.free_entries)
    free(t.fifo)
    free(t.deferred_now)
    free(t.deferred)
    free(t.free_channels)
    free(t.late)
    free(t.closed)
    free(t.opening)
    free(t.marked)
    free(t.starved)
    free(t.held)
    free(t.timers)
    free(t.links)
    free(t.channels)
    if t.epoll_fd >= 0:
        close(t.epoll_fd)
    free(t)
