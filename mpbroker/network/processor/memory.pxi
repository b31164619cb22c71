# When the arena is used up: channels wait, and the longest waiting go on first. Part of turn.pyx. (Kafka:
# SimpleMemoryPool, and Selector's muting while it is out of memory.)

cdef inline bint memory_is_out(ChannelTurn *t) noexcept nogil:
    """Return whether no byte is left. While one is left, a request of any size is let in."""
    return t.arena.in_use_bytes >= t.arena.limit_bytes

cdef inline bint memory_is_low(ChannelTurn *t) noexcept nogil:
    return t.arena.in_use_bytes + t.arena.limit_bytes // LOW_MEMORY_SHARE > t.arena.limit_bytes

cdef inline bint may_have_room(ChannelTurn *t) noexcept nogil:
    """Return whether a refused allocation may succeed now. A fragmented extent refuses too."""
    if memory_is_out(t):
        return False
    return t.arena.releases != t.refused_at or t.arena.limit_bytes != t.refused_limit

cdef uint64_t allocate_more(ChannelTurn *t, uint64_t asked) noexcept nogil:
    """Allocate for a channel that holds the beginning of its frame."""
    if not t.beyond:
        return arena_allocate(t.arena, asked)
    t.beyond = False
    return arena_allocate_beyond(t.arena, asked)

cdef void memory_full(ChannelTurn *t, Channel *c) noexcept nogil:
    """Mute the channel until there is memory."""
    counter_add(t.counters, Counter.COUNT_MEMORY_FULL, 1)
    if not mute_event(t, c, MUTE):
        close_channel(t, c, CloseReason.CLOSED_ILLEGAL_STATE, c.mute)
        return
    t.refused_at, t.refused_limit = t.arena.releases, t.arena.limit_bytes
    if t.dry_since_ns == 0:
        t.dry_since_ns = t.now_ns
        t.next_stall_check_ns = t.now_ns
    c.marked_ns = 0
    if not c.starved:
        c.starved = 1
        t.starved[t.starved_count] = c.index
        t.starved_count += 1

cdef void count_dry(ChannelTurn *t) noexcept nogil:
    """Count the part of a dry spell that has passed, so that an outage is seen while it lasts."""
    if t.dry_since_ns and t.dry_since_ns < t.now_ns:
        counter_add(t.counters, Counter.COUNT_MEMORY_DEPLETED_NS, t.now_ns - t.dry_since_ns)
        t.dry_since_ns = t.now_ns

cdef void end_dry_spell(ChannelTurn *t) noexcept nogil:
    count_dry(t)
    if may_have_room(t):
        t.dry_since_ns = 0

cdef void feed(ChannelTurn *t, Channel *c) noexcept nogil:
    c.starved = 0
    if c.state == ChannelState.CHANNEL_FREE:
        free_place(t, c)
    elif c.state == ChannelState.CHANNEL_READING and mute_event(t, c, UNMUTE):
        read_channel(t, c)

cdef inline void forget_starved(ChannelTurn *t, uint32_t first, uint32_t count) noexcept nogil:
    memmove(
        t.starved + first, t.starved + first + count, (t.starved_count - first - count) * sizeof(uint32_t))
    t.starved_count -= count

cdef void feed_starved(ChannelTurn *t) noexcept nogil:
    """Let channels that waited for memory go on, as far as there is memory."""
    cdef uint32_t count = t.starved_count, fed = 0
    end_dry_spell(t)
    if not may_have_room(t):
        return
    while fed < count and not memory_is_out(t):
        fed += 1
        feed(t, &t.channels[t.starved[fed - 1]])
    if fed:
        # Channels that found none again now follow those not tried.
        forget_starved(t, 0, fed)

cdef void end_jam(ChannelTurn *t) noexcept nogil:
    """Let the longest waiting channel go beyond the limit if all memory is with channels that wait for more.
    Otherwise none would ever be freed. One at a time, as a single request may exceed the limit anyway. One
    that is throttled as well waits longer.
    """
    cdef uint64_t held = 0
    cdef uint32_t i, first = t.starved_count
    cdef Channel *c
    for i in range(t.starved_count):
        c = &t.channels[t.starved[i]]
        if c.state == ChannelState.CHANNEL_READING or c.state == ChannelState.CHANNEL_THROTTLED:
            held += (c.request.block != 0) + (c.stash != 0)
            if (
                first == t.starved_count and c.state == ChannelState.CHANNEL_READING
                and (c.request.block or c.stash)
            ):
                first = i
    if first < t.starved_count and held == t.arena.blocks_out:
        c = &t.channels[t.starved[first]]
        t.beyond = True
        feed(t, c)
        t.beyond = False
        forget_starved(t, first, 1)

cdef uint64_t answer_bytes(ChannelTurn *t, Channel *c) noexcept nogil:
    """Return the size of an answer that is made of parts."""
    cdef uint64_t total = 0
    cdef uint32_t i
    for i in range(c.request.answer.length):
        total += (parts_of(t, &c.request.answer) + i).length
    return total

cdef inline bint holds_files(Channel *c) noexcept nogil:
    return c.state == ChannelState.CHANNEL_SENDING and c.request.answer.kind == SlotKind.SEND_PARTS

cdef uint64_t progress_asked(ChannelTurn *t, Channel *c) noexcept nogil:
    """Return the bytes that a channel must move within `stall_ns` while others starve."""
    cdef ReplySlot *a = &c.request.answer
    cdef uint64_t holds = c.request.asked_bytes if c.request.block else 0
    if t.unopened_count and holds_files(c):
        holds = answer_bytes(t, c)
    if c.state == ChannelState.CHANNEL_SENDING and a.kind == SlotKind.SEND and a.length > holds:
        holds = a.length
    holds //= PROGRESS_SHARE
    return holds if holds > PROGRESS_BYTES else PROGRESS_BYTES

cdef bint is_stalled(ChannelTurn *t, Channel *c) noexcept nogil:
    """Return whether a channel holds memory, could move, and has moved too little for too long. Single bytes
    are no progress.
    """
    if (c.starved or c.held) and not window_holds_answers(t, c):
        return False
    # A sending channel holds an answer, whatever became of the request.
    if c.state != ChannelState.CHANNEL_SENDING and not window_holds_answers(t, c) and not (
        c.state == ChannelState.CHANNEL_READING and (c.request.block or c.stash) and not c.barred
    ):
        return False
    if c.last_active_ns + t.stall_ns < t.now_ns:
        return True
    if c.marked_ns and t.now_ns - c.marked_ns < t.stall_ns:
        return False
    if c.marked_ns and c.moved_bytes - c.marked_bytes < progress_asked(t, c):
        return True
    c.marked_ns, c.marked_bytes = t.now_ns, c.moved_bytes
    return False

cdef inline bint only_keeps(ChannelTurn *t, Channel *c) noexcept nogil:
    """Return whether a channel has held only bytes pipelined after a parked request or a throttle, for
    `stall_ns`. Such a channel waits for us. Close it only if that frees memory another one waits for.
    """
    if c.last_active_ns + t.stall_ns >= t.now_ns:
        return False
    if c.state == ChannelState.CHANNEL_WAITING:
        return c.request.parked and c.stash != 0
    return c.state == ChannelState.CHANNEL_THROTTLED and (c.stash != 0 or c.request.block != 0)

cdef bint replies_are_out(ChannelTurn *t) noexcept nogil:
    """Return whether a handler lacks room for an answer: other clients do not read theirs."""
    cdef uint32_t h
    for h in range(t.handler_count):
        if load_relaxed(&t.replies_out[h]):
            return True
    return False

cdef inline bint may_be_stalled(ChannelTurn *t) noexcept nogil:
    """Return whether channels wait for memory or files, so that stalled ones must be found."""
    return t.dry_since_ns or t.starved_count or t.unopened_count or replies_are_out(t)

cdef void close_stalled(ChannelTurn *t) noexcept nogil:
    """Close channels that make no progress with memory or files others wait for, ten times a second."""
    cdef uint32_t place = t.links[t.channel_places].after
    cdef bint memory = t.dry_since_ns or t.starved_count or replies_are_out(t)
    cdef Channel *c
    if t.now_ns < t.next_stall_check_ns:
        return
    t.next_stall_check_ns = t.now_ns + STALL_CHECK_NS
    while place != t.channel_places:
        c = &t.channels[place]
        place = t.links[place].after
        if not memory and not holds_files(c):
            continue
        if is_stalled(t, c) or (t.starved_count and not may_have_room(t) and only_keeps(t, c)):
            close_channel(t, c, CloseReason.CLOSED_STALLED, c.received)
    end_jam(t)

cdef void shuffle(ChannelTurn *t, epoll_event *events, int count) noexcept nogil:
    """Shuffle events while memory is low, so that it does not always go to the same sockets."""
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
