# The window of a connection: requests under way while the next one is read (window.py has the APIs).
# Part of turn.pyx.
#
# A whole request of such an API leaves its channel for an entry of the window, and the channel continues
# reading. All that are with a handler are with the same one, in the order in which they came; rings are FIFO.
# Answers come in any order and are written in the order of the requests. A request of another API waits,
# whole, until the window is empty (`barred`), and nothing is read after it. TLS channels receive and send
# through OpenSSL (tls_stream.pxi).

cdef inline WindowEntry *entry_at(ChannelTurn *t, Channel *c, uint32_t i) noexcept nogil:
    """Return the window's entry number `i`; 0 is the oldest."""
    return &t.entries[c.window[(c.window_first + i) % WINDOW_MOST]]

cdef inline bint window_is_full(ChannelTurn *t, Channel *c) noexcept nogil:
    return c.window_count != 0 and c.window_count >= t.window_most

cdef bint may_enter_window(ChannelTurn *t, Channel *c) noexcept nogil:
    """Return whether the whole request, whose header is parsed, may be under way with others.

    Handlers keep the order of produces. Those after a commit that is served in pieces would overtake it.
    """
    return (
        t.window_most > 1 and t.in_window[c.request.api_key]
        and (c.request.api_key == Api.API_PRODUCE or c.request.needed < IN_PIECES_BYTES)
        and c.window_count < t.window_most
        and (t.free_entry_count != 0 or t.entries_used < WINDOW_ENTRIES)
    )

cdef void enter_window(ChannelTurn *t, Channel *c) noexcept nogil:
    """Move the channel's request into its window and the FIFO."""
    cdef uint32_t place
    cdef WindowEntry *e
    if t.free_entry_count:
        t.free_entry_count -= 1
        place = t.free_entries[t.free_entry_count]
    else:
        place = t.entries_used
        t.entries_used += 1
    e = &t.entries[place]
    e.request = c.request
    e.channel, e.answered, e.waiting, e.sent = c.index, 0, 0, 0
    c.window[(c.window_first + c.window_count) % WINDOW_MOST] = place
    c.window_count += 1
    c.window_owed += 1
    c.request.number = 0        # an answer that names it is not the channel's
    c.request.block = 0
    c.request.kept = NULL
    c.request.needed = 0
    c.received = 0
    enqueue_entry(t, c)

cdef inline void enqueue_entry(ChannelTurn *t, Channel *c) noexcept nogil:
    """Queue the window's oldest request that is not handed over, whichever that is when its turn comes."""
    t.fifo[t.fifo_tail & (FIFO_PLACES - 1)] = <uint32_t>ENTRY_TAG | c.index
    t.fifo_tail += 1

cdef WindowEntry *next_of_window(ChannelTurn *t, Channel *c) noexcept nogil:
    """Return the oldest entry that the FIFO has; NULL without one."""
    cdef uint32_t i
    cdef WindowEntry *e
    for i in range(c.window_count):
        e = entry_at(t, c, i)
        if not e.answered and not e.waiting and e.request.handler == NO_HANDLER:
            return e
    return NULL

cdef void leave_window(ChannelTurn *t, Channel *c) noexcept nogil:
    """Give up the oldest entry. Its block is free already."""
    t.free_entries[t.free_entry_count] = c.window[c.window_first]
    t.free_entry_count += 1
    c.window_first = (c.window_first + 1) % WINDOW_MOST
    c.window_count -= 1


# ---- to the handlers

cdef Peer *handler_of_window(ChannelTurn *t, Channel *c) noexcept nogil:
    """Return the handler that has requests of the window; NULL: none has."""
    cdef uint32_t i
    cdef WindowEntry *e
    for i in range(c.window_count):
        e = entry_at(t, c, i)
        if not e.answered and e.request.handler != NO_HANDLER:
            return &t.handlers[e.request.handler]
    return NULL

cdef int hand_over_entry(ChannelTurn *t, Peer *peer, WindowEntry *e) noexcept nogil:
    """Give an entry to the handler of its window, or to `peer`. 1: done; 0: `peer` has no room.

    An entry whose handler takes nothing now waits until that has answered its requests, and those after it
    wait with it: another handler could overtake. After a request that closes the connection, entries wait
    for that.
    """
    cdef Channel *c = &t.channels[e.channel]
    cdef Peer *keeper
    if c.state == ChannelState.CHANNEL_CLOSED:
        forget_entry(t, c, e)
        return 1
    if c.window_owed > 1 or c.window_waiting or c.window_closes:
        keeper = handler_of_window(t, c)
        if c.window_waiting or c.window_closes or (keeper != NULL and not takes_requests(keeper)):
            e.waiting = 1
            c.window_waiting += 1
            return 1
        if keeper != NULL:
            peer = keeper
    return hand_over(t, peer, c, &e.request, is_heavy(&e.request))

cdef void release_waiting(ChannelTurn *t, Channel *c) noexcept nogil:
    """Queue the entries that waited for the window's handler, once it has none of them."""
    cdef uint32_t i
    cdef WindowEntry *e
    if c.window_closes or handler_of_window(t, c) != NULL:
        return
    for i in range(c.window_count):
        e = entry_at(t, c, i)
        if e.waiting:
            e.waiting = 0
            enqueue_entry(t, c)
    c.window_waiting = 0


# ---- answers

cdef WindowEntry *entry_of(ChannelTurn *t, Channel *c, uint32_t number) noexcept nogil:
    """Return the unanswered entry of a request; NULL without one."""
    cdef uint32_t i
    cdef WindowEntry *e
    for i in range(c.window_count):
        e = entry_at(t, c, i)
        if e.request.number == number:
            return e if not e.answered else NULL
    return NULL

cdef void take_entry_answer(ChannelTurn *t, Channel *c, WindowEntry *e, ReplySlot *a) noexcept nogil:
    cdef Request *r = &e.request
    if a.kind == SlotKind.PARKED:
        park_entry(t, c, e)
        return
    answered(t, r)
    r.dequeued_ns = t.clock_ns
    r.answer = a[0]
    if c.state == ChannelState.CHANNEL_CLOSED:
        if (a.kind == SlotKind.SEND or a.kind == SlotKind.SEND_PARTS) and t.late_count < t.channel_places:
            note(c, &t.late[t.late_count], 0, r.api_key)
            t.late_count += 1
        note_finished(t, r)
        give_back(t, a)
        forget_entry(t, c, e)
        return
    e.answered = 1
    c.window_owed -= 1
    if a.kind == SlotKind.CLOSE:
        c.window_closes = 1
    if a.throttle_ms and a.kind != SlotKind.CLOSE and not start_throttle(t, c, a):
        close_channel(t, c, CloseReason.CLOSED_ILLEGAL_STATE, c.mute)
        return
    if c.window_waiting:
        release_waiting(t, c)
    if e == entry_at(t, c, 0):
        flush_window(t, c)

cdef void park_entry(ChannelTurn *t, Channel *c, WindowEntry *e) noexcept nogil:
    cdef Request *r = &e.request
    if r.handler == NO_HANDLER or r.parked:
        return
    if t.handlers[r.handler].load:
        t.handlers[r.handler].load -= 1
    r.parked = 1
    free_request(t, r)
    if c.state == ChannelState.CHANNEL_CLOSED:
        cancel(t, c, r)

cdef void forget_entry(ChannelTurn *t, Channel *c, WindowEntry *e) noexcept nogil:
    """Count an entry of a closed channel as done; free the place with the last one."""
    free_request(t, &e.request)
    e.answered = 1
    c.window_owed -= 1
    if c.window_owed == 0:
        while c.window_count:
            leave_window(t, c)
        free_place(t, c)

cdef void close_window(ChannelTurn *t, Channel *c) noexcept nogil:
    """Free what a channel that closes holds of its window, but for requests that others have."""
    cdef uint32_t i
    cdef WindowEntry *e
    for i in range(c.window_count):
        e = entry_at(t, c, i)
        if e.answered:
            note_finished(t, &e.request)
            give_back(t, &e.request.answer)
            free_request(t, &e.request)
        elif e.waiting:
            e.answered = 1
            c.window_owed -= 1
            free_request(t, &e.request)
        elif e.request.parked:
            cancel(t, c, &e.request)
    c.window_waiting = 0
    if c.window_owed == 0:
        while c.window_count:
            leave_window(t, c)

cdef int send_window(ChannelTurn *t, Channel *c) noexcept nogil:
    """Write the answers that are next, with one system call. Returns as `send_bytes`."""
    cdef iovec pieces[WINDOW_MOST]
    cdef msghdr message
    cdef WindowEntry *e
    cdef ReplySlot *a
    cdef uint32_t i, count = 0
    cdef uint64_t want = 0
    cdef ssize_t n
    for i in range(c.window_count):
        e = entry_at(t, c, i)
        a = &e.request.answer
        if not e.answered or a.kind != SlotKind.SEND or want >= SENT_PER_TURN_MAX:
            break
        pieces[count].iov_base = answer_base(t, a) + a.block + a.position + e.sent
        pieces[count].iov_len = a.length - e.sent
        want += pieces[count].iov_len
        count += 1
    memset(&message, 0, sizeof(message))
    message.msg_iov, message.msg_iovlen = pieces, count
    n = -1
    while n < 0:
        if count == 1:      # 0.2 us less
            n = send(c.fd, pieces[0].iov_base, pieces[0].iov_len, MSG_NOSIGNAL | MSG_DONTWAIT)
        else:
            n = sendmsg(c.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
        counter_add(t.counters, Counter.COUNT_WRITES, 1)
        if n < 0 and errno != EINTR:
            return 0 if errno == EAGAIN else -1
    c.moved_bytes += n
    active(t, c)
    window_written(t, c, n)
    return 1 if <uint64_t>n == want else 0

cdef void window_written(ChannelTurn *t, Channel *c, uint64_t n) noexcept nogil:
    """Count `n` more bytes of the answers that are next as written."""
    cdef WindowEntry *e
    cdef uint64_t left
    cdef uint32_t i = 0
    counter_add(t.counters, Counter.COUNT_BYTES_OUT, n)
    while n:
        e = entry_at(t, c, i)
        left = e.request.answer.length - e.sent
        if left > n:
            left = n
        e.sent += <uint32_t>left
        n -= left
        i += 1

cdef bint end_written(ChannelTurn *t, Channel *c) noexcept nogil:
    """End the oldest entries whose answers are written, or are none. False: the channel is closed."""
    cdef WindowEntry *e
    cdef Request *r
    while c.window_count:
        e = entry_at(t, c, 0)
        r = &e.request
        if not e.answered:
            return True
        if r.answer.kind == SlotKind.SEND:
            if e.sent < r.answer.length:
                return True
            note_size(t, r)
            counter_add(t.counters, Counter.COUNT_RESPONSES, 1)
        elif r.answer.kind != SlotKind.NOOP:
            close_channel(t, c, CloseReason.CLOSED_BY_HANDLER, r.api_key)
            return False
        note_finished(t, r)
        give_back(t, &r.answer)
        free_request(t, r)
        leave_window(t, c)
    return True

cdef void flush_window(ChannelTurn *t, Channel *c) noexcept nogil:
    """Write the answers that are next, and let the channel go on where it waited for that."""
    cdef bint was_full = window_is_full(t, c)
    cdef uint64_t begun_ns = begin_timing(t)
    cdef int done = 1
    while end_written(t, c):
        if done != 1 or not window_holds_answers(t, c):
            end_timing(c, begun_ns)
            go_on_behind(t, c, was_full)
            return
        if c.secure:
            mark(t, c)
            done = 0
            continue
        done = send_window(t, c)
        if done < 0:
            close_channel(t, c, CloseReason.CLOSED_RESET, errno)
            return

cdef void go_on_behind(ChannelTurn *t, Channel *c, bint was_full) noexcept nogil:
    """Let the channel go on where it waited for the answers that are written now."""
    if c.window_count == 0:
        window_is_empty(t, c)
    elif was_full and not window_is_full(t, c):
        read_again(t, c)

cdef void window_is_empty(ChannelTurn *t, Channel *c) noexcept nogil:
    """Go on with what waited for all answers: a barred request, the client's end, a stop."""
    if t.stopping:
        close_channel(t, c, CloseReason.CLOSED_STOPPING, 0)
        return
    if c.ended:
        c.readable = 1
    read_again(t, c)

cdef inline void read_again(ChannelTurn *t, Channel *c) noexcept nogil:
    if c.readable or c.stash or c.received:
        defer(t, c, True)

cdef inline bint window_holds_answers(ChannelTurn *t, Channel *c) noexcept nogil:
    """Return whether the client has not read the answer that is next."""
    return c.window_count != 0 and entry_at(t, c, 0).answered
