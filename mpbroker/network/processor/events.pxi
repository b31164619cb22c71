# Part of turn.pyx: which channels go on after socket events, and whether the next turn may sleep.

cdef bint is_ordered(ChannelTurn *t) noexcept nogil:
    """Return whether the supervisor or an acceptor wants something that Python does."""
    if load_acquire(t.order) != t.order_seen or load_acquire(t.fence_order) != t.fence_order_seen:
        return True
    return load_acquire(t.evictions_asked) != load_relaxed(t.evictions_done)

cdef bint must_stay_awake(ChannelTurn *t) noexcept nogil:
    cdef uint32_t h
    if t.soon or t.made_room or t.marked_count or may_open(t):
        return True
    for h in range(t.log_count):
        if ring_waiting(&t.log_answers[h]):
            return True
    if is_ordered(t):
        return True
    for h in range(t.handler_count):
        if t.handlers[h].known and ring_waiting(&t.handlers[h].answers):
            return True
    return False

cdef void walk_deferred(ChannelTurn *t) noexcept nogil:
    cdef uint32_t *list_now = t.deferred
    cdef uint32_t count = t.deferred_count, i
    cdef Channel *c
    t.deferred = t.deferred_now
    t.deferred_now = list_now
    t.deferred_count = 0
    for i in range(count):
        c = &t.channels[list_now[i]]
        c.deferred = 0
        if c.state == ChannelState.CHANNEL_FREE:
            free_place(t, c)
        elif c.secure == NEGOTIATING:
            mark(t, c)
        elif c.state == ChannelState.CHANNEL_SENDING:
            go_on_sending(t, c)
        else:
            if c.secure and window_holds_answers(t, c):
                mark(t, c)
            if c.state == ChannelState.CHANNEL_READING and not c.starved and not c.held:
                read_channel(t, c)

cdef void socket_event(ChannelTurn *t, Channel *c, uint32_t events) noexcept nogil:
    if events & (EPOLLERR | EPOLLHUP):
        close_channel(t, c, CloseReason.CLOSED_BY_PEER, 0)
        return
    if events & EPOLLRDHUP:
        c.ended = 1
    if events & (EPOLLIN | EPOLLRDHUP):
        c.readable = 1
    if events & EPOLLRDHUP and c.state == ChannelState.CHANNEL_WAITING and c.request.parked:
        close_channel(t, c, CloseReason.CLOSED_BY_PEER, 0)
        return
    if c.window_count and events & EPOLLOUT:
        flush_window(t, c)
    if c.secure == NEGOTIATING:
        mark(t, c)
    elif c.state == ChannelState.CHANNEL_SENDING:
        if events & EPOLLOUT:
            go_on_sending(t, c)
    elif c.state == ChannelState.CHANNEL_READING and c.readable and not c.starved and not c.held:
        read_channel(t, c)

cdef void go_on(ChannelTurn *t) noexcept nogil:
    """Let channels go on whose time, turn, place in the queue or memory has come."""
    end_throttles(t)
    if t.deferred_count:
        walk_deferred(t)
    if t.held_count:
        release_held(t)
    if t.dry_since_ns or t.starved_count:
        feed_starved(t)
        close_stalled(t)
    elif t.unopened_count or replies_are_out(t):
        close_stalled(t)
    if t.idle_ns and t.idle_ns < t.now_ns:
        close_idle_channels(t, t.now_ns - t.idle_ns)

cdef void before_sleep(ChannelTurn *t) noexcept nogil:
    """Find what keeps the next turn from sleeping, and publish what others read."""
    if t.held_count:
        await_room(t)
    else:
        store_relaxed(&t.queued[t.process], queued_here(t))
    if t.starved_count and may_have_room(t):
        t.soon = True
    if t.files.count or t.unopened_count:
        look_at_files(t)
    count_dry(t)
    counter_set(t.counters, Counter.COUNT_ARENA_BYTES, t.arena.in_use_bytes)
    counter_set(t.counters, Counter.COUNT_QUEUED_REQUESTS, queued_here(t))
    counter_set(t.counters, Counter.COUNT_RESPONSES_WAITING, t.answers_waiting)
    t.answers_waiting = 0
