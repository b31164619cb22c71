from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport malloc
from libc.string cimport memcpy

from mpbroker.ipc.counters cimport Counter
from mpbroker.network.processor.apis cimport is_repeatable
from mpbroker.network.processor.channel cimport Channel
from shm.arena cimport arena_allocate, arena_allocate_beyond, arena_free
from shm.counters cimport counter_add

cdef enum:
    # Parked requests of at most KEPT_MAX bytes are kept, together in at most 1 / KEPT_SHARE of the limit.
    KEPT_MAX = 1 << 14
    KEPT_SHARE = 16

cdef uint64_t allocate_more(Memory *m, uint64_t asked) noexcept nogil:
    """Allocate a block for a channel that holds a block already; return 0 if no memory is free."""
    if not m.beyond:
        return arena_allocate(m.arena, asked)
    m.beyond = False
    return arena_allocate_beyond(m.arena, asked)

cdef inline bint may_keep(Memory *m, Channel *c) noexcept nogil:
    return (
        c.request.needed <= KEPT_MAX
        and m.kept_bytes + c.request.needed <= m.arena.limit_bytes // KEPT_SHARE
    )

cdef void leave_arena(Memory *m, Channel *c) noexcept nogil:
    """Free the block of a parked request, whose answer comes after a long wait in its handler.

    If another handler may repeat the request, keep a copy of its frame outside the arena until the answer.
    A request without a copy (it is too large, or all copies together are) is lost if its handler dies.
    """
    if c.stash:
        shrink_stash(m, c)
    if c.request.block == 0:
        return
    if is_repeatable(c.request.api_key) and may_keep(m, c):
        c.request.kept = <uint8_t *>malloc(c.request.needed)
        if c.request.kept != NULL:
            m.kept_bytes += c.request.needed
            memcpy(c.request.kept, m.arena.base + c.request.block, c.request.needed)
    arena_free(m.arena, c.request.block, c.request.asked_bytes)
    c.request.block = 0

cdef bint enter_arena(Memory *m, Channel *c) noexcept nogil:
    """Copy a parked request back into the arena, for a handler. Return whether the request is there now.

    The limit does not apply, since the request was admitted before. If False is returned, because there is no
    copy or no free memory, the caller closes the channel.
    """
    cdef uint64_t asked = c.request.needed + answer_room(c.request.needed), block
    if c.request.kept == NULL:
        return c.request.block != 0
    block = arena_allocate_beyond(m.arena, asked)
    if block == 0:
        return False
    memcpy(m.arena.base + block, c.request.kept, c.request.needed)
    forget_kept(m, &c.request)
    c.request.block, c.request.asked_bytes = block, asked
    return True

cdef void shrink_stash(Memory *m, Channel *c) noexcept nogil:
    """Move the bytes after the present frame to a block of their size, since they wait there for a while."""
    cdef uint32_t left = c.stash_received - c.stash_at
    cdef uint64_t asked = stash_block(left), block
    if asked >= c.stash_asked_bytes:
        return
    block = arena_allocate_beyond(m.arena, asked)       # beyond the limit only until the other one is free
    if block == 0:
        return
    memcpy(m.arena.base + block, m.arena.base + c.stash + c.stash_at, left)
    free_stash(m, c)
    c.stash, c.stash_asked_bytes, c.stash_at, c.stash_received = block, asked, 0, left

cdef void count_dry(Memory *m, uint64_t now_ns) noexcept nogil:
    """Count the time without free memory up to now, so that metrics show an outage while it lasts."""
    if m.dry_since_ns and m.dry_since_ns < now_ns:
        counter_add(m.counters, Counter.COUNT_MEMORY_DEPLETED_NS, now_ns - m.dry_since_ns)
        m.dry_since_ns = now_ns

cdef void end_dry_spell(Memory *m, uint64_t now_ns) noexcept nogil:
    count_dry(m, now_ns)
    if may_have_room(m):
        m.dry_since_ns = 0
