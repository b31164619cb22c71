"""The arena of requests, in which channels hold blocks, and its limit (Kafka: SimpleMemoryPool).

When the arena is used up, channels wait (starvation.pyx).
"""
from libc.stdint cimport uint64_t
from libc.stdlib cimport free

from mpbroker.network.processor.channel cimport Channel, Request
from shm.arena cimport ArenaRef, arena_free
from shm.counters cimport CountersRef

cdef enum:
    SMALL_BLOCK = 1984              # bytes of the smallest size class: most requests fit
    # bytes kept free after the frame, at least: for the produce job and its answer
    ANSWER_ROOM = 1024
    ANSWER_ROOM_MAX = 65536
    LOW_MEMORY_SHARE = 10           # memory is low when less than a tenth of it is left

cdef struct Memory:
    ArenaRef *arena
    uint64_t *request_limit     # the supervisor's word: the arena's limit
    CountersRef *counters
    uint64_t kept_bytes         # frames of parked requests, outside the arena
    uint64_t dry_since_ns       # since when an allocation failed and no memory came free; 0: not
    # the arena's releases when it last refused an allocation; `refused_limit`: its limit then
    uint64_t refused_at
    uint64_t refused_limit
    bint beyond                 # the next allocation may go beyond the limit
    uint64_t stall_ns
    uint64_t next_stall_check_ns
    uint64_t dice

cdef uint64_t allocate_more(Memory *m, uint64_t asked) noexcept nogil
cdef void leave_arena(Memory *m, Channel *c) noexcept nogil
cdef bint enter_arena(Memory *m, Channel *c) noexcept nogil
cdef void shrink_stash(Memory *m, Channel *c) noexcept nogil
cdef void count_dry(Memory *m, uint64_t now_ns) noexcept nogil
cdef void end_dry_spell(Memory *m, uint64_t now_ns) noexcept nogil

cdef inline bint memory_is_out(Memory *m) noexcept nogil:
    """Return whether no byte below the limit is left. While one is left, a request of any size is let in."""
    return m.arena.in_use_bytes >= m.arena.limit_bytes

cdef inline bint memory_is_low(Memory *m) noexcept nogil:
    return m.arena.in_use_bytes + m.arena.limit_bytes // LOW_MEMORY_SHARE > m.arena.limit_bytes

cdef inline bint may_have_room(Memory *m) noexcept nogil:
    """Return whether an allocation may succeed after one failed: memory was freed, or the limit changed."""
    if memory_is_out(m):
        return False
    return m.arena.releases != m.refused_at or m.arena.limit_bytes != m.refused_limit

cdef inline uint64_t answer_room(uint64_t frame_bytes) noexcept nogil:
    cdef uint64_t room = ANSWER_ROOM + frame_bytes // 2
    return room if room < ANSWER_ROOM_MAX else ANSWER_ROOM_MAX

cdef inline void forget_kept(Memory *m, Request *r) noexcept nogil:
    m.kept_bytes -= r.needed
    free(r.kept)
    r.kept = NULL

cdef inline void free_request(Memory *m, Request *r) noexcept nogil:
    if r.block:
        arena_free(m.arena, r.block, r.asked_bytes)
        r.block = 0
    elif r.kept != NULL:
        forget_kept(m, r)

cdef inline uint64_t stash_block(uint64_t bytes) noexcept nogil:
    return bytes if bytes > SMALL_BLOCK else SMALL_BLOCK

cdef inline void free_stash(Memory *m, Channel *c) noexcept nogil:
    if c.stash:
        arena_free(m.arena, c.stash, c.stash_asked_bytes)
        c.stash = 0
