from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy, memset

from mpbroker.ipc.meters cimport count_error
from mpbroker.ipc.slots cimport ReplySlot, SlotKind
from mpbroker.network.processor.apis cimport Api
from mpbroker.network.processor.channel cimport Channel, ChannelState, Request
from mpbroker.network.processor.channel_turn cimport ChannelTurn
from mpbroker.network.processor.headers cimport Software, read_software
from mpbroker.network.processor.sending cimport start_sending
from shm.arena cimport block_capacity
from shm.atomics cimport load_relaxed

from mpbroker.ipc.log_levels import LEVELS

cdef enum:
    LOGS_REQUESTS = 10              # mpbroker.ipc.log_levels.LEVELS["DEBUG"], checked at import

assert LOGS_REQUESTS == LEVELS["DEBUG"]


cdef bint is_common_api_versions(PreparedAnswers *prepared, ChannelTurn *t, const Request *r) noexcept nogil:
    """Return whether the version's answer is prepared and the request has no tagged fields or extra bytes."""
    cdef Software software
    if not 0 <= r.api_version < API_VERSIONS_MOST or prepared.api_versions[r.api_version] == NULL:
        return False
    if r.api_version < t.first_flexible[<int>Api.API_API_VERSIONS]:
        return r.body == r.needed
    return (
        read_software(t.memory.arena.base, r, &software)
        and software.end + 1 == r.needed and (t.memory.arena.base + r.block)[software.end] == 0
    )

cdef bint answer_api_versions(PreparedAnswers *prepared, ChannelTurn *t, Channel *c) noexcept nogil:
    """Answer the channel's request if it is a common ApiVersions. Return False if a handler has to answer."""
    cdef Request *r = &c.request
    cdef ReplySlot *a = &r.answer
    cdef uint8_t *frame = t.memory.arena.base + r.block
    cdef uint32_t at = (r.needed + 7) // 8 * 8, bytes
    if r.api_key != Api.API_API_VERSIONS or c.state != ChannelState.CHANNEL_WAITING or r.block == 0:
        return False
    if t.metering.timed or 0 < load_relaxed(prepared.request_log) <= LOGS_REQUESTS:
        return False
    if not is_common_api_versions(prepared, t, r):
        return False
    bytes = prepared.api_versions_bytes[r.api_version]
    if at + 8 + bytes > block_capacity(t.memory.arena.base, r.block):
        return False
    put_be32(frame + at, 4 + bytes)
    put_be32(frame + at + 4, <uint32_t>r.correlation)
    memcpy(frame + at + 8, prepared.api_versions[r.api_version], bytes)
    r.dequeued_ns = t.metering.clock_ns
    memset(a, 0, sizeof(ReplySlot))
    a.kind = SlotKind.SEND
    a.owner = t.process
    a.block = r.block
    a.position = at
    a.length = 8 + bytes
    a.done_ns = t.metering.clock_ns
    count_error(t.metering.meters, Api.API_API_VERSIONS, 0, 1)
    start_sending(t, c)
    return True

cdef inline void put_be32(uint8_t *to, uint32_t value) noexcept nogil:
    to[0], to[1], to[2], to[3] = value >> 24, value >> 16 & 255, value >> 8 & 255, value & 255
