# Repairs after the death of a handler or a log worker. Part of turn.pyx.

cdef bint is_repeatable(int16_t api_key) noexcept nogil:
    """Return whether another handler may get a request that a dead one may have begun: it only reads.
    Metadata may create topics, but creates none that exists.
    """
    return api_key in (
        Api.API_FETCH, Api.API_LIST_OFFSETS, Api.API_METADATA, Api.API_FIND_COORDINATOR, Api.API_API_VERSIONS,
        Api.API_DESCRIBE_CONFIGS, Api.API_DESCRIBE_CLUSTER,
    )

cdef bint may_try_again(Channel *c) noexcept nogil:
    """Return whether to give the request to another handler after a death. One that kills its handlers must
    not go through all of them, and a large one may be why its handler was killed as hanging.
    """
    c.deaths += 1
    return is_repeatable(c.api_key) and c.needed < HEAVY_BYTES and c.deaths < DEATHS_MAX

cdef void lose_answer_of(ChannelTurn *t, Channel *c, uint32_t owner) noexcept nogil:
    """Close a channel that sends from a dead handler's arena: the arena is about to be reset."""
    if c.state == ChannelState.CHANNEL_SENDING or c.state == ChannelState.CHANNEL_OPENING:
        if c.answer.owner == owner and c.answer.block:
            close_channel(t, c, CloseReason.CLOSED_ROLE_DIED, owner)

cdef void mend_handler(ChannelTurn *t, uint32_t number) noexcept nogil:
    """Repair after a handler's death: requeue untaken and repeatable requests, close the rest.

    Comes after the log process's fence.
    """
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
        if c.handler != number or (
            c.state != ChannelState.CHANNEL_WAITING and c.state != ChannelState.CHANNEL_CLOSED
        ):
            continue
        answered(t, c)
        if c.state == ChannelState.CHANNEL_CLOSED:
            free_request(t, c)
            free_place(t, c)
        elif (c.ring_position >= taken or may_try_again(c)) and enter_arena(t, c):
            t.next_request += 1
            # an answer of the dead handler cannot be taken for the new one's
            c.request = t.next_request
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

cdef void mend_log(ChannelTurn *t) noexcept nogil:
    """Close the produces that died with a log worker: those taken and not answered. The handlers pause, and
    the other log workers have answered all they had.
    """
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
