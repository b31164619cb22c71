# Channels: lists, leases, closing. Part of turn.pyx.

cdef inline void defer(ChannelTurn *t, Channel *c, bint soon) noexcept nogil:
    """Look at the channel again in the next turn. `soon`: it can go on then, so that turn does not sleep."""
    t.soon = t.soon or soon
    if not c.deferred:
        c.deferred = 1
        t.deferred[t.deferred_count] = c.index
        t.deferred_count += 1

cdef inline void enqueue(ChannelTurn *t, Channel *c) noexcept nogil:
    t.fifo[t.fifo_tail & (FIFO_PLACES - 1)] = c.index
    t.fifo_tail += 1

cdef inline void free_place(ChannelTurn *t, Channel *c) noexcept nogil:
    """Free the place of a channel, unless a list still has it or its end was not reported. Whoever takes it
    from there frees it then.
    """
    c.state = ChannelState.CHANNEL_FREE
    c.connection = 0
    if not c.deferred and not c.held and not c.starved and not c.unreported:
        t.free_channels[t.free_count] = c.index
        t.free_count += 1


# ---- leases

cdef inline void free_request(ChannelTurn *t, Request *r) noexcept nogil:
    if r.block:
        arena_free(t.arena, r.block, r.asked_bytes)
        r.block = 0
    elif r.kept != NULL:
        forget_kept(t, r)

cdef inline void forget_kept(ChannelTurn *t, Request *r) noexcept nogil:
    t.kept_bytes -= r.needed
    free(r.kept)
    r.kept = NULL

cdef inline bint may_keep(ChannelTurn *t, Channel *c) noexcept nogil:
    return (
        c.request.needed <= KEPT_MAX
        and t.kept_bytes + c.request.needed <= t.arena.limit_bytes // KEPT_SHARE
    )

cdef void leave_arena(ChannelTurn *t, Channel *c) noexcept nogil:
    """Free the block of a parked request: its handler no longer reads it, and a long wait must not keep
    memory from others.

    If another handler may have to answer it, keep the frame outside the arena, in its own size, until the
    answer. A request that is too large for that, or one too many, is lost if its handler dies.
    """
    if c.stash:
        shrink_stash(t, c)
    if c.request.block == 0:
        return
    if is_repeatable(c.request.api_key) and may_keep(t, c):
        c.request.kept = <uint8_t *>malloc(c.request.needed)
        if c.request.kept != NULL:
            t.kept_bytes += c.request.needed
            memcpy(c.request.kept, t.arena.base + c.request.block, c.request.needed)
    arena_free(t.arena, c.request.block, c.request.asked_bytes)
    c.request.block = 0

cdef bint enter_arena(ChannelTurn *t, Channel *c) noexcept nogil:
    """Bring a parked request back into the arena, for a handler. It was let in once, so the limit does not
    count. False: its frame was not kept, or memory is exhausted; the caller closes the connection.
    """
    cdef uint64_t asked = c.request.needed + answer_room(c.request.needed), block
    if c.request.kept == NULL:
        return c.request.block != 0
    block = arena_allocate_beyond(t.arena, asked)
    if block == 0:
        return False
    memcpy(t.arena.base + block, c.request.kept, c.request.needed)
    forget_kept(t, &c.request)
    c.request.block, c.request.asked_bytes = block, asked
    return True

cdef inline void free_stash(ChannelTurn *t, Channel *c) noexcept nogil:
    if c.stash:
        arena_free(t.arena, c.stash, c.stash_asked_bytes)
        c.stash = 0

cdef inline uint64_t stash_block(uint64_t bytes) noexcept nogil:
    return bytes if bytes > SMALL_BLOCK else SMALL_BLOCK

cdef void shrink_stash(ChannelTurn *t, Channel *c) noexcept nogil:
    """Move pipelined bytes to a block of their own size: nothing reads them for a while."""
    cdef uint32_t left = c.stash_received - c.stash_at
    cdef uint64_t asked = stash_block(left), block
    if asked >= c.stash_asked_bytes:
        return
    block = arena_allocate_beyond(t.arena, asked)       # beyond the limit only until the other one is free
    if block == 0:
        return
    memcpy(t.arena.base + block, t.arena.base + c.stash + c.stash_at, left)
    free_stash(t, c)
    c.stash, c.stash_asked_bytes, c.stash_at, c.stash_received = block, asked, 0, left

cdef void give_back(ChannelTurn *t, ReplySlot *a) noexcept nogil:
    """End the lease of a handler's reply block. The processor's own blocks are freed with their request."""
    cdef Slot slot
    cdef ReturnSlot *r = <ReturnSlot *>&slot
    cdef Peer *peer
    if a.block == 0 or a.owner < FIRST_HANDLER:
        return
    peer = &t.handlers[a.owner - FIRST_HANDLER]
    if not peer.alive:
        return                      # its arena is reset as a whole
    memset(&slot, 0, sizeof(slot))
    r.kind = SlotKind.RETURN
    r.owner = a.owner
    r.block = a.block
    r.generation = a.generation
    if not stage(t, peer, &slot):
        counter_add(t.counters, Counter.COUNT_RING_FULL, 1)
        owe(t, peer, &slot)

cdef void owe(ChannelTurn *t, Peer *peer, Slot *slot) noexcept nogil:
    """Keep a descriptor that did not fit into a handler's ring; it goes first when there is room."""
    cdef Slot *grown
    if peer.owed_count == peer.owed_places:
        grown = <Slot *>realloc(peer.owed, (peer.owed_places * 2 + 64) * sizeof(Slot))
        if grown == NULL:
            # out of memory: the handler gets the block back when it fences this process
            return
        peer.owed = grown
        peer.owed_places = peer.owed_places * 2 + 64
    peer.owed[peer.owed_count] = slot[0]
    peer.owed_count += 1
    if not peer.wants_room:
        peer.wants_room = True
        ring_want_space(&peer.requests, True)

cdef void pay(ChannelTurn *t, Peer *peer) noexcept nogil:
    cdef uint32_t paid = 0
    while paid < peer.owed_count and stage(t, peer, &peer.owed[paid]):
        paid += 1
    if paid:
        # It may include a cancel, which must not wait for the handler's next wake-up.
        peer.touched = True
        memmove(peer.owed, peer.owed + paid, (peer.owed_count - paid) * sizeof(Slot))
        peer.owed_count -= paid

cdef void cancel(ChannelTurn *t, Channel *c, Request *request) noexcept nogil:
    """Cancel a parked request whose client has disconnected. Its handler ends the lease with a NOOP."""
    cdef Slot slot
    cdef Peer *peer = &t.handlers[request.handler]
    fill_cancel(t, c, request, &slot)
    if stage(t, peer, &slot):
        peer.touched = True
    else:
        owe(t, peer, &slot)

cdef void fill_cancel(ChannelTurn *t, Channel *c, Request *request, Slot *slot) noexcept nogil:
    cdef RequestSlot *r = <RequestSlot *>slot
    memset(slot, 0, sizeof(Slot))
    r.kind = SlotKind.CANCEL
    r.processor = t.process
    r.channel = c.index
    r.connection = c.connection
    r.request = request.number

cdef inline void answered(ChannelTurn *t, Request *r) noexcept nogil:
    """Take the request off its handler's load."""
    if r.handler != NO_HANDLER:
        if not r.parked and t.handlers[r.handler].load:
            t.handlers[r.handler].load -= 1
        r.handler = NO_HANDLER
    r.parked = 0



# ---- closing

cdef inline void note(Channel *c, Event *event, uint32_t reason, int64_t detail) noexcept nogil:
    """Note an event for Python. The place and its session stay until Python has read it."""
    event.channel = c.index
    event.reason = reason
    event.connection = c.connection
    event.detail = detail
    c.unreported += 1

cdef inline bint is_close_reported(ChannelTurn *t, Channel *c, uint32_t reason) noexcept nogil:
    """Return True if Python must hear of the close: to log a line, or to drop its own TLS or SASL state."""
    cdef uint64_t least
    cdef int i
    if t.sessions[c.index].protocol != SecurityProtocol.PLAINTEXT:
        return True
    for i in range(LOG_LEVELS_ABOVE):
        least = load_relaxed(t.log_levels[i])
        if least:
            return t.reason_levels[reason] >= least
    return t.reason_levels[reason] >= t.log_level_at_start

cdef void close_channel(ChannelTurn *t, Channel *c, uint32_t reason, int64_t detail) noexcept nogil:
    """Close the socket. While others have requests of it the place stays CLOSED, until their answers come."""
    if c.state == ChannelState.CHANNEL_FREE or c.state == ChannelState.CHANNEL_CLOSED:
        return
    if c.state == ChannelState.CHANNEL_SENDING or c.state == ChannelState.CHANNEL_OPENING:
        release_answer(t, c)
    free_stash(t, c)
    timer_stop(t, c)
    activity_remove(t, c.index)
    if not c.owned:
        close(c.fd)
    c.fd = -1
    t.open_count -= 1
    ledger_close(&t.ledger, c.index)
    t.made_room = True
    if is_close_reported(t, c, reason):
        note(c, &t.closed[t.closed_count], reason, detail)
        t.closed_count += 1
    counter_add(t.counters, Counter.COUNT_CONNECTIONS_CLOSED, 1)
    client_leave(t.meters, ClientKind.CLIENT_SOFTWARE, c.client)
    if c.state == ChannelState.CHANNEL_SENDING or c.state == ChannelState.CHANNEL_OPENING:
        note_finished(t, &c.request)
    if c.state == ChannelState.CHANNEL_WAITING:
        c.state = ChannelState.CHANNEL_CLOSED
        if c.request.parked:
            free_request(t, &c.request)
            cancel(t, c, &c.request)
        return
    free_request(t, &c.request)
    close_window(t, c)
    if c.window_owed:
        c.state = ChannelState.CHANNEL_CLOSED
    else:
        free_place(t, c)

cdef void close_all_of(ChannelTurn *t, int listener) noexcept nogil:
    cdef uint32_t i
    for i in range(t.channels_used):
        if t.channels[i].connection and t.channels[i].listener == listener:
            close_channel(t, &t.channels[i], CloseReason.CLOSED_LISTENER, 0)
