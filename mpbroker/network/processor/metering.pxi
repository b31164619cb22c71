# Counts of requests and clients (Kafka: RequestChannel.Request.updateRequestMetrics). Part of turn.pyx.

cdef enum:
    STAMP_NS = 1000             # unit of a descriptor's stamps

cdef void begin_counting(ChannelTurn *t) noexcept nogil:
    """Start the counters. A predecessor's connections count as closed, whether it could count that or not."""
    cdef int by
    counter_set(
        t.counters, Counter.COUNT_CONNECTIONS_CLOSED,
        t.counters.counters[<int>Counter.COUNT_CONNECTIONS_CREATED])
    counter_set(t.counters, Counter.COUNT_ARENA_LIMIT_BYTES, t.arena.limit_bytes)
    for by in range(4):
        counter_set(t.counters, <int>Counter.COUNT_THROTTLED_PRODUCE + by, 0)

cdef inline uint64_t since(uint64_t earlier_ns, uint64_t later_ns) noexcept nogil:
    return later_ns - earlier_ns if later_ns > earlier_ns else 0

cdef inline uint64_t begin_timing(ChannelTurn *t) noexcept nogil:
    """Return the time; 0: no client has a quota on the time of requests."""
    return monotonic_ns() if t.timed else 0

cdef inline void end_timing(Channel *c, uint64_t begun_ns) noexcept nogil:
    if begun_ns:
        c.network_ns += since(begun_ns, monotonic_ns())

cdef inline uint16_t network_units(Channel *c) noexcept nogil:
    """Return the time that this processor has spent on the connection since its last request, in
    NETWORK_UNIT_NS: sending that answer and receiving the next request; before the first, its handshakes
    (Kafka: KafkaChannel.getAndResetNetworkThreadTimeNanos).
    """
    cdef uint64_t units = c.network_ns // NETWORK_UNIT_NS
    return <uint16_t>units if units < 0xFFFF else <uint16_t>0xFFFF

cdef void count_client(ChannelTurn *t, Channel *c) noexcept nogil:
    """Count the connection's software, which is known now; "unknown" before ApiVersions names it."""
    cdef SessionEntry *session = &t.sessions[c.index]
    client_leave(t.meters, ClientKind.CLIENT_SOFTWARE, c.client)
    c.client = <int16_t>client_enter(
        t.meters, ClientKind.CLIENT_SOFTWARE, session.software_name, session.software_version
    )

cdef void note_finished(ChannelTurn *t, Request *r) noexcept nogil:
    """Count a request that has ended, even if answered in vain.

    Each stage ends where the next begins, so that they add up.
    """
    cdef ReplySlot *a = &r.answer
    cdef uint64_t *page = api_page(t.meters, r.api_key)
    cdef uint64_t queue_ns = <uint64_t>a.queue_us * STAMP_NS, local_ns = <uint64_t>a.local_us * STAMP_NS
    cdef uint64_t answered_ns, remote_ns
    # For other kinds nothing was written: no time has passed.
    if a.kind == SlotKind.SEND or a.kind == SlotKind.SEND_PARTS:
        t.clock_ns = monotonic_ns()
    answered_ns = since(
        r.received_ns, a.done_ns if a.done_ns and a.done_ns < r.dequeued_ns else r.dequeued_ns)
    remote_ns = since(queue_ns + local_ns, answered_ns)
    if remote_ns < 2 * STAMP_NS:    # left by rounding down two stamps
        local_ns += remote_ns
        remote_ns = 0
    count_version(page, r.api_version)
    if queue_ns:
        note_api(page, ApiHistogram.REQUEST_QUEUE_NS, queue_ns)
    if local_ns:
        note_api(page, ApiHistogram.LOCAL_NS, local_ns)
    if remote_ns:
        note_api(page, ApiHistogram.REMOTE_NS, remote_ns)
    if a.throttle_ms:
        note_api(page, ApiHistogram.THROTTLE_NS, <uint64_t>a.throttle_ms * 1000000)
    note_api(page, ApiHistogram.RESPONSE_QUEUE_NS, since(r.received_ns + answered_ns, r.dequeued_ns))
    if t.clock_ns > r.dequeued_ns:
        note_api(page, ApiHistogram.RESPONSE_SEND_NS, t.clock_ns - r.dequeued_ns)
    note_api(page, ApiHistogram.TOTAL_NS, since(r.received_ns, t.clock_ns))
    note_api(page, ApiHistogram.REQUEST_BYTES, r.needed - r.body)
    if a.flags & ReplyFlag.LOGGED:
        keep_told(t, r, queue_ns, local_ns, remote_ns, since(r.received_ns + answered_ns, r.dequeued_ns))

cdef void keep_told(
    ChannelTurn *t, Request *r,
    uint64_t queue_ns, uint64_t local_ns, uint64_t remote_ns, uint64_t response_queue_ns
) noexcept nogil:
    """Copy a handler's text for the request log, for Python to write. Without memory it is lost."""
    cdef ReplySlot *a = &r.answer
    cdef uint8_t *base = t.handlers[a.owner - FIRST_HANDLER].arena
    cdef uint8_t *end = base + a.block + block_capacity(base, a.block)
    cdef uint32_t length, room
    cdef Told *told
    memcpy(&length, end - 4, 4)
    if t.told_count == t.told_room:
        room = t.told_room * 2 + 64
        told = <Told *>realloc(t.told, room * sizeof(Told))
        if told == NULL:
            return
        t.told, t.told_room = told, room
    told = &t.told[t.told_count]
    told.text = <char *>malloc(length)
    if told.text == NULL:
        return
    memcpy(told.text, end - 4 - length, length)
    told.length, told.throttle_ms = length, a.throttle_ms
    told.request_queue_ns, told.local_ns, told.remote_ns = queue_ns, local_ns, remote_ns
    told.response_queue_ns, told.send_ns = response_queue_ns, since(r.dequeued_ns, t.clock_ns)
    told.total_ns = since(r.received_ns, t.clock_ns)
    t.told_count += 1

cdef list take_told(ChannelTurn *t):
    """Return the fields of request_log.Ended, and free the copies."""
    cdef Told *one
    cdef uint32_t i
    out = []
    for i in range(t.told_count):
        one = &t.told[i]
        text = one.text[: one.length]
        free(one.text)
        out.append((
            text, one.total_ns, one.request_queue_ns, one.local_ns, one.remote_ns, one.throttle_ms,
            one.response_queue_ns, one.send_ns,
        ))
    t.told_count = 0
    return out

cdef void note_size(ChannelTurn *t, Request *r) noexcept nogil:
    """Note the size of a response that begins to be written."""
    cdef uint64_t size = r.answer.length
    cdef uint32_t i
    if r.answer.kind == SlotKind.SEND_PARTS:
        size = 0
        for i in range(r.answer.length):
            size += parts_of(t, &r.answer)[i].length
    if size > t.counters.counters[<int>Counter.COUNT_RESPONSE_BYTES_MAX]:
        counter_set(t.counters, Counter.COUNT_RESPONSE_BYTES_MAX, size)
