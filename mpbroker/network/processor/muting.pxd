"""Mute states and throttle timers of channels. mute.py describes the states and has their table."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from mpbroker.network.processor.channel cimport Channel
from shm.counters cimport CountersRef

cdef enum:
    MUTE_TABLE_BYTES = 30       # states times events of mute.py
    # mute.py, checked at import.
    NOT_MUTED = 0
    MUTE = 0
    UNMUTE = 1
    REQUEST_RECEIVED = 2
    RESPONSE_SENT = 3
    THROTTLE_STARTED = 4
    THROTTLE_ENDED = 5
    MUTE_EVENTS = 6
    MUTE_IMPOSSIBLE = 255

cdef struct Mutes:
    uint8_t mute_table[MUTE_TABLE_BYTES]
    Channel *channels
    CountersRef *counters
    uint32_t *timers            # heap of throttled channels, from 1
    uint32_t timer_count

cdef load_mute_table(Mutes *u)
cdef void timer_start(Mutes *u, Channel *c, uint64_t until_ns, uint8_t by) noexcept nogil
cdef void timer_stop(Mutes *u, Channel *c) noexcept nogil

cdef inline bint mute_event(Mutes *u, Channel *c, int event) noexcept nogil:
    """Change the channel's mute state. Return False if the event is impossible; the caller then closes."""
    cdef uint8_t following = u.mute_table[c.mute * MUTE_EVENTS + event]
    if following == MUTE_IMPOSSIBLE:
        return False
    c.mute = following
    return True

cdef inline uint64_t timer_at(Mutes *u, uint32_t place) noexcept nogil:
    return u.channels[u.timers[place]].throttled_until_ns

cdef inline int until_timer_ms(Mutes *u, int timeout_ms, uint64_t now_ns) noexcept nogil:
    """Return the ms until the next throttle ends, rounded up, `timeout_ms` at most."""
    cdef uint64_t left_ns
    if u.timer_count == 0:
        return timeout_ms
    if timer_at(u, 1) <= now_ns:
        return 0
    left_ns = timer_at(u, 1) - now_ns
    return <int>((left_ns + 999999) // 1000000) if left_ns < <uint64_t>timeout_ms * 1000000 else timeout_ms
