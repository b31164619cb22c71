"""One wake-up of a processor: receive, frame, parse headers, hand to handlers, send answers; without the GIL.

The phases of a turn, in Kafka's order (SocketServer.Processor.run), for all that a wake-up brought:

    sleep      arm the doorbell, look at the rings, epoll_wait
    answers    every reply in every ring: start writing it; when it is written go on reading that connection
    sockets    readable: receive into an arena block until a frame is whole; writable: go on writing
    dispatch   the FIFO goes as one batch to the handler with the least load
    publish    one store per ring, one doorbell per handler

Sockets are edge-triggered and registered once, so muting a channel costs no system call: it is just not read. Whatever needs a
decision is returned to Python: new connections, closed ones, segment files to open, orders of the supervisor.
"""
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memmove, memset
from posix.unistd cimport close

from mpbroker.ipc.counters cimport Counter, Histogram
from mpbroker.ipc.slots cimport Part, PartKind, ReplySlot, RequestSlot, SlotKind
from mpbroker.network.channel cimport Channel, ChannelState, CloseReason
from mpbroker.network.files cimport FILE_LIMIT, FILE_PLACES, OpenFile, file_find, file_hash
from shm.arena cimport (
    Arena, arena_allocate, arena_free, block_capacity, block_generation, block_lend,
)
from shm.counters cimport CounterPage, counter_add, counter_set, heartbeat, histogram_record, monotonic_ns
from shm.doorbell cimport Doorbell, bell_arm, bell_disarm, bell_drain, bell_ring
from shm.ring cimport (
    Ring, Slot, ring_advance, ring_bind, ring_peek, ring_publish, ring_room, ring_stage, ring_waiting, ring_want_space,
)
from shm.atomics cimport load_acquire, load_relaxed

from mpbroker.ipc import topology

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        uint32_t u32
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event *event)
    int epoll_wait(int epfd, epoll_event *events, int maxevents, int timeout)
    int EPOLL_CTL_ADD, EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP, EPOLLRDHUP, EPOLL_CLOEXEC
    uint32_t EPOLLET

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int fd, void *buffer, size_t length, int flags)
    ssize_t send(int fd, const void *buffer, size_t length, int flags)
    int MSG_DONTWAIT, MSG_NOSIGNAL, MSG_MORE

cdef extern from "<sys/sendfile.h>" nogil:
    ssize_t sendfile(int out_fd, int in_fd, long *offset, size_t count)

cdef enum:
    NO_HANDLER = 0xFFFF
    FIRST_HANDLER = 24              # mpbroker.ipc.topology.FIRST_HANDLER, checked at import
    LOG_PROCESS = 3                 # mpbroker.ipc.topology.LOG, checked at import
    SMALL_BLOCK = 1984              # bytes of the smallest size class: most requests fit
    ANSWER_ROOM = 1024              # a block keeps at least this free behind the frame for the produce job and its answer
    ANSWER_ROOM_MAX = 65536
    SENT_PER_TURN_MAX = 1 << 20     # bytes per channel and turn, so that no channel starves another
    BATCH_REQUESTS_MAX = 256        # about a millisecond of a handler's work
    TURN_CONNECTIONS = 1
    TURN_CLOSED = 2
    TURN_OPENING = 4
    API_PRODUCE = 0

assert FIRST_HANDLER == topology.FIRST_HANDLER and LOG_PROCESS == topology.LOG and MOST_HANDLERS == topology.MAX_HANDLERS
# What epoll says of the two descriptors that are no channels.
cdef uint32_t BELL_TAG = <uint32_t>0xFFFFFFFFu
cdef uint32_t HANDOVER_TAG = <uint32_t>0xFFFFFFFEu
CONNECTIONS, CLOSED, OPENING = TURN_CONNECTIONS, TURN_CLOSED, TURN_OPENING


cdef inline uint32_t be32(const uint8_t *p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]

cdef inline uint16_t be16(const uint8_t *p) noexcept nogil:
    return (<uint16_t>p[0] << 8) | p[1]

cdef inline uint64_t answer_room(uint64_t frame_bytes) noexcept nogil:
    cdef uint64_t room = ANSWER_ROOM + frame_bytes // 2
    return room if room < ANSWER_ROOM_MAX else ANSWER_ROOM_MAX


# ---- lists of channels

cdef inline void defer(Turn *t, Channel *c, bint soon) noexcept nogil:
    """The channel is looked at again in the next turn; `soon`: it can go on then, so that turn does not sleep."""
    t.soon = t.soon or soon
    if not c.deferred:
        c.deferred = 1
        t.deferred[t.deferred_count] = c.index
        t.deferred_count += 1

cdef inline void enqueue(Turn *t, Channel *c) noexcept nogil:
    t.fifo[t.fifo_tail & (FIFO_PLACES - 1)] = c.index
    t.fifo_tail += 1

cdef inline void free_place(Turn *t, Channel *c) noexcept nogil:
    """While the channel is in the deferred list its place is not given out; whoever walks the list does it then."""
    c.state = ChannelState.CHANNEL_FREE
    c.connection = 0
    if not c.deferred:
        t.free_channels[t.free_count] = c.index
        t.free_count += 1


# ---- leases

cdef inline void free_request(Turn *t, Channel *c) noexcept nogil:
    if c.block:
        arena_free(t.arena, c.block, c.asked_bytes)
        c.block = 0

cdef void give_back(Turn *t, ReplySlot *a) noexcept nogil:
    """Ends the lease of a handler's reply block. Our own blocks are freed with their request."""
    cdef Slot slot
    cdef RequestSlot *r = <RequestSlot *>&slot
    cdef Peer *peer
    if a.block == 0 or a.owner < FIRST_HANDLER:
        return
    peer = &t.handlers[a.owner - FIRST_HANDLER]
    if not peer.alive:
        return                      # its arena is reset as a whole
    memset(&slot, 0, sizeof(slot))
    r.kind = SlotKind.RETURN
    r.processor = t.process
    r.block = a.block
    r.generation = a.generation
    if not ring_stage(&peer.requests, &slot):
        counter_add(t.counters, Counter.COUNT_RING_FULL, 1)
        owe(t, peer, &slot)

cdef void owe(Turn *t, Peer *peer, Slot *slot) noexcept nogil:
    """Keeps what did not fit into a handler's ring; it goes first as soon as there is room."""
    cdef Slot *grown
    if peer.owed_count == peer.owed_places:
        grown = <Slot *>realloc(peer.owed, (peer.owed_places * 2 + 64) * sizeof(Slot))
        if grown == NULL:
            return                  # out of memory: the handler gets the block back when it fences us
        peer.owed = grown
        peer.owed_places = peer.owed_places * 2 + 64
    peer.owed[peer.owed_count] = slot[0]
    peer.owed_count += 1

cdef void pay(Turn *t, Peer *peer) noexcept nogil:
    cdef uint32_t paid = 0
    while paid < peer.owed_count and ring_stage(&peer.requests, &peer.owed[paid]):
        paid += 1
    if paid:
        memmove(peer.owed, peer.owed + paid, (peer.owed_count - paid) * sizeof(Slot))
        peer.owed_count -= paid

cdef void cancel(Turn *t, Channel *c) noexcept nogil:
    """Tells the handler that a parked request has nobody to answer to; it ends the lease with a NOOP."""
    cdef Slot slot
    cdef RequestSlot *r = <RequestSlot *>&slot
    cdef Peer *peer = &t.handlers[c.handler]
    memset(&slot, 0, sizeof(slot))
    r.kind = SlotKind.CANCEL
    r.processor = t.process
    r.channel = c.index
    r.connection = c.connection
    r.request = c.request
    if ring_stage(&peer.requests, &slot):
        peer.touched = True
    else:
        owe(t, peer, &slot)

cdef inline void answered(Turn *t, Channel *c) noexcept nogil:
    """The handler no longer has the channel's request."""
    if c.handler != NO_HANDLER:
        if not c.parked and t.handlers[c.handler].load:
            t.handlers[c.handler].load -= 1
        c.handler = NO_HANDLER
    c.parked = 0


# ---- closing

cdef void close_channel(Turn *t, Channel *c, uint32_t reason, int64_t detail) noexcept nogil:
    """Closes the socket. While the request is with others the place stays CLOSED, until its answer ends the lease of the block."""
    cdef Event *event
    if c.state == ChannelState.CHANNEL_FREE or c.state == ChannelState.CHANNEL_CLOSED:
        return
    if c.state == ChannelState.CHANNEL_SENDING or c.state == ChannelState.CHANNEL_OPENING:
        release_answer(t, c)
    if c.stash:
        arena_free(t.arena, c.stash, c.stash_asked_bytes)
        c.stash = 0
    close(c.fd)
    c.fd = -1
    if t.closed_count < MOST_CLOSED:
        event = &t.closed[t.closed_count]
        event.channel = c.index
        event.reason = reason
        event.connection = c.connection
        event.detail = detail
        t.closed_count += 1
    counter_add(t.counters, Counter.COUNT_CONNECTIONS_CLOSED, 1)
    if c.state == ChannelState.CHANNEL_WAITING:
        c.state = ChannelState.CHANNEL_CLOSED
        if c.parked:
            cancel(t, c)
    else:
        free_request(t, c)
        free_place(t, c)


# ---- sending

cdef inline Part *parts_of(Turn *t, ReplySlot *a) noexcept nogil:
    cdef uint8_t *base = t.arena.base if a.owner == t.process else t.handlers[a.owner - FIRST_HANDLER].arena
    return <Part *>(base + a.block + a.position)

cdef void release_answer(Turn *t, Channel *c) noexcept nogil:
    """Ends the use of files and of the lease of the answer that the channel was sending."""
    cdef ReplySlot *a = &c.answer
    cdef Part *part
    cdef OpenFile *entry
    cdef uint32_t i
    if a.kind == SlotKind.SEND_PARTS and c.state == ChannelState.CHANNEL_SENDING:
        for i in range(a.length):
            part = parts_of(t, a) + i
            if part.kind == PartKind.PART_FILE:
                entry = file_find(&t.files, part.slot, part.slot_generation, part.segment_base, part.file_generation)
                if entry != NULL and entry.users:
                    entry.users -= 1
    give_back(t, a)

cdef int send_bytes(Turn *t, Channel *c, const uint8_t *bytes, uint64_t length, int flags) noexcept nogil:
    """Writes from `part_sent` on. 1: all written; 0: the socket is full; -1: error."""
    cdef ssize_t n
    while c.part_sent < length:
        n = send(c.fd, bytes + c.part_sent, length - c.part_sent, MSG_NOSIGNAL | MSG_DONTWAIT | flags)
        if n < 0:
            if errno == EINTR:
                continue
            return 0 if errno == EAGAIN else -1
        c.part_sent += n
        counter_add(t.counters, Counter.COUNT_BYTES_OUT, n)
    return 1

cdef int send_file(Turn *t, Channel *c, Part *part, uint64_t *budget) noexcept nogil:
    """As `send_bytes`, from the page cache; 2: the budget of this turn is used up."""
    cdef OpenFile *entry = file_find(&t.files, part.slot, part.slot_generation, part.segment_base, part.file_generation)
    cdef ssize_t n
    cdef long offset
    cdef uint64_t want
    if entry == NULL:
        return -1
    while c.part_sent < part.length:
        if budget[0] == 0:
            return 2
        want = part.length - c.part_sent
        if want > budget[0]:
            want = budget[0]
        offset = <long>(part.position + c.part_sent)
        n = sendfile(c.fd, entry.fd, &offset, want)
        if n < 0:
            if errno == EINTR:
                continue
            return 0 if errno == EAGAIN else -1
        if n == 0:
            return -1               # the file is shorter than the handler said
        c.part_sent += n
        budget[0] -= n
        counter_add(t.counters, Counter.COUNT_BYTES_OUT, n)
    return 1

cdef int send_answer(Turn *t, Channel *c) noexcept nogil:
    """1: the whole answer is written; 0: wait for the socket; 2: go on next turn; -1: the connection failed."""
    cdef ReplySlot *a = &c.answer
    cdef Part *part
    cdef uint8_t *base = t.arena.base if a.owner == t.process else t.handlers[a.owner - FIRST_HANDLER].arena
    cdef uint64_t budget = SENT_PER_TURN_MAX
    cdef int done
    if a.kind == SlotKind.SEND:
        return send_bytes(t, c, base + a.block + a.position, a.length, 0)
    while c.part < a.length:
        part = parts_of(t, a) + c.part
        if part.kind == PartKind.PART_FILE:
            done = send_file(t, c, part, &budget)
        else:
            done = send_bytes(t, c, base + a.block + part.position, part.length, MSG_MORE if c.part + 1 < a.length else 0)
        if done != 1:
            return done
        c.part += 1
        c.part_sent = 0
    return 1

cdef bint files_are_open(Turn *t, Channel *c) noexcept nogil:
    """Whether every slice of the answer can be sent; all are checked before the first byte is written."""
    cdef Part *part
    cdef uint32_t i
    for i in range(c.answer.length):
        part = parts_of(t, &c.answer) + i
        if part.kind == PartKind.PART_FILE:
            if file_find(&t.files, part.slot, part.slot_generation, part.segment_base, part.file_generation) == NULL:
                return False
    return True

cdef void use_files(Turn *t, Channel *c) noexcept nogil:
    cdef Part *part
    cdef uint32_t i
    for i in range(c.answer.length):
        part = parts_of(t, &c.answer) + i
        if part.kind == PartKind.PART_FILE:
            file_find(&t.files, part.slot, part.slot_generation, part.segment_base, part.file_generation).users += 1

cdef void start_sending(Turn *t, Channel *c) noexcept nogil:
    """The channel's answer is in `c.answer`."""
    c.part = 0
    c.part_sent = 0
    if c.answer.kind == SlotKind.SEND_PARTS:
        if not files_are_open(t, c):
            c.state = ChannelState.CHANNEL_OPENING
            if t.opening_count < 1024:
                t.opening[t.opening_count] = c.index
                t.opening_count += 1
            else:
                close_channel(t, c, CloseReason.CLOSED_NO_FILE, 0)
            return
        use_files(t, c)
    c.state = ChannelState.CHANNEL_SENDING
    go_on_sending(t, c)

cdef void go_on_sending(Turn *t, Channel *c) noexcept nogil:
    cdef int done = send_answer(t, c)
    c.last_active_ns = t.now_ns
    if done == 1:
        release_answer(t, c)
        finish_request(t, c)
    elif done == 2:
        defer(t, c, True)
    elif done < 0:
        close_channel(t, c, CloseReason.CLOSED_RESET, errno)

cdef void finish_request(Turn *t, Channel *c) noexcept nogil:
    """The request is answered: unmute. What was pipelined behind it comes next, without another wake-up."""
    histogram_record(t.counters, Histogram.TIME_TOTAL_NS, t.now_ns - c.received_ns if t.now_ns > c.received_ns else 0)
    counter_add(t.counters, Counter.COUNT_RESPONSES, 1)
    free_request(t, c)
    c.state = ChannelState.CHANNEL_READING
    c.received = 0
    c.needed = 0
    if c.stash:
        c.block = c.stash
        c.asked_bytes = c.stash_asked_bytes
        c.received = c.stash_received
        c.stash = 0
        if frame_received(t, c) == -2:
            memory_full(t, c)
    if c.state == ChannelState.CHANNEL_READING and c.readable:
        defer(t, c, True)


# ---- receiving

cdef bint parse_header(Turn *t, Channel *c) noexcept nogil:
    """Request header v1 or v2 (RequestHeader.json); fills api_key, api_version, correlation, body. False: malformed."""
    cdef uint8_t *frame = t.arena.base + c.block
    cdef uint64_t at = 12, end = c.needed
    cdef int32_t client_bytes
    cdef uint64_t tags, size, i
    if end < 14:
        return False
    c.api_key = <int16_t>be16(frame + 4)
    c.api_version = <int16_t>be16(frame + 6)
    c.correlation = <int32_t>be32(frame + 8)
    client_bytes = <int16_t>be16(frame + 12)
    at = 14
    if client_bytes > 0:
        at += client_bytes
    if at > end:
        return False
    if 0 <= c.api_key < API_KEYS and t.first_flexible[c.api_key] >= 0 and c.api_version >= t.first_flexible[c.api_key]:
        if not read_uvarint(frame, &at, end, &tags):
            return False
        for i in range(tags):
            if not read_uvarint(frame, &at, end, &size) or not read_uvarint(frame, &at, end, &size):
                return False
            if size > end - at:
                return False
            at += size
    c.body = <uint32_t>at
    return True

cdef bint read_uvarint(const uint8_t *bytes, uint64_t *at, uint64_t end, uint64_t *value) noexcept nogil:
    cdef int shift = 0
    value[0] = 0
    while at[0] < end and shift < 35:
        value[0] |= (<uint64_t>(bytes[at[0]] & 127)) << shift
        at[0] += 1
        if not bytes[at[0] - 1] & 128:
            return True
        shift += 7
    return False

cdef void frame_whole(Turn *t, Channel *c) noexcept nogil:
    """Mutes the channel and puts its request into the FIFO; bytes behind the frame are kept for later."""
    cdef uint32_t extra = c.received - c.needed
    cdef uint64_t asked
    if extra:
        asked = extra if extra > SMALL_BLOCK else SMALL_BLOCK
        c.stash = arena_allocate(t.arena, asked)
        if c.stash == 0:
            close_channel(t, c, CloseReason.CLOSED_NO_MEMORY, extra)
            return
        memcpy(t.arena.base + c.stash, t.arena.base + c.block + c.needed, extra)
        c.stash_asked_bytes = asked
        c.stash_received = extra
        c.received = c.needed
    if not parse_header(t, c):
        close_channel(t, c, CloseReason.CLOSED_HEADER, c.needed)
        return
    if c.api_key < 0 or c.api_key >= API_KEYS or t.first_flexible[c.api_key] < 0:
        close_channel(t, c, CloseReason.CLOSED_UNKNOWN_API, c.api_key)
        return
    c.expected = c.needed
    c.received_ns = t.now_ns
    c.state = ChannelState.CHANNEL_WAITING
    c.handler = NO_HANDLER
    c.parked = 0
    c.open_tries = 0
    t.next_request += 1
    c.request = t.next_request
    counter_add(t.counters, Counter.COUNT_REQUESTS, 1)
    enqueue(t, c)

cdef bint make_room(Turn *t, Channel *c) noexcept nogil:
    """Moves the beginning of a frame into a block that holds all of it and its answer. False: no memory now."""
    cdef uint64_t asked = c.needed + answer_room(c.needed)
    cdef uint64_t block
    if c.needed + answer_room(c.needed) <= block_capacity(t.arena.base, c.block):
        return True
    block = arena_allocate(t.arena, asked)
    if block == 0:
        return False
    memcpy(t.arena.base + block, t.arena.base + c.block, c.received)
    arena_free(t.arena, c.block, c.asked_bytes)
    c.block = block
    c.asked_bytes = asked
    return True

cdef int frame_received(Turn *t, Channel *c) noexcept nogil:
    """Looks at what is in the block. 1: a request went to the FIFO; 0: more bytes are needed; -1: closed; -2: no memory."""
    cdef int32_t size
    if c.received < 4:
        return 0
    if c.needed == 0:
        size = <int32_t>be32(t.arena.base + c.block)
        if size < 0 or <uint32_t>size > t.frame_bytes_max:
            close_channel(t, c, CloseReason.CLOSED_FRAME_SIZE, size)
            return -1
        c.needed = <uint32_t>size + 4
    if c.received < c.needed or c.needed + ANSWER_ROOM // 2 > block_capacity(t.arena.base, c.block):
        if not make_room(t, c):
            return -2
        if c.received < c.needed:
            return 0
    frame_whole(t, c)
    return 1 if c.state == ChannelState.CHANNEL_WAITING else -1

cdef void read_channel(Turn *t, Channel *c) noexcept nogil:
    """Receives until a request is whole, the socket is empty, or something is wrong."""
    cdef uint64_t room, asked
    cdef ssize_t n
    cdef int framed
    while c.state == ChannelState.CHANNEL_READING and c.readable:
        if t.stopping:
            return
        if t.fifo_tail - t.fifo_head >= t.queued_requests_max:
            defer(t, c, False)
            return
        if c.block == 0:
            asked = c.expected + answer_room(c.expected) if c.expected > SMALL_BLOCK - ANSWER_ROOM else SMALL_BLOCK
            c.block = arena_allocate(t.arena, asked)
            if c.block == 0:
                memory_full(t, c)
                return
            c.asked_bytes = asked
            c.received = 0
            c.needed = 0
        if c.needed:
            if not make_room(t, c):
                memory_full(t, c)
                return
            room = c.needed - c.received
        else:
            room = block_capacity(t.arena.base, c.block) - c.received
        n = recv(c.fd, t.arena.base + c.block + c.received, room, MSG_DONTWAIT)
        if n <= 0:
            if n < 0 and errno == EINTR:
                continue
            if n < 0 and errno == EAGAIN:
                c.readable = 0
                if c.received == 0:
                    free_request(t, c)
                return
            close_channel(t, c, CloseReason.CLOSED_BY_PEER if n == 0 else CloseReason.CLOSED_RESET, c.received if n == 0 else errno)
            return
        c.received += n
        c.last_active_ns = t.now_ns
        # A short read has emptied the socket's buffer: the next byte brings a new edge.
        c.readable = 1 if <uint64_t>n == room else 0
        counter_add(t.counters, Counter.COUNT_BYTES_IN, n)
        framed = frame_received(t, c)
        if framed == -2:
            memory_full(t, c)
            return
        if framed < 0:
            return

cdef void memory_full(Turn *t, Channel *c) noexcept nogil:
    t.memory_short = True
    counter_add(t.counters, Counter.COUNT_MEMORY_FULL, 1)
    defer(t, c, False)


# ---- answers

cdef void take_answer(Turn *t, ReplySlot *a) noexcept nogil:
    cdef Channel *c
    if a.channel >= t.channel_places:
        return
    c = &t.channels[a.channel]
    if c.connection != a.connection or c.request != a.request:
        if a.kind != SlotKind.PARKED:
            give_back(t, a)         # answered or fenced long ago
        return
    if a.kind == SlotKind.PARKED:
        if c.handler != NO_HANDLER and not c.parked:
            if t.handlers[c.handler].load:
                t.handlers[c.handler].load -= 1
            c.parked = 1
            if c.state == ChannelState.CHANNEL_CLOSED:
                cancel(t, c)
        return
    answered(t, c)
    if c.state == ChannelState.CHANNEL_CLOSED:
        give_back(t, a)
        free_request(t, c)
        free_place(t, c)
        return
    if c.state != ChannelState.CHANNEL_WAITING:
        give_back(t, a)
        return
    histogram_record(t.counters, Histogram.TIME_RESPONSE_QUEUE_NS, t.now_ns - a.done_ns if t.now_ns > a.done_ns else 0)
    c.answer = a[0]
    if a.kind == SlotKind.SEND or a.kind == SlotKind.SEND_PARTS:
        start_sending(t, c)
    elif a.kind == SlotKind.NOOP:
        give_back(t, a)
        finish_request(t, c)
    else:
        give_back(t, a)
        c.state = ChannelState.CHANNEL_READING      # nobody else has its block now
        close_channel(t, c, CloseReason.CLOSED_BY_HANDLER, c.api_key)

cdef bint take_answers(Turn *t, RingRef *ring) noexcept nogil:
    """Takes all that waits; True when the producer waits for room."""
    cdef uint64_t waiting = ring_waiting(ring), i
    cdef Slot slot
    for i in range(waiting):
        slot = ring_peek(ring, i)[0]
        take_answer(t, <ReplySlot *>&slot)
    return ring_advance(ring, waiting) if waiting else False

cdef void take_all_answers(Turn *t) noexcept nogil:
    cdef uint32_t h
    cdef Peer *peer
    if take_answers(t, &t.log_answers):
        bell_ring(&t.log_bell)
    for h in range(t.handler_count):
        peer = &t.handlers[h]
        if peer.known and take_answers(t, &peer.answers):
            bell_ring(&peer.bell)


# ---- dispatch

cdef Peer *least_loaded(Turn *t) noexcept nogil:
    """The live handler with the least waiting and running, none that runs a heavy request if another is free; ties rotate."""
    cdef Peer *best = NULL
    cdef Peer *peer
    cdef uint64_t cost, least = <uint64_t>-1
    cdef uint32_t i, h
    for i in range(t.handler_count):
        h = (t.turn_of_handlers + i) % t.handler_count
        peer = &t.handlers[h]
        if not peer.alive or peer.owed_count or ring_room(&peer.requests) == 0:
            continue
        cost = peer.load + (1000000 if load_relaxed(peer.heavy) else 0)
        if cost < least:
            least = cost
            best = peer
    return best

cdef bint hand_over(Turn *t, Peer *peer, Channel *c) noexcept nogil:
    cdef Slot slot
    cdef RequestSlot *r = <RequestSlot *>&slot
    r.kind = SlotKind.REQUEST
    r.flags = 0
    r.processor = t.process
    r.channel = c.index
    r.connection = c.connection
    r.block = c.block
    r.generation = block_generation(t.arena.base, c.block)
    r.length = c.needed
    r.body = c.body
    r.api_key = c.api_key
    r.api_version = c.api_version
    r.correlation = c.correlation
    r.received_ns = c.received_ns
    r.listener = c.listener
    r.reserved = 0
    r.request = c.request
    c.ring_position = peer.requests.staged
    if not ring_stage(&peer.requests, &slot):
        return False
    block_lend(t.arena, c.block, peer.process)
    c.handler = peer.number
    peer.load += 1
    peer.touched = True
    return True

cdef void dispatch(Turn *t) noexcept nogil:
    """What a wake-up brought goes as one batch to one handler: a wake-up costs more than the work of many requests."""
    cdef Peer *peer
    cdef Channel *c
    cdef uint32_t given
    while t.fifo_head != t.fifo_tail:
        peer = least_loaded(t)
        if peer == NULL:
            counter_add(t.counters, Counter.COUNT_RING_FULL, 1)
            want_room(t)
            return
        given = 0
        while t.fifo_head != t.fifo_tail and given < BATCH_REQUESTS_MAX:
            c = &t.channels[t.fifo[t.fifo_head & (FIFO_PLACES - 1)]]
            if c.state == ChannelState.CHANNEL_CLOSED:
                free_request(t, c)
                free_place(t, c)
            elif c.state == ChannelState.CHANNEL_WAITING and not hand_over(t, peer, c):
                break
            t.fifo_head += 1
            given += 1
        t.turn_of_handlers = peer.number + 1

cdef void want_room(Turn *t) noexcept nogil:
    cdef uint32_t h
    for h in range(t.handler_count):
        if t.handlers[h].alive:
            ring_want_space(&t.handlers[h].requests, True)
            t.handlers[h].wants_room = True
            if ring_room(&t.handlers[h].requests):
                t.soon = True

cdef void publish(Turn *t) noexcept nogil:
    cdef uint32_t h
    cdef Peer *peer
    for h in range(t.handler_count):
        peer = &t.handlers[h]
        if not peer.alive:
            continue
        if peer.owed_count:
            pay(t, peer)
        if peer.wants_room and t.fifo_head == t.fifo_tail and not peer.owed_count:
            peer.wants_room = False
            ring_want_space(&peer.requests, False)
        if peer.requests.staged != load_relaxed(peer.requests.tail):
            ring_publish(&peer.requests)
            if peer.touched:
                bell_ring(&peer.bell)
        peer.touched = False


# ---- the turn

cdef bint must_stay_awake(Turn *t) noexcept nogil:
    cdef uint32_t h
    if t.soon or ring_waiting(&t.log_answers):
        return True
    if load_acquire(t.order) != t.order_seen or load_acquire(t.fence_order) != t.fence_order_seen:
        return True
    for h in range(t.handler_count):
        if t.handlers[h].known and ring_waiting(&t.handlers[h].answers):
            return True
    return False

cdef void walk_deferred(Turn *t) noexcept nogil:
    cdef uint32_t *list_now = t.deferred
    cdef uint32_t count = t.deferred_count, i
    cdef Channel *c
    t.deferred = t.deferred_now
    t.deferred_now = list_now
    t.deferred_count = 0
    t.memory_short = False
    for i in range(count):
        c = &t.channels[list_now[i]]
        c.deferred = 0
        if c.state == ChannelState.CHANNEL_FREE:
            free_place(t, c)
        elif c.state == ChannelState.CHANNEL_SENDING:
            go_on_sending(t, c)
        elif c.state == ChannelState.CHANNEL_READING:
            if c.received >= 4 and (c.needed == 0 or c.received >= c.needed):
                if frame_received(t, c) == -2:      # a pipelined frame that waited for memory
                    memory_full(t, c)
                    continue
            read_channel(t, c)

cdef void socket_event(Turn *t, Channel *c, uint32_t events) noexcept nogil:
    if events & (EPOLLERR | EPOLLHUP):
        close_channel(t, c, CloseReason.CLOSED_BY_PEER, 0)
        return
    if events & (EPOLLIN | EPOLLRDHUP):
        c.readable = 1
    if events & EPOLLRDHUP and c.state == ChannelState.CHANNEL_WAITING and c.parked:
        close_channel(t, c, CloseReason.CLOSED_BY_PEER, 0)
        return
    if c.state == ChannelState.CHANNEL_SENDING:
        if events & EPOLLOUT:
            go_on_sending(t, c)
    elif c.state == ChannelState.CHANNEL_READING and c.readable:
        read_channel(t, c)

cdef int run_turn(Turn *t, int timeout_ms) noexcept nogil:
    cdef epoll_event events[MOST_EVENTS]
    cdef int count, i
    cdef uint32_t tag
    cdef uint64_t before, h
    cdef int flags = 0
    cdef Channel *c
    bell_arm(&t.bell)
    before = monotonic_ns()
    if must_stay_awake(t):
        timeout_ms = 0
    count = epoll_wait(t.epoll_fd, events, MOST_EVENTS, timeout_ms)
    bell_disarm(&t.bell)
    t.now_ns = monotonic_ns()
    t.soon = False
    if timeout_ms:
        counter_add(t.counters, Counter.COUNT_IDLE_NS, t.now_ns - before)
    counter_add(t.counters, Counter.COUNT_WAKEUPS, 1)
    heartbeat(t.counters, t.now_ns)
    take_all_answers(t)
    if t.deferred_count:
        walk_deferred(t)
    for i in range(count):
        tag = <uint32_t>events[i].data.u64
        if tag == BELL_TAG:
            bell_drain(&t.bell)
        elif tag == HANDOVER_TAG:
            flags |= TURN_CONNECTIONS
        else:
            c = &t.channels[tag]
            # An event of an earlier connection in this place carries the low bits of another id.
            if <uint32_t>c.connection == <uint32_t>(events[i].data.u64 >> 32):
                if c.state != ChannelState.CHANNEL_FREE and c.state != ChannelState.CHANNEL_CLOSED:
                    socket_event(t, c, events[i].events)
    dispatch(t)
    publish(t)
    # Channels that waited for room in the FIFO go on; those that wait for memory do when an answer frees some.
    if t.deferred_count and not t.memory_short and t.fifo_tail - t.fifo_head < t.queued_requests_max:
        t.soon = True
    counter_set(t.counters, Counter.COUNT_ARENA_BYTES, t.arena.in_use_bytes)
    counter_set(t.counters, Counter.COUNT_QUEUED_REQUESTS, t.fifo_tail - t.fifo_head)
    if t.closed_count:
        flags |= TURN_CLOSED
    if t.opening_count:
        flags |= TURN_OPENING
    return flags


# ---- deaths of others

cdef bint changes_nothing(int16_t api_key) noexcept nogil:
    """Whether a request that a dead handler may have begun can be given to another: Fetch, ListOffsets, Metadata, FindCoordinator,
    ApiVersions, DescribeConfigs, DescribeCluster."""
    return (
        api_key == 1 or api_key == 2 or api_key == 3 or api_key == 10 or api_key == 18 or api_key == 32 or api_key == 60
    )

cdef void lose_answer_of(Turn *t, Channel *c, uint32_t owner) noexcept nogil:
    """What is being sent out of a dead handler's arena cannot be finished: the arena is about to be reset."""
    if c.state == ChannelState.CHANNEL_SENDING or c.state == ChannelState.CHANNEL_OPENING:
        if c.answer.owner == owner and c.answer.block:
            close_channel(t, c, CloseReason.CLOSED_ROLE_DIED, owner)

cdef void mend_handler(Turn *t, uint32_t number) noexcept nogil:
    """After the log process's fence: untaken requests and those that change nothing go to another handler, the rest closes."""
    cdef Peer *peer = &t.handlers[number]
    cdef uint64_t taken = load_acquire(peer.requests.head)
    cdef uint32_t i
    cdef Channel *c
    take_all_answers(t)
    for i in range(t.channel_places):
        c = &t.channels[i]
        if c.state == ChannelState.CHANNEL_FREE:
            continue
        lose_answer_of(t, c, peer.process)
        if c.handler != number or (c.state != ChannelState.CHANNEL_WAITING and c.state != ChannelState.CHANNEL_CLOSED):
            continue
        answered(t, c)
        if c.state == ChannelState.CHANNEL_CLOSED:
            free_request(t, c)
            free_place(t, c)
        elif c.ring_position >= taken or changes_nothing(c.api_key):
            t.next_request += 1
            c.request = t.next_request          # an answer of the dead can no longer be mistaken for the new one
            enqueue(t, c)
        else:
            c.state = ChannelState.CHANNEL_READING
            close_channel(t, c, CloseReason.CLOSED_ROLE_DIED, peer.process)
    peer.alive = False
    peer.known = False
    peer.load = 0
    peer.owed_count = 0
    peer.touched = False

cdef void mend_log(Turn *t) noexcept nogil:
    """The handlers have acknowledged and pause: whatever produce they had taken and not answered died with the log process."""
    cdef uint32_t i
    cdef Channel *c
    take_all_answers(t)
    for i in range(t.channel_places):
        c = &t.channels[i]
        if c.state != ChannelState.CHANNEL_WAITING and c.state != ChannelState.CHANNEL_CLOSED:
            continue
        if c.api_key != API_PRODUCE or c.handler == NO_HANDLER:
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


cdef class ProcessorTurn:
    """The processor's connections and their way through the broker. `memory` is the broker's `SharedMemory`."""

    def __init__(
        self, memory, int process, int handover_fd, list first_flexible, uint32_t channel_places, uint32_t frame_bytes_max,
        uint32_t queued_requests_max, uint64_t connection_prefix,
    ):
        cdef Turn *t = <Turn *>calloc(1, sizeof(Turn))
        cdef Arena arena = memory.arena(process)
        cdef CounterPage counters = memory.counters(process)
        cdef Doorbell bell = memory.doorbell(process)
        cdef Ring log_answers = memory.ring(LOG_PROCESS, process)
        cdef Doorbell log_bell = memory.doorbell(LOG_PROCESS)
        cdef unsigned char[::1] orders = memory.private.block("orders")
        cdef unsigned char[::1] fence_orders = memory.private.block("fence_orders")
        cdef uint32_t i
        self.t = t
        self.memory = memory
        self.rings = {}
        self.keep = [arena, counters, bell, log_answers, log_bell, orders, fence_orders]
        t.process = process
        t.arena = &arena.ref
        t.counters = &counters.ref
        t.bell = bell.ref
        t.log_answers = log_answers.ref
        t.log_bell = log_bell.ref
        t.handover_fd = handover_fd
        t.order = <uint64_t *>(<size_t>&orders[process * 8])
        t.fence_order = <uint64_t *>(<size_t>&fence_orders[process * 8])
        t.order_seen = load_acquire(t.order)
        t.fence_order_seen = load_acquire(t.fence_order)
        t.channel_places = channel_places
        t.channels = <Channel *>calloc(channel_places, sizeof(Channel))
        t.free_channels = <uint32_t *>calloc(channel_places, sizeof(uint32_t))
        t.deferred = <uint32_t *>calloc(channel_places, sizeof(uint32_t))
        t.deferred_now = <uint32_t *>calloc(channel_places, sizeof(uint32_t))
        t.fifo = <uint32_t *>calloc(FIFO_PLACES, sizeof(uint32_t))
        for i in range(channel_places):
            t.channels[i].index = i
            t.channels[i].fd = -1
            t.channels[i].handler = NO_HANDLER
            t.free_channels[i] = channel_places - 1 - i
        t.free_count = channel_places
        t.next_connection = connection_prefix
        t.frame_bytes_max = frame_bytes_max
        t.queued_requests_max = queued_requests_max
        for i in range(API_KEYS):
            t.first_flexible[i] = first_flexible[i]
        for i in range(FILE_PLACES):
            t.files.places[i].fd = -1
        t.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        if t.epoll_fd < 0:
            raise OSError(errno, "epoll_create1")
        self._watch(t.bell.fd, EPOLLIN | EPOLLET, BELL_TAG)
        self._watch(handover_fd, EPOLLIN, HANDOVER_TAG)

    def _watch(self, int fd, uint32_t events, uint64_t tag):
        cdef epoll_event event
        event.events = events
        event.data.u64 = tag
        if epoll_ctl(self.t.epoll_fd, EPOLL_CTL_ADD, fd, &event):
            raise OSError(errno, "epoll_ctl")

    def saw_orders(self) -> None:
        """Python has done what the supervisor ordered up to now; a later order ends the next sleep."""
        self.t.order_seen = self.order_now
        self.t.fence_order_seen = self.fence_order_now

    def look_at_orders(self) -> bool:
        """Whether there is an order that `saw_orders` has not confirmed. Call before doing what it says."""
        self.order_now = load_acquire(self.t.order)
        self.fence_order_now = load_acquire(self.t.fence_order)
        return self.order_now != self.t.order_seen or self.fence_order_now != self.t.fence_order_seen

    def turn(self, int timeout_ms) -> int:
        """One wake-up. Returns a set of TURN_CONNECTIONS, TURN_CLOSED, TURN_OPENING."""
        cdef int flags
        with nogil:
            flags = run_turn(self.t, timeout_ms)
        return flags

    def add_connection(self, int fd, int listener) -> int:
        """Takes over a connected non-blocking socket; returns the connection id, or 0 when all places are taken."""
        cdef Turn *t = self.t
        cdef Channel *c
        cdef uint32_t index
        if t.free_count == 0:
            return 0
        t.free_count -= 1
        index = t.free_channels[t.free_count]
        c = &t.channels[index]
        memset(c, 0, sizeof(Channel))
        c.index = index
        c.fd = fd
        c.state = ChannelState.CHANNEL_READING
        c.handler = NO_HANDLER
        c.listener = listener
        t.next_connection += 1
        c.connection = t.next_connection
        c.last_active_ns = monotonic_ns()
        self._watch(fd, <uint32_t>(EPOLLIN | EPOLLOUT | EPOLLRDHUP) | EPOLLET, <uint64_t><uint32_t>c.connection << 32 | index)
        counter_add(t.counters, Counter.COUNT_CONNECTIONS_CREATED, 1)
        return c.connection

    def closed(self) -> list[tuple[int, int, int, int]]:
        """(connection, reason, detail, channel) of what was closed since the last call."""
        cdef uint32_t i
        cdef Turn *t = self.t
        out = [(t.closed[i].connection, t.closed[i].reason, t.closed[i].detail, t.closed[i].channel) for i in range(t.closed_count)]
        t.closed_count = 0
        return out

    # ---- segment files

    def opening(self) -> list[tuple[int, list[tuple[int, int, int, int, bytes]]]]:
        """(channel, [(slot, slot_generation, segment_base, inode, path)]) of answers that wait for files to be opened."""
        cdef Turn *t = self.t
        cdef Channel *c
        cdef Part *part
        cdef uint8_t *base
        cdef uint32_t i, k
        out = []
        for i in range(t.opening_count):
            c = &t.channels[t.opening[i]]
            if c.state != ChannelState.CHANNEL_OPENING:
                continue
            base = t.handlers[c.answer.owner - FIRST_HANDLER].arena
            missing = []
            for k in range(c.answer.length):
                part = parts_of(t, &c.answer) + k
                if part.kind == PartKind.PART_FILE and (
                    file_find(&t.files, part.slot, part.slot_generation, part.segment_base, part.file_generation) == NULL
                ):
                    path = (<char *>base)[c.answer.block + part.path : c.answer.block + part.path + part.path_length]
                    missing.append((part.slot, part.slot_generation, part.segment_base, part.file_generation, path))
            out.append((c.index, missing))
        t.opening_count = 0
        return out

    def file_opened(self, uint32_t slot, uint32_t slot_generation, int64_t segment_base, uint64_t inode, int fd) -> None:
        """Hands an open segment file to the table, which closes it when it was not used for long."""
        cdef FileTable *files = &self.t.files
        if file_find(files, slot, slot_generation, segment_base, inode) != NULL:
            close(fd)
            return
        if files.count >= FILE_LIMIT:
            self._forget_files()
        self._place_file(slot, slot_generation, segment_base, inode, fd, 0, files.clock)

    def _place_file(self, uint32_t slot, uint32_t slot_generation, int64_t segment_base, uint64_t inode, int fd, uint32_t users, uint64_t used):
        cdef FileTable *files = &self.t.files
        cdef uint32_t place = file_hash(slot, slot_generation, segment_base, inode)
        cdef OpenFile *entry
        while files.places[place].fd >= 0:
            place = (place + 1) & (FILE_PLACES - 1)
        entry = &files.places[place]
        entry.slot, entry.slot_generation, entry.segment_base, entry.inode = slot, slot_generation, segment_base, inode
        entry.fd, entry.users, entry.used = fd, users, used
        files.count += 1

    def _forget_files(self):
        """Closes the older half of the files that nobody is sending from."""
        cdef FileTable *files = &self.t.files
        cdef uint32_t i
        kept = []
        idle = []
        for i in range(FILE_PLACES):
            if files.places[i].fd >= 0:
                e = files.places[i]
                entry = (e.used, e.slot, e.slot_generation, e.segment_base, e.inode, e.fd, e.users)
                (kept if e.users else idle).append(entry)
                files.places[i].fd = -1
        files.count = 0
        idle.sort()
        for entry in idle[: len(idle) // 2]:
            close(entry[5])
        for used, slot, generation, base, inode, fd, users in kept + idle[len(idle) // 2 :]:
            self._place_file(slot, generation, base, inode, fd, users, used)

    def resume(self, uint32_t channel) -> None:
        """The files that a channel waited for are open."""
        cdef Channel *c = &self.t.channels[channel]
        if c.state == ChannelState.CHANNEL_OPENING:
            start_sending(self.t, c)
            publish(self.t)

    def ask_again(self, uint32_t channel) -> None:
        """A slice was no longer there (the file was replaced): the request goes to a handler once more, three times at most."""
        cdef Channel *c = &self.t.channels[channel]
        if c.state != ChannelState.CHANNEL_OPENING:
            return
        c.open_tries += 1
        if c.open_tries == 3:
            close_channel(self.t, c, CloseReason.CLOSED_NO_FILE, 0)
            return
        give_back(self.t, &c.answer)
        c.state = ChannelState.CHANNEL_WAITING
        self.t.next_request += 1
        c.request = self.t.next_request
        enqueue(self.t, c)
        self.t.soon = True

    # ---- orders

    def welcome_handler(self, uint32_t number) -> None:
        """A handler (or a dead one's successor) is there: bind its rings anew."""
        cdef Turn *t = self.t
        cdef int process = FIRST_HANDLER + number
        cdef Ring requests = self.memory.ring(t.process, process)
        cdef Ring answers = self.memory.ring(process, t.process)
        cdef Doorbell bell = self.memory.doorbell(process)
        cdef Arena arena = self.memory.arena(process)
        cdef Peer *peer = &t.handlers[number]
        heavy = self.memory.private.block("heavy")
        cdef unsigned char[::1] heavy_view = heavy
        self.rings[number] = (requests, answers, bell, arena, heavy)
        peer.requests = requests.ref
        peer.answers = answers.ref
        peer.bell = bell.ref
        peer.arena = arena.ref.base
        peer.heavy = <uint64_t *>&heavy_view[number * 8]
        peer.number = number
        peer.process = process
        peer.load = 0
        peer.owed_count = 0
        peer.touched = False
        peer.wants_room = False
        peer.known = True
        peer.alive = True
        if number >= t.handler_count:
            t.handler_count = number + 1
        t.soon = True

    def fence_handler(self, uint32_t number) -> None:
        if self.t.handlers[number].known:
            mend_handler(self.t, number)
            self.t.soon = True

    def fence_log(self) -> None:
        mend_log(self.t)
        publish(self.t)

    def welcome_log(self) -> None:
        cdef Ring log_answers = self.memory.ring(LOG_PROCESS, self.t.process)
        self.keep[3] = log_answers
        self.t.log_answers = log_answers.ref

    def stop_reading(self) -> None:
        """From here on no request begins; connections that have none are closed."""
        cdef uint32_t i
        self.t.stopping = True
        for i in range(self.t.channel_places):
            if self.t.channels[i].state == ChannelState.CHANNEL_READING:
                close_channel(self.t, &self.t.channels[i], CloseReason.CLOSED_STOPPING, 0)

    def close_idle(self, uint64_t before_ns) -> None:
        """Closes all connections without readiness since `before_ns` (CLOCK_MONOTONIC), whatever they wait for, as Kafka does."""
        cdef uint32_t i
        cdef Channel *c
        for i in range(self.t.channel_places):
            c = &self.t.channels[i]
            if c.connection and c.state != ChannelState.CHANNEL_CLOSED and c.last_active_ns < before_ns:
                close_channel(self.t, c, CloseReason.CLOSED_IDLE, 0)
        publish(self.t)

    def close_parked(self) -> None:
        """Stopping: nobody waits for a long poll."""
        cdef uint32_t i
        for i in range(self.t.channel_places):
            if self.t.channels[i].state == ChannelState.CHANNEL_WAITING and self.t.channels[i].parked:
                close_channel(self.t, &self.t.channels[i], CloseReason.CLOSED_STOPPING, 0)
        publish(self.t)

    def open_connections(self) -> int:
        cdef uint32_t i, n = 0
        for i in range(self.t.channel_places):
            if self.t.channels[i].state not in (ChannelState.CHANNEL_FREE, ChannelState.CHANNEL_CLOSED):
                n += 1
        return n
