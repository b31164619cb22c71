# When the arena is used up: channels wait, the longest waiting go on first. Part of turn.pyx.
# (Kafka: SimpleMemoryPool, and Selector's muting while it is out of memory.)

cdef inline bint memory_is_out(Turn *t) noexcept nogil:
    """While there is a byte left, a request of any size is let in."""
    return t.arena.in_use_bytes >= t.arena.limit_bytes

cdef inline bint memory_is_low(Turn *t) noexcept nogil:
    return t.arena.in_use_bytes + t.arena.limit_bytes // LOW_MEMORY_SHARE > t.arena.limit_bytes

cdef void memory_full(Turn *t, Channel *c) noexcept nogil:
    """The channel is muted until there is memory."""
    counter_add(t.counters, Counter.COUNT_MEMORY_FULL, 1)
    if not mute_event(t, c, MUTE):
        close_channel(t, c, CloseReason.CLOSED_ILLEGAL_STATE, c.mute)
        return
    if t.dry_since_ns == 0:
        t.dry_since_ns = t.now_ns
        t.next_stall_check_ns = t.now_ns
    if not c.starved:
        c.starved = 1
        t.starved[t.starved_count] = c.index
        t.starved_count += 1

cdef void end_dry_spell(Turn *t) noexcept nogil:
    if t.dry_since_ns and not memory_is_out(t):
        counter_add(t.counters, Counter.COUNT_MEMORY_DEPLETED_NS, t.now_ns - t.dry_since_ns)
        t.dry_since_ns = 0

cdef void feed_starved(Turn *t) noexcept nogil:
    """Lets channels go on that waited for memory, as many as there is some for."""
    cdef uint32_t count = t.starved_count, fed = 0, i
    cdef Channel *c
    end_dry_spell(t)
    while fed < count and not memory_is_out(t):
        c = &t.channels[t.starved[fed]]
        fed += 1
        c.starved = 0
        if c.state == ChannelState.CHANNEL_FREE:
            free_place(t, c)
        elif c.state == ChannelState.CHANNEL_READING and mute_event(t, c, UNMUTE):
            read_channel(t, c)
    if fed:
        # Who found nothing once more stands behind those that were not looked at.
        memmove(t.starved, t.starved + fed, (t.starved_count - fed) * sizeof(uint32_t))
        t.starved_count -= fed

cdef bint replies_are_out(Turn *t) noexcept nogil:
    """Whether a handler has no room for an answer: others have answers of it that they do not read."""
    cdef uint32_t h
    for h in range(t.handler_count):
        if load_relaxed(&t.replies_out[h]):
            return True
    return False

cdef void close_stalled(Turn *t) noexcept nogil:
    """While others starve, whoever holds memory and makes no progress loses it. Looked at ten times a second."""
    cdef Channel *c = least_active(t)
    cdef Channel *following
    cdef uint32_t place
    if t.now_ns < t.next_stall_check_ns:
        return
    t.next_stall_check_ns = t.now_ns + STALL_CHECK_NS
    while c != NULL and c.last_active_ns + t.stall_ns < t.now_ns:
        place = t.links[c.index].after
        following = NULL if place == t.channel_places else &t.channels[place]
        if not c.starved and (c.state == ChannelState.CHANNEL_SENDING or c.state == ChannelState.CHANNEL_READING):
            if c.block or c.stash:
                close_channel(t, c, CloseReason.CLOSED_STALLED, c.received)
        c = following

cdef void shuffle(Turn *t, epoll_event *events, int count) noexcept nogil:
    """Memory is low: in the order of their descriptors the same sockets would get it again and again."""
    cdef int i
    cdef uint64_t k
    cdef epoll_event other
    for i in range(count - 1, 0, -1):
        t.dice ^= t.dice << 13
        t.dice ^= t.dice >> 7
        t.dice ^= t.dice << 17
        k = t.dice % <uint64_t>(i + 1)
        other = events[i]
        events[i] = events[k]
        events[k] = other
