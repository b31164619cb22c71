"""The order of activity: an intrusive list of the open channels, the least recently active first.

(Kafka: Selector.IdleExpiryManager, a LinkedHashMap in access order.)
"""
from libc.stdint cimport uint32_t, uint64_t

from mpbroker.network.processor.channel cimport Channel

cdef struct Links:
    uint32_t before
    uint32_t after

cdef struct Activity:
    Links *links                # the list in order of activity: by channel, and after them the list's head
    uint32_t head
    Channel *channels
    uint64_t idle_ns            # connections.max.idle.ms; 0: for ever

cdef inline void activity_append(Activity *a, uint32_t channel) noexcept nogil:
    cdef uint32_t last = a.links[a.head].before
    a.links[channel].before = last
    a.links[channel].after = a.head
    a.links[last].after = channel
    a.links[a.head].before = channel

cdef inline void activity_remove(Activity *a, uint32_t channel) noexcept nogil:
    a.links[a.links[channel].before].after = a.links[channel].after
    a.links[a.links[channel].after].before = a.links[channel].before

cdef inline void active(Activity *a, Channel *c, uint64_t now_ns) noexcept nogil:
    """Note that the channel's socket was readable or writable at `now_ns`, the time of this turn."""
    if c.last_active_ns != now_ns:
        c.last_active_ns = now_ns
        activity_remove(a, c.index)
        activity_append(a, c.index)

cdef inline Channel *least_active(Activity *a) noexcept nogil:
    """Return the least recently active channel; NULL when no connection is open."""
    cdef uint32_t first = a.links[a.head].after
    return NULL if first == a.head else &a.channels[first]

cdef inline int until_idle_ms(Activity *a, int timeout_ms, uint64_t now_ns) noexcept nogil:
    """Return the ms until a channel will have been idle for too long, `timeout_ms` at most."""
    cdef Channel *c = least_active(a) if a.idle_ns else NULL
    cdef uint64_t due_ns
    if c == NULL:
        return timeout_ms
    due_ns = c.last_active_ns + a.idle_ns
    if due_ns < now_ns:
        return 0 if timeout_ms <= 0 else 1
    due_ns -= now_ns
    return <int>(due_ns // 1000000 + 1) if due_ns < <uint64_t>timeout_ms * 1000000 else timeout_ms
