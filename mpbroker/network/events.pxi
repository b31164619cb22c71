# What a wake-up brings to single channels: readiness, and their turn. Part of turn.pyx.

cdef void walk_deferred(Turn *t) noexcept nogil:
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
        elif c.state == ChannelState.CHANNEL_SENDING:
            go_on_sending(t, c)
        elif c.state == ChannelState.CHANNEL_READING and not c.starved and not c.held:
            read_channel(t, c)

cdef void socket_event(Turn *t, Channel *c, uint32_t events) noexcept nogil:
    if events & (EPOLLERR | EPOLLHUP):
        close_channel(t, c, CloseReason.CLOSED_BY_PEER, 0)
        return
    if events & EPOLLRDHUP:
        c.ended = 1
    if events & (EPOLLIN | EPOLLRDHUP):
        c.readable = 1
    if events & EPOLLRDHUP and c.state == ChannelState.CHANNEL_WAITING and c.parked:
        close_channel(t, c, CloseReason.CLOSED_BY_PEER, 0)
        return
    if c.secure == NEGOTIATING:
        mark(t, c)
    elif c.state == ChannelState.CHANNEL_SENDING:
        if events & EPOLLOUT:
            go_on_sending(t, c)
    elif c.state == ChannelState.CHANNEL_READING and c.readable and not c.starved and not c.held:
        read_channel(t, c)
