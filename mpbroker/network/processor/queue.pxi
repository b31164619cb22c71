# The request queue: queued.max.requests over the FIFOs of all processors and the requests not taken by
# handlers. Part of turn.pyx. (Kafka: RequestChannel.requestQueue. There a full queue stops the network
# thread; here it stops reading.)

cdef void count_taken_by(ChannelTurn *t, Peer *peer) noexcept nogil:
    """Count the requests that the handler has taken since the last call. Without any, the places are void:
    they may have been reused many times since.
    """
    cdef uint64_t head = load_acquire(peer.requests.head)
    cdef uint32_t taken = 0
    if peer.untaken == 0:
        peer.counted = head
        return
    while peer.counted != head:
        taken += peer.is_request[peer.counted & (REQUEST_RING_PLACES - 1)]
        peer.counted += 1
    peer.untaken -= taken
    t.untaken -= taken

cdef inline bint stage(ChannelTurn *t, Peer *peer, const Slot *slot) noexcept nogil:
    """Stage a descriptor in the handler's ring. A request counts until the handler has taken it."""
    cdef uint8_t is_request = (<const RequestSlot *>slot).kind == SlotKind.REQUEST
    cdef uint64_t place = peer.requests.staged & (REQUEST_RING_PLACES - 1)
    if peer.requests.staged - peer.counted >= REQUEST_RING_PLACES:
        count_taken_by(t, peer)         # count before the place of an earlier slot is overwritten
    if not ring_stage(&peer.requests, slot):
        return False
    peer.is_request[place] = is_request
    peer.untaken += is_request
    t.untaken += is_request
    return True

cdef void count_taken(ChannelTurn *t) noexcept nogil:
    cdef uint32_t h
    for h in range(t.handler_count):
        if t.handlers[h].known and t.handlers[h].untaken:
            count_taken_by(t, &t.handlers[h])

cdef void forget_untaken(ChannelTurn *t, Peer *peer) noexcept nogil:
    """Stop counting a handler's requests: its ring is bound again, or closed."""
    t.untaken -= peer.untaken
    peer.untaken = 0
    peer.counted = load_acquire(peer.requests.head)

cdef inline uint64_t queued_here(ChannelTurn *t) noexcept nogil:
    return t.fifo_tail - t.fifo_head + t.untaken

cdef void look_at_queues(ChannelTurn *t) noexcept nogil:
    """Publish how much is queued here, and sum up the other processors' words."""
    cdef uint64_t elsewhere = 0, queued, busy = 1
    cdef uint32_t i
    count_taken(t)
    store_relaxed(&t.queued[t.process], queued_here(t))
    if t.process != CONTROL_PROCESSOR:      # the control plane has a queue of its own
        for i in range(<uint32_t>FIRST_PROCESSOR, <uint32_t>CONTROL_PROCESSOR):
            if i != t.process:
                queued = load_relaxed(&t.queued[i])
                elsewhere += queued
                busy += queued != 0
    t.queued_elsewhere = elsewhere
    t.queue_floor = (t.queued_requests_max + busy - 1) // busy

cdef inline bint queue_is_full(ChannelTurn *t) noexcept nogil:
    """Return whether the queue is full for this processor. Each processor with queued requests keeps an equal
    part of the queue; otherwise a queue that is always full would serve only those already in it.
    """
    cdef uint64_t here = queued_here(t)
    return here + t.queued_elsewhere >= t.queued_requests_max and here >= t.queue_floor

cdef void hold(ChannelTurn *t, Channel *c) noexcept nogil:
    """Stop reading the channel until there is room in the queue."""
    c.marked_ns = 0
    if not c.held:
        c.held = 1
        t.held[t.held_count] = c.index
        t.held_count += 1

cdef void release_held(ChannelTurn *t) noexcept nogil:
    """Let the longest waiting channels go on, as far as there is room."""
    cdef uint32_t count = t.held_count, released = 0
    cdef Channel *c
    while released < count and not queue_is_full(t):
        c = &t.channels[t.held[released]]
        released += 1
        c.held = 0
        if c.state == ChannelState.CHANNEL_FREE:
            free_place(t, c)
        elif c.state == ChannelState.CHANNEL_READING and not c.starved:
            read_channel(t, c)
    if released:
        memmove(t.held, t.held + released, (t.held_count - released) * sizeof(uint32_t))
        t.held_count -= released

cdef void await_room(ChannelTurn *t) noexcept nogil:
    """Ask to be rung when a handler takes a request. Other processors' words are read again before long."""
    cdef uint64_t before = t.untaken
    cdef uint32_t h
    for h in range(t.handler_count):
        if t.handlers[h].alive and not t.handlers[h].wants_room:
            t.handlers[h].wants_room = True
            ring_want_space(&t.handlers[h].requests, True)
    look_at_queues(t)
    if t.untaken != before or not queue_is_full(t):
        t.soon = True
