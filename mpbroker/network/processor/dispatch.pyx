from libc.stdint cimport uint8_t, uint32_t, uint64_t

from mpbroker.ipc.counters cimport Counter
from mpbroker.ipc.fetch_sessions cimport FINAL_FETCH, SessionOfFetch, handler_of_session, session_of_fetch
from mpbroker.ipc.slots cimport NETWORK_UNIT_NS, ReplySlot, RequestSlot, SlotFlag, SlotKind
from mpbroker.network.processor.acceptors cimport ring_acceptors
from mpbroker.network.processor.api_versions cimport PreparedAnswers, answer_api_versions
from mpbroker.network.processor.apis cimport Api, is_heavy
from mpbroker.network.processor.channel cimport (
    NO_HANDLER, Channel, ChannelState, CloseReason, Request, WindowEntry,
)
from mpbroker.network.processor.channel_turn cimport ChannelTurn
from mpbroker.network.processor.closing cimport close_channel, forget_entry
from mpbroker.network.processor.lists cimport free_place, move
from mpbroker.network.processor.memory cimport free_request, leave_arena
from mpbroker.network.processor.metering cimport network_units, note_finished
from mpbroker.network.processor.peers cimport (
    FIRST_HANDLER, Peer, answered, cancel, give_back, has_heavy, least_loaded, pay, stage, takes_requests,
)
from mpbroker.network.processor.queue cimport ENTRY_TAG, FIFO_PLACES, end_patience, is_waiting
from mpbroker.network.processor.reports cimport note_late
from mpbroker.network.processor.sending cimport finish_request, start_sending
from mpbroker.network.processor.throttling cimport start_throttle
from mpbroker.network.processor.window_answers cimport take_entry_answer
from mpbroker.network.processor.window_entries cimport entry_of, handler_of_window, next_of_window
from shm.arena cimport block_generation, block_lend
from shm.atomics cimport load_relaxed
from shm.counters cimport counter_add
from shm.doorbell cimport bell_ring
from shm.ring cimport (
    RingRef, Slot, ring_advance, ring_peek, ring_publish, ring_room, ring_waiting, ring_want_space,
)

cdef enum:
    BATCH_REQUESTS_MAX = 256        # about a millisecond of a handler's work


# ---- answers

cdef void take_answer(ChannelTurn *t, ReplySlot *a) noexcept nogil:
    cdef Channel *c
    cdef WindowEntry *e
    if a.channel >= t.channels_used:
        return
    c = &t.channels[a.channel]
    if c.window_count and c.connection == a.connection:
        e = entry_of(&t.window, c, a.request)
        if e != NULL:
            take_entry_answer(t, c, e, a)
            return
    if c.connection != a.connection or c.request.number != a.request:
        if a.kind != SlotKind.PARKED:
            give_back(&t.peers, a)  # answered or fenced long ago
        return
    if a.kind == SlotKind.PARKED:
        if c.request.handler != NO_HANDLER and not c.request.parked:
            if t.peers.handlers[c.request.handler].load:
                t.peers.handlers[c.request.handler].load -= 1
            c.request.parked = 1
            if c.state == ChannelState.CHANNEL_CLOSED:
                free_request(&t.memory, &c.request)
                cancel(&t.peers, c, &c.request)
            # the client closed before its request was known to be parked: no further edge reports that
            elif c.ended:
                close_channel(t, c, CloseReason.CLOSED_BY_PEER, 0)
            else:
                leave_arena(&t.memory, c)
        return
    answered(&t.peers, &c.request)
    c.request.dequeued_ns = t.metering.clock_ns
    if c.state == ChannelState.CHANNEL_CLOSED:
        note_late(&t.reports, c, a, c.request.api_key, t.channel_places)
        c.request.answer = a[0]
        note_finished(&t.metering, &c.request)
        give_back(&t.peers, a)
        free_request(&t.memory, &c.request)
        free_place(&t.lists, c)
        return
    if c.state != ChannelState.CHANNEL_WAITING:
        give_back(&t.peers, a)
        return
    c.request.answer = a[0]
    if a.throttle_ms and a.kind != SlotKind.CLOSE and not start_throttle(t, c, a):
        give_back(&t.peers, a)
        move(&t.lists, c, ChannelState.CHANNEL_READING)
        close_channel(t, c, CloseReason.CLOSED_ILLEGAL_STATE, c.mute)
        return
    if a.kind == SlotKind.SEND or a.kind == SlotKind.SEND_PARTS:
        start_sending(t, c)
    elif a.kind == SlotKind.NOOP:
        give_back(&t.peers, a)
        finish_request(t, c)
    else:
        note_finished(&t.metering, &c.request)
        give_back(&t.peers, a)
        move(&t.lists, c, ChannelState.CHANNEL_READING)  # no other process has its block now
        close_channel(t, c, CloseReason.CLOSED_BY_HANDLER, c.request.api_key)

cdef bint take_answers(ChannelTurn *t, RingRef *ring) noexcept nogil:
    """Take all answers in the ring. Return whether their sender waits for room in the ring."""
    cdef uint64_t waiting = ring_waiting(ring), i
    cdef Slot slot
    for i in range(waiting):
        slot = ring_peek(ring, i)[0]
        take_answer(t, <ReplySlot *>&slot)
    t.metering.answers_waiting += waiting
    return ring_advance(ring, waiting) if waiting else False

cdef void take_all_answers(ChannelTurn *t) noexcept nogil:
    cdef uint32_t h
    cdef Peer *peer
    for h in range(t.peers.log_count):
        if take_answers(t, &t.peers.log_answers[h]):
            bell_ring(&t.peers.log_bells[h])
    for h in range(t.peers.handler_count):
        peer = &t.peers.handlers[h]
        if peer.known and take_answers(t, &peer.answers):
            bell_ring(&peer.bell)


# ---- dispatch

cdef Peer *session_keeper(ChannelTurn *t, Channel *c) noexcept nogil:
    """Return the handler that must get the channel's request; NULL if any handler may get it.

    A fetch of a fetch session goes to the handler that keeps the session. Fetches that make a session are
    given to the handlers round robin. If the keeper of a session is dead or has no room, another handler
    answers that it does not know the session, and the client makes a new session.
    """
    cdef const uint8_t *frame = t.memory.arena.base + c.request.block
    cdef SessionOfFetch said
    cdef Peer *peer
    cdef uint32_t number, _
    if c.request.api_key != Api.API_FETCH or c.state != ChannelState.CHANNEL_WAITING:
        return NULL
    said = session_of_fetch(frame + c.request.body, frame + c.request.needed, c.request.api_version)
    if said.epoch == FINAL_FETCH and said.id == 0:
        return NULL
    if said.id > 0:
        number = handler_of_session(said.id)
        if number >= t.peers.handler_count:
            return NULL
        return &t.peers.handlers[number] if takes_requests(&t.peers.handlers[number]) else NULL
    if c.request.open_tries and c.request.answer.owner >= FIRST_HANDLER:
        # The handler that answered it has made a session whose id the client never got, and ends it.
        peer = &t.peers.handlers[c.request.answer.owner - FIRST_HANDLER]
        if takes_requests(peer):
            return peer
    for _ in range(t.peers.handler_count):
        t.peers.last_session_keeper = (t.peers.last_session_keeper + 1) % t.peers.handler_count
        peer = &t.peers.handlers[t.peers.last_session_keeper]
        if takes_requests(peer) and not has_heavy(peer):
            return peer
    return NULL

cdef bint hand_over(ChannelTurn *t, Peer *peer, Channel *c, Request *request, bint heavy) noexcept nogil:
    cdef Slot slot
    cdef RequestSlot *r = <RequestSlot *>&slot
    r.kind = SlotKind.REQUEST
    r.flags = (SlotFlag.HEAVY if heavy else 0) | (SlotFlag.AGAIN if request.open_tries else 0)
    r.processor = t.process
    r.channel = c.index
    r.connection = c.connection
    r.block = request.block
    r.generation = block_generation(t.memory.arena.base, request.block)
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
    if not stage(&t.peers, peer, &slot):
        return False
    c.network_ns -= <uint64_t>r.network * NETWORK_UNIT_NS
    if heavy:
        peer.heavy_until = request.ring_position + 1
    block_lend(t.memory.arena, request.block, peer.process)
    request.handler = peer.number
    peer.load += 1
    peer.touched = True
    return True

cdef int dispatch_channel(ChannelTurn *t, Peer *peer, Channel *c) noexcept nogil:
    """Give the channel's request to the keeper of its fetch session, or else to `peer`. Return False if the
    handler has no room.
    """
    cdef Peer *keeper
    if c.state == ChannelState.CHANNEL_CLOSED:
        free_request(&t.memory, &c.request)
        free_place(&t.lists, c)
    elif c.state == ChannelState.CHANNEL_WAITING:
        keeper = session_keeper(t, c)
        return hand_over(t, keeper if keeper != NULL else peer, c, &c.request, is_heavy(&c.request))
    return True

cdef int hand_over_entry(ChannelTurn *t, Peer *peer, WindowEntry *e) noexcept nogil:
    """Give a window's request to the handler that has other requests of the window, or else to `peer`.

    If the window's handler takes nothing now, this and later requests wait until that handler has answered
    the window's requests, since another handler could overtake it. After an answer that closes the connection
    no request is given to a handler. Return 0 if `peer` has no room, otherwise 1.
    """
    cdef Channel *c = &t.channels[e.channel]
    cdef Peer *keeper
    if c.state == ChannelState.CHANNEL_CLOSED:
        forget_entry(t, c, e)
        return 1
    if c.window_owed > 1 or c.window_waiting or c.window_closes:
        keeper = handler_of_window(&t.window, &t.peers, c)
        if c.window_waiting or c.window_closes or (keeper != NULL and not takes_requests(keeper)):
            e.waiting = 1
            c.window_waiting += 1
            return 1
        if keeper != NULL:
            peer = keeper
    return hand_over(t, peer, c, &e.request, is_heavy(&e.request))

cdef void dispatch(ChannelTurn *t, PreparedAnswers *prepared) noexcept nogil:
    """Give the queued requests to handlers in batches, since waking a handler costs more than many requests.

    A heavy request is a batch of its own, so that no other request waits for it. While there are patient
    requests alone, they wait for company.
    """
    cdef Peer *peer
    cdef Channel *c
    cdef WindowEntry *e
    cdef uint32_t given, tag
    cdef uint64_t end = t.queue.fifo_tail
    cdef bint heavy, done
    if is_waiting(&t.queue) and t.now_ns < t.queue.patient_until_ns:
        return
    end_patience(&t.queue)
    # Requests that follow an answer sent here are for the next turn, so that every turn ends.
    while t.queue.fifo_head != end:
        peer = least_loaded(&t.peers)
        if peer == NULL:
            counter_add(t.counters, Counter.COUNT_RING_FULL, 1)
            want_room(t)
            return
        given = 0
        while t.queue.fifo_head != end and given < BATCH_REQUESTS_MAX:
            tag = t.queue.fifo[t.queue.fifo_head & (FIFO_PLACES - 1)]
            c = &t.channels[tag & ~<uint32_t>ENTRY_TAG]
            e = next_of_window(&t.window, c) if tag & ENTRY_TAG else NULL
            if tag & ENTRY_TAG and e == NULL:
                t.queue.fifo_head += 1
                continue
            if (
                e == NULL and c.request.api_key == Api.API_API_VERSIONS
                and answer_api_versions(prepared, t, c)
            ):
                t.queue.fifo_head += 1
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
            t.queue.fifo_head += 1
            given = BATCH_REQUESTS_MAX if heavy else given + 1
        t.peers.last_handler = peer.number
    if t.queue.fifo_head != t.queue.fifo_tail:
        t.lists.soon = True

cdef void want_room(ChannelTurn *t) noexcept nogil:
    cdef uint32_t h
    for h in range(t.peers.handler_count):
        if t.peers.handlers[h].alive and not t.peers.handlers[h].leaving:
            ring_want_space(&t.peers.handlers[h].requests, True)
            t.peers.handlers[h].wants_room = True
            if ring_room(&t.peers.handlers[h].requests):
                t.lists.soon = True

cdef void publish(ChannelTurn *t) noexcept nogil:
    cdef uint32_t h
    cdef Peer *peer
    if t.acceptors.made_room:
        ring_acceptors(&t.acceptors)
    for h in range(t.peers.handler_count):
        peer = &t.peers.handlers[h]
        if not peer.alive:
            continue
        if peer.owed_count:
            pay(&t.peers, peer)
        if (
            peer.wants_room and t.queue.fifo_head == t.queue.fifo_tail
            and not peer.owed_count and not t.lists.held_count
        ):
            peer.wants_room = False
            ring_want_space(&peer.requests, False)
        if peer.requests.staged != load_relaxed(peer.requests.tail):
            ring_publish(&peer.requests)
            if peer.touched:
                bell_ring(&peer.bell)
        peer.touched = False
