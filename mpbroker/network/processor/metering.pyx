from libc.stdint cimport int16_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from mpbroker.ipc.counters cimport Counter
from mpbroker.ipc.meters cimport (
    ApiHistogram, ClientKind, api_page, client_enter, client_leave, count_version, note_api,
)
from mpbroker.ipc.session cimport SessionEntry
from mpbroker.ipc.slots cimport ReplyFlag, ReplySlot, SlotKind
from mpbroker.network.processor.answers cimport parts_of
from mpbroker.network.processor.channel cimport Channel, Request
from mpbroker.network.processor.peers cimport FIRST_HANDLER
from shm.arena cimport block_capacity
from shm.counters cimport counter_set, monotonic_ns

cdef enum:
    STAMP_NS = 1000             # unit of a descriptor's stamps

cdef void begin_counting(Metering *m, uint64_t limit_bytes) noexcept nogil:
    """Start the counters. Connections of a dead process that had this role before count as closed."""
    cdef int by
    counter_set(
        m.counters, Counter.COUNT_CONNECTIONS_CLOSED,
        m.counters.counters[<int>Counter.COUNT_CONNECTIONS_CREATED])
    counter_set(m.counters, Counter.COUNT_ARENA_LIMIT_BYTES, limit_bytes)
    for by in range(4):
        counter_set(m.counters, <int>Counter.COUNT_THROTTLED_PRODUCE + by, 0)

cdef void count_client(Metering *m, Channel *c) noexcept nogil:
    """Count the connection by its client's software, which is "unknown" before an ApiVersions request."""
    cdef SessionEntry *session = &m.sessions[c.index]
    client_leave(m.meters, ClientKind.CLIENT_SOFTWARE, c.client)
    c.client = <int16_t>client_enter(
        m.meters, ClientKind.CLIENT_SOFTWARE, session.software_name, session.software_version
    )

cdef void note_finished(Metering *m, Request *r) noexcept nogil:
    """Count a request that has ended, even if its client has disconnected.

    Each measured stage ends when the next begins, so that the stages add up to the total time.
    """
    cdef ReplySlot *a = &r.answer
    cdef uint64_t *page = api_page(m.meters, r.api_key)
    cdef uint64_t queue_ns = <uint64_t>a.queue_us * STAMP_NS, local_ns = <uint64_t>a.local_us * STAMP_NS
    cdef uint64_t answered_ns, remote_ns
    # For other kinds nothing was written: no time has passed.
    if a.kind == SlotKind.SEND or a.kind == SlotKind.SEND_PARTS:
        m.clock_ns = monotonic_ns()
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
    if m.clock_ns > r.dequeued_ns:
        note_api(page, ApiHistogram.RESPONSE_SEND_NS, m.clock_ns - r.dequeued_ns)
    note_api(page, ApiHistogram.TOTAL_NS, since(r.received_ns, m.clock_ns))
    note_api(page, ApiHistogram.REQUEST_BYTES, r.needed - r.body)
    if a.flags & ReplyFlag.LOGGED:
        keep_told(m, r, queue_ns, local_ns, remote_ns, since(r.received_ns + answered_ns, r.dequeued_ns))

cdef void keep_told(
    Metering *m, Request *r,
    uint64_t queue_ns, uint64_t local_ns, uint64_t remote_ns, uint64_t response_queue_ns
) noexcept nogil:
    """Copy, for the request log, a handler's text about the request. Do nothing if memory is exhausted."""
    cdef ReplySlot *a = &r.answer
    cdef uint8_t *base = m.peers.handlers[a.owner - FIRST_HANDLER].arena
    cdef uint8_t *end = base + a.block + block_capacity(base, a.block)
    cdef uint32_t length, room
    cdef Told *told
    memcpy(&length, end - 4, 4)
    if m.told_count == m.told_room:
        room = m.told_room * 2 + 64
        told = <Told *>realloc(m.told, room * sizeof(Told))
        if told == NULL:
            return
        m.told, m.told_room = told, room
    told = &m.told[m.told_count]
    told.text = <char *>malloc(length)
    if told.text == NULL:
        return
    memcpy(told.text, end - 4 - length, length)
    told.length, told.throttle_ms = length, a.throttle_ms
    told.request_queue_ns, told.local_ns, told.remote_ns = queue_ns, local_ns, remote_ns
    told.response_queue_ns, told.send_ns = response_queue_ns, since(r.dequeued_ns, m.clock_ns)
    told.total_ns = since(r.received_ns, m.clock_ns)
    m.told_count += 1

cdef list take_told(Metering *m):
    """Return, for each request that `keep_told` noted, the fields of request_log.Ended. Free the copies."""
    cdef Told *one
    cdef uint32_t i
    out = []
    for i in range(m.told_count):
        one = &m.told[i]
        text = one.text[: one.length]
        free(one.text)
        out.append((
            text, one.total_ns, one.request_queue_ns, one.local_ns, one.remote_ns, one.throttle_ms,
            one.response_queue_ns, one.send_ns,
        ))
    m.told_count = 0
    return out

cdef void note_size(Metering *m, Request *r) noexcept nogil:
    """If this answer is the largest response so far, set the metric of the largest response to its size."""
    cdef uint64_t size = r.answer.length
    cdef uint32_t i
    if r.answer.kind == SlotKind.SEND_PARTS:
        size = 0
        for i in range(r.answer.length):
            size += parts_of(m.peers, &r.answer)[i].length
    if size > m.counters.counters[<int>Counter.COUNT_RESPONSE_BYTES_MAX]:
        counter_set(m.counters, Counter.COUNT_RESPONSE_BYTES_MAX, size)
