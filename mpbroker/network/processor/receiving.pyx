from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int16_t, int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from mpbroker.ipc.counters cimport Counter
from mpbroker.ipc.session cimport session_software
from mpbroker.network.processor.activity cimport active
from mpbroker.network.processor.apis cimport API_KEYS, Api
from mpbroker.network.processor.channel cimport (
    NEGOTIATING, NO_HANDLER, Channel, ChannelState, CloseReason, Request,
)
from mpbroker.network.processor.channel_turn cimport ChannelTurn
from mpbroker.network.processor.closing cimport close_channel
from mpbroker.network.processor.headers cimport Software, be32, parse_header, read_software
from mpbroker.network.processor.lists cimport defer, hold, mark, move, starve
from mpbroker.network.processor.memory cimport (
    ANSWER_ROOM, SMALL_BLOCK, allocate_more, answer_room, free_request, free_stash, stash_block,
)
from mpbroker.network.processor.metering cimport begin_timing, count_client, end_timing
from mpbroker.network.processor.muting cimport MUTE, REQUEST_RECEIVED, mute_event
from mpbroker.network.processor.patience cimport is_patient
from mpbroker.network.processor.queue cimport end_patience, enqueue, patience_of, queue_is_full
from mpbroker.network.processor.system_calls cimport MSG_DONTWAIT, recv
from mpbroker.network.processor.window_entries cimport enter_window, may_enter_window, window_is_full
from shm.arena cimport arena_allocate, arena_free, block_capacity
from shm.counters cimport counter_add

from mpbroker.protocol.api_keys import ApiKey, valid_versions

cdef enum:
    # Bytes per channel and turn, so that no channel starves another.
    RECEIVED_PER_TURN_MAX = 1 << 18
    # A frame that claims more than CLAIMED_MAX gets FIRST_BLOCK first, and room for all once that is full.
    CLAIMED_MAX = 1 << 21
    FIRST_BLOCK = (1 << 16) - 64
    EXPECTED_MAX = 1 << 15          # bytes set aside for the next frame before its size is known
    REAUTHENTICATION_NS = 1000000000    # Kafka: at most one a second

cdef int API_VERSIONS_LATEST = max(valid_versions(ApiKey.API_VERSIONS))


cdef void note_software(ChannelTurn *t, Channel *c) noexcept nogil:
    """Note the client's software in the session before its ApiVersions request is queued. Ignore malformed
    and invalid requests, which a handler answers.
    """
    cdef Request *r = &c.request
    cdef const uint8_t *frame = t.memory.arena.base + r.block
    cdef Software found
    if r.api_version < t.first_flexible[<int>Api.API_API_VERSIONS] or r.api_version > API_VERSIONS_LATEST:
        return
    if read_software(t.memory.arena.base, r, &found):
        session_software(
            &t.sessions[c.index], frame + found.name, found.name_bytes,
            frame + found.version, found.version_bytes)
        count_client(&t.metering, c)

cdef inline uint64_t frame_block(uint64_t claimed, uint64_t received) noexcept nogil:
    """Return the size of the block for a frame of `claimed` bytes, of which `received` have arrived.
    A frame of more than CLAIMED_MAX bytes gets only a small block until FIRST_BLOCK bytes have arrived.
    """
    if claimed > CLAIMED_MAX and received < FIRST_BLOCK:
        return FIRST_BLOCK
    return claimed + answer_room(claimed)

cdef bint set_aside(ChannelTurn *t, Channel *c) noexcept nogil:
    """Separate the frame from the bytes after it (the stash): the answer will be written after the frame.
    Copy the shorter of the two to a new block. Return False if memory is exhausted.
    """
    cdef uint32_t extra = c.received - c.request.needed
    cdef uint64_t asked, block
    if extra <= c.request.needed:
        asked = stash_block(extra)
        block = allocate_more(&t.memory, asked)
        if block == 0:
            return False
        memcpy(t.memory.arena.base + block, t.memory.arena.base + c.request.block + c.request.needed, extra)
        c.stash, c.stash_asked_bytes, c.stash_at, c.stash_received = block, asked, 0, extra
    else:
        asked = c.request.needed + answer_room(c.request.needed)
        block = allocate_more(&t.memory, asked)
        if block == 0:
            return False
        memcpy(t.memory.arena.base + block, t.memory.arena.base + c.request.block, c.request.needed)
        c.stash, c.stash_asked_bytes, c.stash_at, c.stash_received = (
            c.request.block, c.request.asked_bytes, c.request.needed, c.received)
        c.request.block, c.request.asked_bytes = block, asked
    c.received = c.request.needed
    return True

cdef inline bint is_served(ChannelTurn *t, Channel *c) noexcept nogil:
    cdef int16_t api_key = c.request.api_key
    return 0 <= api_key < API_KEYS and t.first_flexible[api_key] >= 0

cdef inline uint64_t may_wait_until(ChannelTurn *t, Channel *c) noexcept nogil:
    """Return until when the channel's request may wait for company, 0 if not at all.

    It may not if another request of the connection is here already, which would wait with it.
    """
    if c.window_count or c.stash or (c.readable and not c.secure):
        return 0
    if not is_patient(t.memory.arena.base + c.request.block, &c.request):
        return 0
    return patience_of(&t.queue, t.now_ns)

cdef inline bint may_go_beside(ChannelTurn *t, Channel *c) noexcept nogil:
    """Return whether the window may take this request, too. False if the client's session has expired."""
    return may_enter_window(&t.window, c) and not (c.expires_ns and t.now_ns >= c.expires_ns)

cdef bint session_over(ChannelTurn *t, Channel *c) noexcept nogil:
    """Return False if the client's session allows the request to be served. Otherwise return True: Python
    takes over a request that renews the session, and the channel of an expired session is closed.
    """
    if c.request.api_key == Api.API_SASL_HANDSHAKE and (
        c.renewed_ns == 0 or t.now_ns - c.renewed_ns >= REAUTHENTICATION_NS
    ):
        c.renewed_ns = t.now_ns
        c.secure = NEGOTIATING
        mark(&t.lists, c)
        return True
    if t.now_ns < c.expires_ns:
        return False
    counter_add(t.counters, Counter.COUNT_EXPIRED_KILLED, 1)
    close_channel(t, c, CloseReason.CLOSED_SESSION_EXPIRED, 0)
    return True

cdef int frame_whole(ChannelTurn *t, Channel *c) noexcept nogil:
    """Put a whole request into the window, or mute the channel and put the request into the FIFO.

    Return 2 if the next request may be read, 1 if not, -1 if the channel is closed, -2 if memory is full.
    """
    cdef bint parsed
    cdef uint64_t patient_until_ns
    if c.received > c.request.needed and not set_aside(t, c):
        return -2
    parsed = parse_header(t.first_flexible, t.memory.arena.base + c.request.block, &c.request)
    if c.window_count and not (parsed and is_served(t, c) and may_go_beside(t, c)):
        c.barred = 1
        end_patience(&t.queue)
        return 1
    if not parsed:
        close_channel(t, c, CloseReason.CLOSED_HEADER, c.request.needed)
        return -1
    if not is_served(t, c):
        close_channel(t, c, CloseReason.CLOSED_UNKNOWN_API, c.request.api_key)
        return -1
    if c.expires_ns and session_over(t, c):
        return -1
    if c.request.api_key == Api.API_API_VERSIONS:
        note_software(t, c)
    c.expected = c.request.needed if c.request.needed < EXPECTED_MAX else EXPECTED_MAX
    c.request.received_ns = t.metering.clock_ns
    c.request.handler = NO_HANDLER
    c.request.parked = 0
    c.request.open_tries = 0
    c.request.deaths = 0
    t.next_request += 1
    c.request.number = t.next_request
    counter_add(t.counters, Counter.COUNT_REQUESTS, 1)
    patient_until_ns = may_wait_until(t, c)
    if may_enter_window(&t.window, c):
        enter_window(&t.window, &t.queue, c)
        t.queue.patient_until_ns = patient_until_ns
        return 2
    if not mute_event(&t.mutes, c, MUTE) or not mute_event(&t.mutes, c, REQUEST_RECEIVED):
        close_channel(t, c, CloseReason.CLOSED_ILLEGAL_STATE, c.mute)
        return -1
    move(&t.lists, c, ChannelState.CHANNEL_WAITING)
    enqueue(&t.queue, c)
    t.queue.patient_until_ns = patient_until_ns
    return 1

cdef bint take_size(ChannelTurn *t, Channel *c, const uint8_t *frame) noexcept nogil:
    """Read a frame's size. If it is invalid, return False, and close the channel when the window is empty."""
    cdef int32_t size = <int32_t>be32(frame)
    if size < 0 or <uint32_t>size > t.frame_bytes_max:
        if c.window_count:
            c.barred = 1        # closed when the requests before it are answered
            return False
        close_channel(t, c, CloseReason.CLOSED_FRAME_SIZE, size)
        return False
    c.request.needed = <uint32_t>size + 4
    return True

cdef int take_from_stash(ChannelTurn *t, Channel *c) noexcept nogil:
    """Move the next frame, or a part of it, out of the stash. Return what `frame_received` returns."""
    cdef uint32_t left = c.stash_received - c.stash_at
    cdef uint32_t taken = left
    cdef const uint8_t *frame = t.memory.arena.base + c.stash + c.stash_at
    cdef uint64_t asked = SMALL_BLOCK, block
    c.request.needed = 0
    c.checked_ns = 0
    if left >= 4:
        if not take_size(t, c, frame):
            return -1
        taken = c.request.needed if c.request.needed < left else left
        if taken == c.request.needed or taken >= SMALL_BLOCK:
            asked = frame_block(c.request.needed, taken)
    if c.stash_at == 0 and taken == left:
        # The stash holds this frame alone: use it as the frame's block.
        c.request.block, c.request.asked_bytes, c.received = c.stash, c.stash_asked_bytes, left
        c.stash = 0
        return frame_received(t, c)
    block = allocate_more(&t.memory, asked)
    if block == 0:
        return -2
    memcpy(t.memory.arena.base + block, frame, taken)
    c.request.block, c.request.asked_bytes, c.received = block, asked, taken
    c.stash_at += taken
    if c.stash_at == c.stash_received:
        free_stash(&t.memory, c)
    return frame_received(t, c)

cdef bint make_room(ChannelTurn *t, Channel *c) noexcept nogil:
    """Move the received bytes of a frame to a larger block if needed. Return False if memory is exhausted."""
    cdef uint64_t asked = frame_block(c.request.needed, c.received)
    cdef uint64_t capacity = block_capacity(t.memory.arena.base, c.request.block), block
    if c.request.needed + answer_room(c.request.needed) <= capacity:
        return True
    block = allocate_more(&t.memory, asked)
    if block == 0:
        return False
    memcpy(t.memory.arena.base + block, t.memory.arena.base + c.request.block, c.received)
    arena_free(t.memory.arena, c.request.block, c.request.asked_bytes)
    c.request.block = block
    c.request.asked_bytes = asked
    return True

cdef uint64_t frame_room(ChannelTurn *t, Channel *c) noexcept nogil:
    """Return how many more bytes of the frame the block has room for."""
    cdef uint64_t whole = block_capacity(t.memory.arena.base, c.request.block)
    return (c.request.needed if 0 < c.request.needed < whole else whole) - c.received

cdef int frame_received(ChannelTurn *t, Channel *c) noexcept nogil:
    """Check the received bytes. Return 0 to receive more, otherwise what `frame_whole` returns."""
    if c.received < 4:
        return 0
    if c.request.needed == 0 and not take_size(t, c, t.memory.arena.base + c.request.block):
        return -1
    if c.received < c.request.needed and c.received < block_capacity(t.memory.arena.base, c.request.block):
        # It has to fill its first block before it gets another.
        return 0
    if c.received < c.request.needed or (
        c.request.needed + ANSWER_ROOM // 2 > block_capacity(t.memory.arena.base, c.request.block)
    ):
        if not make_room(t, c):
            return -2
        if c.received < c.request.needed:
            return 0
    return frame_whole(t, c)

cdef int find_block(ChannelTurn *t, Channel *c) noexcept nogil:
    """Find a block for the bytes of the stash or the socket. Return what `frame_received` returns."""
    cdef uint64_t asked
    cdef int framed
    if c.stash:
        framed = take_from_stash(t, c)
        if framed:
            return framed
    if c.request.block == 0:
        asked = (
            c.expected + answer_room(c.expected) if c.expected > SMALL_BLOCK - ANSWER_ROOM else SMALL_BLOCK)
        c.request.block = arena_allocate(t.memory.arena, asked)
        if c.request.block == 0:
            return -2
        c.request.asked_bytes = asked
        c.received = 0
        c.request.needed = 0
        c.checked_ns = 0
        return 0
    # These bytes waited for memory, and may be a whole frame.
    return frame_received(t, c) if c.received else 0

cdef void receive_end(ChannelTurn *t, Channel *c, ssize_t n) noexcept nogil:
    """Handle a recv that has returned no bytes: the socket is empty, the stream has ended, or recv failed."""
    if n < 0 and errno == EAGAIN:
        c.readable = 0
        if c.received == 0:
            free_request(&t.memory, &c.request)
        return
    if n < 0:
        close_channel(t, c, CloseReason.CLOSED_RESET, errno)
    else:
        stream_ended(t, c)

cdef void stream_ended(ChannelTurn *t, Channel *c) noexcept nogil:
    """Close a channel whose client has ended the stream: at once, or after the window's last answer."""
    if c.window_count:
        c.readable = 0
        c.ended = 1
    else:
        close_channel(t, c, CloseReason.CLOSED_BY_PEER, c.received)

cdef void read_channel(ChannelTurn *t, Channel *c) noexcept nogil:
    cdef uint64_t begun_ns = begin_timing(&t.metering)
    receive(t, c)
    end_timing(c, begun_ns)

cdef bint may_receive(ChannelTurn *t, Channel *c) noexcept nogil:
    """Return whether the next bytes of the channel may be received or processed now."""
    if t.stopping or c.window_closes or not (c.readable or c.stash or c.received):
        return False
    if c.secure == NEGOTIATING:
        mark(&t.lists, c)
        return False
    if c.window_count and (c.barred or window_is_full(&t.window, c)):
        return False
    if queue_is_full(&t.queue, &t.peers):
        hold(&t.lists, c)
        return False
    return True

cdef int next_frame(ChannelTurn *t, Channel *c) noexcept nogil:
    """Process bytes that were received earlier. If a request waits for an empty window, process it first.
    Return what `frame_received` returns.
    """
    if not c.barred:
        return find_block(t, c)
    c.barred = 0
    return frame_whole(t, c) if c.request.needed else find_block(t, c)

cdef void memory_full(ChannelTurn *t, Channel *c) noexcept nogil:
    """Mute the channel until the arena has memory."""
    counter_add(t.counters, Counter.COUNT_MEMORY_FULL, 1)
    if not mute_event(&t.mutes, c, MUTE):
        close_channel(t, c, CloseReason.CLOSED_ILLEGAL_STATE, c.mute)
        return
    t.memory.refused_at, t.memory.refused_limit = t.memory.arena.releases, t.memory.arena.limit_bytes
    if t.memory.dry_since_ns == 0:
        t.memory.dry_since_ns = t.now_ns
        t.memory.next_stall_check_ns = t.now_ns
    starve(&t.lists, c)

cdef void receive(ChannelTurn *t, Channel *c) noexcept nogil:
    """Receive until nothing more may be read, the socket is empty, an error occurs, or the channel's share of
    the turn is used up.
    """
    cdef uint64_t room, budget = RECEIVED_PER_TURN_MAX
    cdef ssize_t n
    cdef int framed
    if not may_receive(t, c):
        return
    framed = next_frame(t, c)
    while framed == 2 or (framed == 0 and c.readable):
        if framed == 2:
            if not may_receive(t, c):
                return
            framed = next_frame(t, c)
            continue
        if c.secure:
            mark(&t.lists, c)
            return
        if budget == 0:
            defer(&t.lists, c, True)
            return
        room = frame_room(t, c)
        if room > budget:
            room = budget
        n = recv(c.fd, t.memory.arena.base + c.request.block + c.received, room, MSG_DONTWAIT)
        counter_add(t.counters, Counter.COUNT_READS, 1)
        if n < 0 and errno == EINTR:
            continue
        if n <= 0:
            receive_end(t, c, n)
            return
        c.received += n
        c.moved_bytes += n
        budget -= n
        active(&t.activity, c, t.now_ns)
        # A short read has emptied the socket's buffer: the next byte brings a new edge. The end of the stream
        # may have come with the bytes, and then brings none.
        c.readable = 1 if <uint64_t>n == room or c.ended else 0
        counter_add(t.counters, Counter.COUNT_BYTES_IN, n)
        framed = frame_received(t, c)
    if framed == -2:
        memory_full(t, c)
