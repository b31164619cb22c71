"""Requests that the turn forwards to the coordinator. See `forwarded.pxd` for the protocol."""
from libc.stdint cimport int16_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from mpbroker.handlers.hot_path.wire cimport CLIENT_ID_AT, Cursor, take, take_u16, take_u32
from mpbroker.ipc.meters cimport MetersRef, count_error
from mpbroker.ipc.session cimport HOST_BYTES, PRINCIPAL_BYTES, SessionEntry
from mpbroker.ipc.slots cimport CALL, SEND, CallSlot, ReplySlot, RequestSlot
from mpbroker.records.wire cimport store_u16, store_u32
from shm.arena cimport (
    ArenaRef, arena_allocate, arena_free, block_capacity, block_generation, block_lend, block_take_back,
)

cdef extern from "<string.h>" nogil:
    size_t strnlen(const char *text, size_t most)

cdef enum:
    # A call has no more than that besides its host, client id, principal and body.
    CALL_BYTES = 96
    # The size, the correlation id and the tagged fields before the body of a response have no more.
    HEADER_BYTES = 9
    # A fixmap has no more error codes. A response with more of them has a longer map, and is Python's.
    CODES_MAX = 15

    # Types of msgpack: the first byte of each.
    FIXMAP = 0x80
    FIXSTR = 0xA0
    FIXSTR_MOST = 31
    BIN8 = 0xC4
    BIN16 = 0xC5
    BIN32 = 0xC6
    UINT8 = 0xCC
    UINT16 = 0xCD
    STR8 = 0xD9
    STR16 = 0xDA

cdef struct Codes:
    int count
    int code[CODES_MAX]
    uint32_t times[CODES_MAX]


# ---- the call

cdef inline uint8_t *put_text(uint8_t *p, const void *text, uint32_t length) noexcept nogil:
    if length <= FIXSTR_MOST:
        p[0] = <uint8_t>(FIXSTR | length)
        p += 1
    elif length <= 0xFF:
        p[0], p[1] = STR8, <uint8_t>length
        p += 2
    else:
        p[0] = STR16
        store_u16(p + 1, <uint16_t>length)
        p += 3
    memcpy(p, text, length)
    return p + length


cdef inline uint8_t *put_octets(uint8_t *p, const uint8_t *octets, uint32_t length) noexcept nogil:
    if length <= 0xFF:
        p[0], p[1] = BIN8, <uint8_t>length
        p += 2
    else:
        p[0] = BIN16
        store_u16(p + 1, <uint16_t>length)
        p += 3
    memcpy(p, octets, length)
    return p + length


cdef inline bint is_ascii(const uint8_t *text, uint32_t length) noexcept nogil:
    cdef uint32_t i
    cdef uint8_t seen = 0
    for i in range(length):
        seen |= text[i]
    return seen < 0x80


cdef uint32_t write_call(
    uint8_t *start, const RequestSlot *request, const uint8_t *frame, uint32_t id_length,
    const SessionEntry *session
) noexcept nogil:
    """Write a ForwardedRequest as `ipc.calls.encode` does; return its size in bytes."""
    cdef uint8_t *p = start
    cdef uint8_t named[HOST_BYTES + 1]
    cdef uint32_t host_length = <uint32_t>strnlen(session.peer_host, HOST_BYTES)
    named[0] = c"/"
    memcpy(&named[1], session.peer_host, host_length)
    p[0] = FIXMAP | 7
    p = put_text(p + 1, b"type", 4)
    p = put_text(p, b"forwarded_request", 17)
    p = put_text(p, b"api_key", 7)
    p[0] = <uint8_t>request.api_key
    p = put_text(p + 1, b"version", 7)
    p[0] = <uint8_t>request.api_version
    p = put_text(p + 1, b"client_id", 9)
    p = put_text(p, frame + CLIENT_ID_AT + 2, id_length)
    p = put_text(p, b"client_host", 11)
    p = put_text(p, named, host_length + 1)
    p = put_text(p, b"principal", 9)
    p = put_text(p, session.principal, <uint32_t>strnlen(session.principal, PRINCIPAL_BYTES))
    p = put_text(p, b"body", 4)
    p = put_octets(p, frame + request.body, request.length - request.body)
    return <uint32_t>(p - start)


cdef bint forward_begin(
    ForwardedRef *forwarded, const RequestSlot *request, const uint8_t *arena, const SessionEntry *session,
    ArenaRef *own, uint64_t taken_ns, uint64_t now_ns, uint16_t coordinator, CallSlot *call,
) noexcept nogil:
    """Write a call for the coordinator, and its descriptor. Return False if Python must serve the request.

    `arena` has the request. The call is written to a block of `own`, the handler's arena.
    """
    cdef const ForwardedApi *api = &forwarded.apis[request.api_key]
    cdef const uint8_t *frame = arena + request.block
    cdef ForwardedEntry *entry = &forwarded.entries[forwarded.next_number & (FORWARDED_MAX - 1)]
    cdef int16_t length
    cdef uint32_t id_length, room
    if entry.used or not api.first <= request.api_version <= api.last or request.flags:
        return False
    if request.body > request.length or request.length - request.body > forwarded.bytes_max:
        return False
    if block_generation(<uint8_t *>arena, request.block) != request.generation:
        return False
    if session.connection != request.connection:
        return False
    length = <int16_t>(<uint16_t>frame[CLIENT_ID_AT] << 8 | frame[CLIENT_ID_AT + 1])
    id_length = <uint32_t>length if length > 0 else 0
    # Python replaces bytes of a client id that are not UTF-8.
    if CLIENT_ID_AT + 2 + id_length > request.body or not is_ascii(frame + CLIENT_ID_AT + 2, id_length):
        return False
    room = CALL_BYTES + HOST_BYTES + id_length + request.length - request.body
    room += <uint32_t>strnlen(session.principal, PRINCIPAL_BYTES)
    entry.block = arena_allocate(own, room)
    if entry.block == 0:
        return False
    entry.request, entry.bytes, entry.number = request[0], room, forwarded.next_number
    entry.used, entry.dropped, entry.taken_ns, entry.passed_on_ns = True, False, taken_ns, now_ns
    entry.generation = block_generation(own.base, entry.block)
    memset(call, 0, sizeof(CallSlot))
    call.kind, call.owner, call.request, call.connection = (
        CALL, forwarded.owner, entry.number, request.connection,
    )
    call.block, call.generation = entry.block, entry.generation
    call.length = write_call(own.base + entry.block, request, frame, id_length, session)
    block_lend(own, entry.block, coordinator)
    forwarded.next_number += 1
    forwarded.count += 1
    return True


cdef void forward_end(ForwardedRef *forwarded, ForwardedEntry *entry, ArenaRef *own) noexcept nogil:
    """Forget a call that is answered, and free its block."""
    block_take_back(own, entry.block)
    arena_free(own, entry.block, entry.bytes)
    entry.used = False
    forwarded.count -= 1


# ---- the answer

cdef inline bint take_text(Cursor *c, const char *text, uint32_t length) noexcept nogil:
    """Read the next value; return True if it is this text, of at most 31 bytes."""
    cdef const uint8_t *p = take(c, length + 1)
    return p != NULL and p[0] == (FIXSTR | length) and memcmp(p + 1, text, length) == 0


cdef inline uint32_t take_octets(Cursor *c, const uint8_t **octets) noexcept nogil:
    cdef const uint8_t *p = take(c, 1)
    cdef uint32_t length = 0
    cdef uint8_t kind = p[0] if p != NULL else 0
    if kind == BIN8:
        p = take(c, 1)
        length = p[0] if p != NULL else 0
    elif kind == BIN16:
        length = take_u16(c)
    elif kind == BIN32:
        length = take_u32(c)
    else:
        c.at = NULL
    octets[0] = take(c, length)
    return length


cdef inline int take_number(Cursor *c) noexcept nogil:
    """Read and return a msgpack number of at most 16 bits."""
    cdef const uint8_t *p = take(c, 1)
    cdef uint8_t kind = p[0] if p != NULL else 0
    if kind < 0x80:
        return kind
    if kind >= 0xE0:
        return <int>kind - 0x100
    if kind == UINT8:
        p = take(c, 1)
        return p[0] if p != NULL else 0
    if kind == UINT16:
        return take_u16(c)
    c.at = NULL
    return 0


cdef inline void take_codes(Cursor *c, Codes *codes) noexcept nogil:
    cdef const uint8_t *p = take(c, 1)
    cdef int i
    if p == NULL or not FIXMAP <= p[0] <= FIXMAP + CODES_MAX:
        c.at = NULL
        return
    codes.count = p[0] - FIXMAP
    for i in range(codes.count):
        codes.code[i] = take_number(c)
        codes.times[i] = <uint32_t>take_number(c)


cdef bint forward_answer(
    const ForwardedEntry *entry, const ForwardedRef *forwarded, const CallSlot *answer,
    const uint8_t *theirs, uint8_t *arena, MetersRef *meters, ReplySlot *reply,
) noexcept nogil:
    """Write the response behind the request in its block, count error codes, fill `reply` except its times.

    Return False, having done nothing, if the answer is not a whole response, or there is no room. `theirs`
    is the coordinator's arena, with the answer; `arena` has the request.
    """
    cdef const RequestSlot *request = &entry.request
    cdef const uint8_t *body = NULL
    cdef uint8_t *start
    cdef uint64_t place = (request.length + 7) & ~(<uint64_t>7)
    cdef uint32_t length, header = 8
    cdef const uint8_t *first
    cdef Codes codes
    cdef Cursor c
    cdef int i
    if answer.block == 0 or block_generation(<uint8_t *>theirs, answer.block) != answer.generation:
        return False
    c.at = theirs + answer.block
    c.end = c.at + answer.length
    first = take(&c, 1)
    if first == NULL or first[0] != (FIXMAP | 3):
        return False
    if not take_text(&c, b"type", 4) or not take_text(&c, b"forwarded_response", 18):
        return False
    if not take_text(&c, b"body", 4):
        return False
    length = take_octets(&c, &body)
    if not take_text(&c, b"errors", 6):
        return False
    take_codes(&c, &codes)
    if c.at == NULL or c.at != c.end:
        return False
    if place + HEADER_BYTES + length > block_capacity(arena, request.block):
        return False
    start = arena + request.block + place
    store_u32(start + 4, <uint32_t>request.correlation)
    if request.api_version >= forwarded.apis[request.api_key].first_with_tags:
        start[header] = 0
        header += 1
    store_u32(start, header - 4 + length)
    memcpy(start + header, body, length)
    for i in range(codes.count):
        count_error(meters, request.api_key, codes.code[i], codes.times[i])
    memset(reply, 0, sizeof(ReplySlot))
    reply.kind, reply.owner, reply.channel, reply.connection = (
        SEND, request.processor, request.channel, request.connection,
    )
    reply.block, reply.generation = request.block, request.generation
    reply.position, reply.length, reply.request = <uint32_t>place, header + length, request.request
    return True
