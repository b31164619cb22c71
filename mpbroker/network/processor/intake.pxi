# New connections: taken from the acceptor, and their channels. Part of turn.pyx.
#
# The turn serves connections of plain listeners that Python has introduced. Python decides about all others:
# TLS and SASL, removed and unknown listeners, limits that are reached, and every error.

cdef enum:
    # Most new sockets per wake-up, like Kafka's Processor, so that open ones are not kept waiting.
    NEW_CONNECTIONS_MAX = 20
    NO_PLACE = -1
    NO_SOCKET = -2
    IS_PLAIN = 1
    IS_PRIVILEGED = 2

cdef int open_channel(ChannelTurn *t, int fd, int listener, int protocol, bint privileged) noexcept nogil:
    """Serve a connected non-blocking socket and return its channel; NO_PLACE: all are taken; NO_SOCKET: it
    cannot be watched, and errno is the reason. Then it stays the caller's.
    """
    cdef Channel *c
    cdef epoll_event event
    cdef uint32_t index
    if t.free_count == 0 and t.channels_used == t.channel_places:
        return NO_PLACE
    index = t.free_channels[t.free_count - 1] if t.free_count else t.channels_used
    # Do first what may fail: until then the place is free.
    if not session_open(
        &t.sessions[index], t.next_connection + 1, fd, t.process - FIRST_PROCESSOR, listener, protocol,
        privileged
    ):
        return NO_SOCKET
    event.events = <uint32_t>(EPOLLIN | EPOLLOUT | EPOLLRDHUP) | EPOLLET
    event.data.u64 = <uint64_t><uint32_t>(t.next_connection + 1) << 32 | index
    if epoll_ctl(t.epoll_fd, EPOLL_CTL_ADD, fd, &event):
        return NO_SOCKET
    if t.free_count:
        t.free_count -= 1
    else:
        t.channels_used += 1
    c = &t.channels[index]
    memset(c, 0, sizeof(Channel))
    c.index = index
    c.fd = fd
    c.state = ChannelState.CHANNEL_READING
    c.request.handler = NO_HANDLER
    c.listener = listener
    c.client = -1
    t.next_connection += 1
    c.connection = t.next_connection
    c.last_active_ns = t.now_ns
    activity_append(t, index)
    t.open_count += 1
    counter_add(t.counters, Counter.COUNT_CONNECTIONS_CREATED, 1)
    count_client(t, c)
    return <int>index

cdef bint take_connection(ChannelTurn *t) noexcept nogil:
    """Serve the connection in `t.handed`. False: Python decides about it."""
    cdef Handover *h = &t.handed
    cdef uint8_t kind = t.listener_kinds[h.listener] if h.listener < LISTENERS else 0
    cdef int channel
    if t.handed_fd < 0 or not kind & IS_PLAIN or t.open_count >= t.connections_max:
        return False
    channel = open_channel(t, t.handed_fd, h.listener, SecurityProtocol.PLAINTEXT, kind & IS_PRIVILEGED != 0)
    if channel < 0:
        return False
    ledger_open(&t.ledger, channel, h.ticket, h.listener, h.address, h.address_bytes)
    ledger_take(&t.ledger, h.ticket)
    t.made_room = True
    return True

cdef void take_connections(ChannelTurn *t) noexcept nogil:
    """Take all new connections up to one for Python. That one waits in `t.handed`."""
    cdef int i
    for i in range(NEW_CONNECTIONS_MAX):
        if t.handed_waits:
            return
        if handover_receive(t.handover_fd, &t.handed, sizeof(Handover), &t.handed_fd) <= 0:
            return
        t.handed_waits = not take_connection(t)

cdef void ring_acceptors(ChannelTurn *t) noexcept nogil:
    """Ring each acceptor that waits for a processor with room, or for a slot for one more connection."""
    cdef int i
    t.made_room = False
    for i in range(ACCEPTORS):
        if ledger_waits(&t.ledger, i):
            bell_ring(&t.acceptor_bells[i])
