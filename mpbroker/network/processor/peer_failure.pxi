# What is mended when a handler or the log process has died. Part of turn.pyx.

cdef bint is_repeatable(int16_t api_key) noexcept nogil:
    """Whether a request that a dead handler may have begun can be given to another: it reads. Metadata may create topics,
    and creates none that is there."""
    return api_key in (
        Api.API_FETCH, Api.API_LIST_OFFSETS, Api.API_METADATA, Api.API_FIND_COORDINATOR, Api.API_API_VERSIONS,
        Api.API_DESCRIBE_CONFIGS, Api.API_DESCRIBE_CLUSTER,
    )

cdef bint may_try_again(Channel *c) noexcept nogil:
    """One that kills whoever takes it must not go through all handlers, and a large one may be what its handler was at work
    on when it was killed as hanging."""
    c.deaths += 1
    return is_repeatable(c.api_key) and c.needed < HEAVY_BYTES and c.deaths < DEATHS_MAX

cdef void lose_answer_of(Turn *t, Channel *c, uint32_t owner) noexcept nogil:
    """What is being sent out of a dead handler's arena cannot be finished: the arena is about to be reset."""
    if c.state == ChannelState.CHANNEL_SENDING or c.state == ChannelState.CHANNEL_OPENING:
        if c.answer.owner == owner and c.answer.block:
            close_channel(t, c, CloseReason.CLOSED_ROLE_DIED, owner)

cdef void mend_handler(Turn *t, uint32_t number) noexcept nogil:
    """After the log process's fence: untaken requests and those that may be repeated go to another handler, the rest closes."""
    cdef Peer *peer = &t.handlers[number]
    cdef uint64_t taken = load_acquire(peer.requests.head)
    cdef uint32_t i
    cdef Channel *c
    take_all_answers(t)
    for i in range(t.channels_used):
        c = &t.channels[i]
        if c.state == ChannelState.CHANNEL_FREE:
            continue
        lose_answer_of(t, c, peer.process)
        if c.handler != number or (c.state != ChannelState.CHANNEL_WAITING and c.state != ChannelState.CHANNEL_CLOSED):
            continue
        answered(t, c)
        if c.state == ChannelState.CHANNEL_CLOSED:
            free_request(t, c)
            free_place(t, c)
        elif (c.ring_position >= taken or may_try_again(c)) and enter_arena(t, c):
            t.next_request += 1
            c.request = t.next_request          # an answer of the dead can no longer be mistaken for the new one
            enqueue(t, c)
        else:
            c.state = ChannelState.CHANNEL_READING
            close_channel(t, c, CloseReason.CLOSED_ROLE_DIED, peer.process)
    peer.alive = peer.leaving = False
    peer.known = False
    peer.load = 0
    peer.owed_count = 0
    peer.touched = False
    forget_untaken(t, peer)

cdef void mend_log(Turn *t) noexcept nogil:
    """The handlers pause, and the other log workers have answered all they had: whatever produce was taken and is not answered died with
    the log worker."""
    cdef uint32_t i
    cdef Channel *c
    take_all_answers(t)
    for i in range(t.channels_used):
        c = &t.channels[i]
        if c.state != ChannelState.CHANNEL_WAITING and c.state != ChannelState.CHANNEL_CLOSED:
            continue
        if c.api_key != Api.API_PRODUCE or c.handler == NO_HANDLER:
            continue
        if c.ring_position >= load_acquire(t.handlers[c.handler].requests.head):
            continue
        answered(t, c)
        if c.state == ChannelState.CHANNEL_CLOSED:
            free_request(t, c)
            free_place(t, c)
        else:
            c.state = ChannelState.CHANNEL_READING
            close_channel(t, c, CloseReason.CLOSED_ROLE_DIED, LOG_PROCESS)
