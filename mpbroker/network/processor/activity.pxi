# The order of activity: an intrusive list of the open channels, the least recently active first. Part of
# turn.pyx. (Kafka: Selector.IdleExpiryManager, a LinkedHashMap in access order.)

cdef inline void activity_append(ChannelTurn *t, uint32_t channel) noexcept nogil:
    cdef uint32_t last = t.links[t.channel_places].before
    t.links[channel].before = last
    t.links[channel].after = t.channel_places
    t.links[last].after = channel
    t.links[t.channel_places].before = channel

cdef inline void activity_remove(ChannelTurn *t, uint32_t channel) noexcept nogil:
    t.links[t.links[channel].before].after = t.links[channel].after
    t.links[t.links[channel].after].before = t.links[channel].before

cdef inline void active(ChannelTurn *t, Channel *c) noexcept nogil:
    """Note that the socket was readable or writable in this turn."""
    if c.last_active_ns != t.now_ns:
        c.last_active_ns = t.now_ns
        activity_remove(t, c.index)
        activity_append(t, c.index)

cdef inline Channel *least_active(ChannelTurn *t) noexcept nogil:
    """Return the least recently active channel; NULL when no connection is open."""
    cdef uint32_t first = t.links[t.channel_places].after
    return NULL if first == t.channel_places else &t.channels[first]

cdef inline int until_idle_ms(ChannelTurn *t, int timeout_ms, uint64_t now_ns) noexcept nogil:
    """Return how long to sleep at most: until some channel has been idle for too long."""
    cdef Channel *c = least_active(t) if t.idle_ns else NULL
    cdef uint64_t due_ns
    if c == NULL:
        return timeout_ms
    due_ns = c.last_active_ns + t.idle_ns
    if due_ns < now_ns:
        return 0 if timeout_ms <= 0 else 1
    due_ns -= now_ns
    return <int>(due_ns // 1000000 + 1) if due_ns < <uint64_t>timeout_ms * 1000000 else timeout_ms

cdef uint32_t close_idle_channels(ChannelTurn *t, uint64_t before_ns) noexcept nogil:
    """Close all channels last active before `before_ns`, whatever they wait for. (Kafka: one per poll.)"""
    cdef Channel *c = least_active(t)
    cdef uint32_t closed = 0
    while c != NULL and c.last_active_ns < before_ns:
        close_channel(t, c, CloseReason.CLOSED_IDLE, 0)
        closed += 1
        c = least_active(t)
    return closed
