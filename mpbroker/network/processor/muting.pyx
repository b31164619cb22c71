from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from mpbroker.ipc.counters cimport Counter
from mpbroker.network.processor.channel cimport Channel
from shm.counters cimport counter_add

from mpbroker.network.processor import mute
from mpbroker.network.processor.mute import MuteState

assert NOT_MUTED == MuteState.NOT_MUTED and MUTE_IMPOSSIBLE == mute.IMPOSSIBLE
assert (
    MUTE, UNMUTE, REQUEST_RECEIVED, RESPONSE_SENT, THROTTLE_STARTED, THROTTLE_ENDED
) == tuple(mute.MuteEvent)


cdef class Muting:
    """The mute state machine of one channel, for tests without a connection."""
    cdef Mutes mutes
    cdef Channel channel

    def __cinit__(self):
        load_mute_table(&self.mutes)

    @property
    def state(self) -> int:
        return self.channel.mute

    def handle(self, int event) -> bool:
        """Apply an event. Return False, and change nothing, if the event is impossible."""
        return mute_event(&self.mutes, &self.channel, event)


cdef load_mute_table(Mutes *u):
    cdef bytes table = mute.native_table()
    if len(table) != MUTE_TABLE_BYTES:
        raise ValueError(f"the table of mute states has {len(table)} bytes")
    memcpy(u.mute_table, <const char *>table, MUTE_TABLE_BYTES)


# ---- timers: a binary heap of throttled channels, the next to end first; a channel has its place there

cdef inline void timer_put(Mutes *u, uint32_t place, uint32_t channel) noexcept nogil:
    u.timers[place] = channel
    u.channels[channel].timer = place

cdef void timer_sift(Mutes *u, uint32_t place, uint32_t channel) noexcept nogil:
    """Put a channel into the heap of timers at the vacant `place` (from 1), then sift it up or down."""
    cdef uint64_t until = u.channels[channel].throttled_until_ns
    cdef uint32_t child
    while place > 1 and timer_at(u, place // 2) > until:
        timer_put(u, place, u.timers[place // 2])
        place //= 2
    while True:
        child = place * 2
        if child > u.timer_count:
            break
        if child < u.timer_count and timer_at(u, child + 1) < timer_at(u, child):
            child += 1
        if timer_at(u, child) >= until:
            break
        timer_put(u, place, u.timers[child])
        place = child
    timer_put(u, place, channel)

cdef void timer_start(Mutes *u, Channel *c, uint64_t until_ns, uint8_t by) noexcept nogil:
    """Start the channel's throttle timer. If it runs already, for another response, the later end counts."""
    if c.timer:
        if until_ns <= c.throttled_until_ns:
            return
        timer_stop(u, c)
    c.throttled_until_ns = until_ns
    u.timer_count += 1
    c.throttled_by = by
    counter_add(u.counters, <int>Counter.COUNT_THROTTLED_PRODUCE + c.throttled_by, 1)
    timer_sift(u, u.timer_count, c.index)

cdef void timer_stop(Mutes *u, Channel *c) noexcept nogil:
    cdef uint32_t place = c.timer, last
    if place == 0:
        return
    c.timer = 0
    counter_add(u.counters, <int>Counter.COUNT_THROTTLED_PRODUCE + c.throttled_by, <uint64_t>-1)
    last = u.timers[u.timer_count]
    u.timer_count -= 1
    if last != c.index:
        timer_sift(u, place, last)
