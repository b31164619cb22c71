# Taking answers from the rings, handing requests to handlers. Part of turn.pyx.

cdef enum:
    BATCH_REQUESTS_MAX = 256        # about a millisecond of a handler's work
    FIRST_ADMINISTRATIVE_API = Api.API_CREATE_TOPICS    # APIs before it are asked for all the time
    HEAVY_BYTES = 1 << 18           # a request of this size goes to a handler alone
    IN_PIECES_BYTES = 3000          # a shorter one names fewer things than handlers do at once
    HEAVY_COST = 1 << 20            # more than any number of requests that can wait

cdef void take_answer(ChannelTurn *t, ReplySlot *a) noexcept nogil:
    cdef Channel *c
    cdef WindowEntry *e
    if a.channel >= t.channels_used:
        return
    c = &t.channels[a.channel]
    if c.window_count and c.connection == a.connection:
        e = entry_of(t, c, a.request)
        if e != NULL:
            take_entry_answer(t, c, e, a)
            return
    if c.connection != a.connection or c.request.number != a.request:
        if a.kind != SlotKind.PARKED:
            give_back(t, a)         # answered or fenced long ago
        return
    if a.kind == SlotKind.PARKED:
        if c.request.handler != NO_HANDLER and not c.request.parked:
            if t.handlers[c.request.handler].load:
                t.handlers[c.request.handler].load -= 1
            c.request.parked = 1
            if c.state == ChannelState.CHANNEL_CLOSED:
                free_request(t, &c.request)
                cancel(t, c, &c.request)
            # the client closed before its request was known to be parked: no further edge reports that
            elif c.ended:
                close_channel(t, c, CloseReason.CLOSED_BY_PEER, 0)
            else:
                leave_arena(t, c)
        return
    answered(t, &c.request)
    c.request.dequeued_ns = t.clock_ns
    if c.state == ChannelState.CHANNEL_CLOSED:
        if (a.kind == SlotKind.SEND or a.kind == SlotKind.SEND_PARTS) and t.late_count < t.channel_places:
            note(c, &t.late[t.late_count], 0, c.request.api_key)
            t.late_count += 1
        c.request.answer = a[0]
        note_finished(t, &c.request)
        give_back(t, a)
        free_request(t, &c.request)
        free_place(t, c)
        return
    if c.state != ChannelState.CHANNEL_WAITING:
        give_back(t, a)
        return
    c.request.answer = a[0]
    if a.throttle_ms and a.kind != SlotKind.CLOSE and not start_throttle(t, c, a):
        give_back(t, a)
        c.state = ChannelState.CHANNEL_READING
        close_channel(t, c, CloseReason.CLOSED_ILLEGAL_STATE, c.mute)
        return
    if a.kind == SlotKind.SEND or a.kind == SlotKind.SEND_PARTS:
        start_sending(t, c)
    elif a.kind == SlotKind.NOOP:
        give_back(t, a)
        finish_request(t, c)
    else:
        note_finished(t, &c.request)
        give_back(t, a)
        c.state = ChannelState.CHANNEL_READING      # no other process has its block now
        close_channel(t, c, CloseReason.CLOSED_BY_HANDLER, c.request.api_key)

cdef bint take_answers(ChannelTurn *t, RingRef *ring) noexcept nogil:
    """Take all waiting answers. True: the producer waits for room."""
    cdef uint64_t waiting = ring_waiting(ring), i
    cdef Slot slot
    for i in range(waiting):
        slot = ring_peek(ring, i)[0]
        take_answer(t, <ReplySlot *>&slot)
    t.answers_waiting += waiting
    return ring_advance(ring, waiting) if waiting else False

cdef void take_all_answers(ChannelTurn *t) noexcept nogil:
    cdef uint32_t h
    cdef Peer *peer
    for h in range(t.log_count):
        if take_answers(t, &t.log_answers[h]):
            bell_ring(&t.log_bells[h])
    for h in range(t.handler_count):
        peer = &t.handlers[h]
        if peer.known and take_answers(t, &peer.answers):
            bell_ring(&peer.bell)


# ---- dispatch

cdef inline bint has_heavy(Peer *peer) noexcept nogil:
    """Return whether a heavy request is with the handler: one of ours not taken yet, or one that it has
    announced.

    A handler announces before it moves its head, so one that it has taken is never overlooked.
    """
    return load_acquire(peer.requests.head) < peer.heavy_until or load_relaxed(peer.heavy) != 0

cdef inline bint takes_requests(Peer *peer) noexcept nogil:
    return peer.alive and not peer.leaving and peer.owed_count == 0 and ring_room(&peer.requests) != 0

cdef Peer *least_loaded(ChannelTurn *t) noexcept nogil:
    """Return the live handler with the least load, one without a heavy request if possible; NULL if none has
    room.

    A tie goes to the handler that had the last batch: its caches are warm (measured: 10 % more requests).
    """
    cdef Peer *best = NULL
    cdef Peer *peer
    cdef uint64_t cost, least = <uint64_t>-1
    cdef uint32_t i, h
    for i in range(t.handler_count):
        h = (t.last_handler + i) % t.handler_count
        peer = &t.handlers[h]
        if not takes_requests(peer):
            continue
        cost = peer.load + (HEAVY_COST if has_heavy(peer) else 0)
        if cost < least:
            least = cost
            best = peer
    return best

cdef Peer *session_keeper(ChannelTurn *t, Channel *c) noexcept nogil:
    """Return the handler that must get a fetch; NULL: any.

    A fetch of a session goes to the session's keeper. One that makes a session goes to each handler in turn,
    so that each keeps its share. If the keeper is dead or has no room, another handler answers that it does
    not know the session, and the client makes another one.
    """
    cdef const uint8_t *frame = t.arena.base + c.request.block
    cdef SessionOfFetch said
    cdef Peer *peer
    cdef uint32_t number, i
    if c.request.api_key != Api.API_FETCH or c.state != ChannelState.CHANNEL_WAITING:
        return NULL
    said = session_of_fetch(frame + c.request.body, frame + c.request.needed, c.request.api_version)
    if said.epoch == FINAL_FETCH and said.id == 0:
        return NULL
    if said.id > 0:
        number = handler_of_session(said.id)
        return (
            &t.handlers[number] if number < t.handler_count and takes_requests(&t.handlers[number]) else NULL
        )
    if c.request.open_tries and c.request.answer.owner >= FIRST_HANDLER:
        # The handler that answered it has made a session that the client never heard of, and ends it.
        peer = &t.handlers[c.request.answer.owner - FIRST_HANDLER]
        if takes_requests(peer):
            return peer
    for i in range(t.handler_count):
        t.last_session_keeper = (t.last_session_keeper + 1) % t.handler_count
        peer = &t.handlers[t.last_session_keeper]
        if takes_requests(peer) and not has_heavy(peer):
            return peer
    return NULL

cdef bint is_heavy(Request *r) noexcept nogil:
    """Return whether the cost is unknown: large requests, and those of administrators."""
    if r.needed >= HEAVY_BYTES:
        return True
    if r.api_key == Api.API_PRODUCE:
        return False
    if r.api_key < FIRST_ADMINISTRATIVE_API or r.api_key == Api.API_INIT_PRODUCER_ID:
        return False
    if Api.API_ADD_PARTITIONS_TO_TXN <= r.api_key <= Api.API_TXN_OFFSET_COMMIT:
        return False
    if is_forwarded(r.api_key):         # the handler only hands it on to the coordinator
        return False
    return r.api_key not in (
        Api.API_SASL_AUTHENTICATE, Api.API_DESCRIBE_CLUSTER, Api.API_CONSUMER_GROUP_HEARTBEAT
    )

cdef inline bint is_forwarded(int16_t api_key) noexcept nogil:
    """Return whether the coordinator answers the API: OffsetCommit to ListGroups, DeleteGroups, OffsetDelete,
    DescribeTransactions, ListTransactions.
    """
    if (
        Api.API_OFFSET_COMMIT <= api_key <= Api.API_LIST_GROUPS
        or api_key == Api.API_DELETE_GROUPS or api_key == Api.API_OFFSET_DELETE
    ):
        return True
    return api_key == Api.API_DESCRIBE_TRANSACTIONS or api_key == Api.API_LIST_TRANSACTIONS

cdef bint hand_over(ChannelTurn *t, Peer *peer, Channel *c, Request *request, bint heavy) noexcept nogil:
    cdef Slot slot
    cdef RequestSlot *r = <RequestSlot *>&slot
    r.kind = SlotKind.REQUEST
    r.flags = (SlotFlag.HEAVY if heavy else 0) | (SlotFlag.AGAIN if request.open_tries else 0)
    r.processor = t.process
    r.channel = c.index
    r.connection = c.connection
    r.block = request.block
    r.generation = block_generation(t.arena.base, request.block)
    r.length = request.needed
    r.body = request.body
    r.api_key = request.api_key
    r.api_version = request.api_version
    r.correlation = request.correlation
    r.received_ns = request.received_ns
    r.listener = c.listener
    r.request = request.number
    r.network = 0 if request.open_tries else network_units(c)
    request.ring_position = peer.requests.staged
    if not stage(t, peer, &slot):
        return False
    c.network_ns -= <uint64_t>r.network * NETWORK_UNIT_NS
    if heavy:
        peer.heavy_until = request.ring_position + 1
    block_lend(t.arena, request.block, peer.process)
    request.handler = peer.number
    peer.load += 1
    peer.touched = True
    return True

cdef int dispatch_channel(ChannelTurn *t, Peer *peer, Channel *c) noexcept nogil:
    """Give the channel's request to the handler that it needs, or to `peer`. False: that has no room."""
    cdef Peer *keeper
    if c.state == ChannelState.CHANNEL_CLOSED:
        free_request(t, &c.request)
        free_place(t, c)
    elif c.state == ChannelState.CHANNEL_WAITING:
        keeper = session_keeper(t, c)
        return hand_over(t, keeper if keeper != NULL else peer, c, &c.request, is_heavy(&c.request))
    return True

cdef void dispatch(ChannelTurn *t) noexcept nogil:
    """Give the requests of a wake-up to one handler as one batch: waking it costs more than the work of many.

    A heavy request goes alone, so that no other waits for it.
    """
    cdef Peer *peer
    cdef Channel *c
    cdef WindowEntry *e
    cdef uint32_t given, tag
    cdef uint64_t end = t.fifo_tail
    cdef bint heavy, done
    # Requests that follow an answer sent here are for the next turn, so that every turn ends.
    while t.fifo_head != end:
        peer = least_loaded(t)
        if peer == NULL:
            counter_add(t.counters, Counter.COUNT_RING_FULL, 1)
            want_room(t)
            return
        given = 0
        while t.fifo_head != end and given < BATCH_REQUESTS_MAX:
            tag = t.fifo[t.fifo_head & (FIFO_PLACES - 1)]
            c = &t.channels[tag & ~<uint32_t>ENTRY_TAG]
            e = next_of_window(t, c) if tag & ENTRY_TAG else NULL
            if tag & ENTRY_TAG and e == NULL:
                t.fifo_head += 1
                continue
            if e == NULL and c.request.api_key == Api.API_API_VERSIONS and answer_api_versions(t, c):
                t.fifo_head += 1
                continue
            if e == NULL:
                heavy = c.state == ChannelState.CHANNEL_WAITING and is_heavy(&c.request)
            else:
                heavy = c.state != ChannelState.CHANNEL_CLOSED and is_heavy(&e.request)
            if heavy and given:
                break
            done = dispatch_channel(t, peer, c) if e == NULL else hand_over_entry(t, peer, e)
            if not done:
                break
            t.fifo_head += 1
            given = BATCH_REQUESTS_MAX if heavy else given + 1
        t.last_handler = peer.number
    if t.fifo_head != t.fifo_tail:
        t.soon = True

cdef void want_room(ChannelTurn *t) noexcept nogil:
    cdef uint32_t h
    for h in range(t.handler_count):
        if t.handlers[h].alive and not t.handlers[h].leaving:
            ring_want_space(&t.handlers[h].requests, True)
            t.handlers[h].wants_room = True
            if ring_room(&t.handlers[h].requests):
                t.soon = True

cdef void publish(ChannelTurn *t) noexcept nogil:
    cdef uint32_t h
    cdef Peer *peer
    if t.made_room:
        ring_acceptors(t)
    for h in range(t.handler_count):
        peer = &t.handlers[h]
        if not peer.alive:
            continue
        if peer.owed_count:
            pay(t, peer)
        if peer.wants_room and t.fifo_head == t.fifo_tail and not peer.owed_count and not t.held_count:
            peer.wants_room = False
            ring_want_space(&peer.requests, False)
        if peer.requests.staged != load_relaxed(peer.requests.tail):
            ring_publish(&peer.requests)
            if peer.touched:
                bell_ring(&peer.bell)
        peer.touched = False
