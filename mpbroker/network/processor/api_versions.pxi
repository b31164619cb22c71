# ApiVersions, which every connection begins with, answered without a handler. Part of turn.pyx.
#
# Python prepares the answer for each version. A handler answers other requests: other versions, malformed
# requests, clients that have a quota on the time of their requests, and all while the request log is on.

cdef enum:
    LOGS_REQUESTS = 10              # mpbroker.ipc.log_levels.LEVELS["DEBUG"], checked at import

cdef struct Software:
    uint64_t name
    uint64_t name_bytes
    uint64_t version
    uint64_t version_bytes
    uint64_t end                    # position of the tagged fields after them

cdef bint read_software(ChannelTurn *t, const Request *r, Software *found) noexcept nogil:
    """Find name and version of the client's software in an ApiVersions request. False: it is malformed or
    invalid.
    """
    cdef const uint8_t *frame = t.arena.base + r.block
    cdef uint64_t at = r.body
    if (
        not read_uvarint(frame, &at, r.needed, &found.name_bytes)
        or found.name_bytes == 0 or found.name_bytes - 1 > r.needed - at
    ):
        return False
    found.name_bytes -= 1
    found.name = at
    at += found.name_bytes
    if (
        not read_uvarint(frame, &at, r.needed, &found.version_bytes)
        or found.version_bytes == 0 or found.version_bytes - 1 > r.needed - at
    ):
        return False
    found.version_bytes -= 1
    found.version = at
    found.end = at + found.version_bytes
    return (
        is_software(frame + found.name, found.name_bytes)
        and is_software(frame + found.version, found.version_bytes)
    )

cdef bint is_common_api_versions(ChannelTurn *t, const Request *r) noexcept nogil:
    """Return whether the request has a prepared answer, and nothing else in it."""
    cdef Software software
    if not 0 <= r.api_version < API_VERSIONS_MOST or t.api_versions[r.api_version] == NULL:
        return False
    if r.api_version < t.first_flexible[<int>Api.API_API_VERSIONS]:
        return r.body == r.needed
    return (
        read_software(t, r, &software)
        and software.end + 1 == r.needed and (t.arena.base + r.block)[software.end] == 0
    )

cdef bint answer_api_versions(ChannelTurn *t, Channel *c) noexcept nogil:
    """Answer the channel's request if it is a common ApiVersions. False: it is for a handler."""
    cdef Request *r = &c.request
    cdef ReplySlot *a = &r.answer
    cdef uint8_t *frame = t.arena.base + r.block
    cdef uint32_t at = (r.needed + 7) // 8 * 8, bytes
    if r.api_key != Api.API_API_VERSIONS or c.state != ChannelState.CHANNEL_WAITING or r.block == 0:
        return False
    if t.timed or 0 < load_relaxed(t.request_log) <= LOGS_REQUESTS or not is_common_api_versions(t, r):
        return False
    bytes = t.api_versions_bytes[r.api_version]
    if at + 8 + bytes > block_capacity(t.arena.base, r.block):
        return False
    put_be32(frame + at, 4 + bytes)
    put_be32(frame + at + 4, <uint32_t>r.correlation)
    memcpy(frame + at + 8, t.api_versions[r.api_version], bytes)
    r.dequeued_ns = t.clock_ns
    memset(a, 0, sizeof(ReplySlot))
    a.kind = SlotKind.SEND
    a.owner = t.process
    a.block = r.block
    a.position = at
    a.length = 8 + bytes
    a.done_ns = t.clock_ns
    count_error(t.meters, Api.API_API_VERSIONS, 0, 1)
    start_sending(t, c)
    return True

cdef inline void put_be32(uint8_t *to, uint32_t value) noexcept nogil:
    to[0], to[1], to[2], to[3] = value >> 24, value >> 16 & 255, value >> 8 & 255, value & 255
