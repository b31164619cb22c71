# Mute states and throttle timers. Part of turn.pyx; mute.py draws the states and has their table.

cdef inline bint mute_event(ChannelTurn *t, Channel *c, int event) noexcept nogil:
    """Change the channel's mute state. False: the event is impossible, and the caller closes the channel."""
    cdef uint8_t following = t.mute_table[c.mute * MUTE_EVENTS + event]
    if following == MUTE_IMPOSSIBLE:
        return False
    c.mute = following
    return True


cdef class Muting:
    """The mute state of one channel, as the turn keeps it, without the rest of a channel."""
    cdef ChannelTurn *t
    cdef Channel channel

    def __cinit__(self):
        self.t = empty_turn()
        load_mute_table(self.t)
        memset(&self.channel, 0, sizeof(Channel))

    def __dealloc__(self):
        if self.t != NULL:
            release_turn(self.t)

    @property
    def state(self) -> int:
        return self.channel.mute

    def handle(self, int event) -> bool:
        """Apply an event; return whether it is possible. If not, nothing changes."""
        return mute_event(self.t, &self.channel, event)


cdef load_mute_table(ChannelTurn *t):
    cdef bytes table = mute.native_table()
    if len(table) != MUTE_TABLE_BYTES:
        raise ValueError(f"the table of mute states has {len(table)} bytes")
    memcpy(t.mute_table, <const char *>table, MUTE_TABLE_BYTES)


# ---- timers: a binary heap of throttled channels, the next to end first; a channel has its place there

cdef inline void timer_put(ChannelTurn *t, uint32_t place, uint32_t channel) noexcept nogil:
    t.timers[place] = channel
    t.channels[channel].timer = place

cdef inline uint64_t timer_at(ChannelTurn *t, uint32_t place) noexcept nogil:
    return t.channels[t.timers[place]].throttled_until_ns

cdef void timer_sift(ChannelTurn *t, uint32_t place, uint32_t channel) noexcept nogil:
    """Find the place of a channel, with `place` vacant. Places count from 1; 0 is none."""
    cdef uint64_t until = t.channels[channel].throttled_until_ns
    cdef uint32_t child
    while place > 1 and timer_at(t, place // 2) > until:
        timer_put(t, place, t.timers[place // 2])
        place //= 2
    while True:
        child = place * 2
        if child > t.timer_count:
            break
        if child < t.timer_count and timer_at(t, child + 1) < timer_at(t, child):
            child += 1
        if timer_at(t, child) >= until:
            break
        timer_put(t, place, t.timers[child])
        place = child
    timer_put(t, place, channel)

cdef void timer_start(ChannelTurn *t, Channel *c, uint64_t until_ns, uint8_t by) noexcept nogil:
    """Start the channel's timer. If it runs, for another answer of the window, the later end counts."""
    if c.timer:
        if until_ns <= c.throttled_until_ns:
            return
        timer_stop(t, c)
    c.throttled_until_ns = until_ns
    t.timer_count += 1
    c.throttled_by = by
    counter_add(t.counters, <int>Counter.COUNT_THROTTLED_PRODUCE + c.throttled_by, 1)
    timer_sift(t, t.timer_count, c.index)

cdef void timer_stop(ChannelTurn *t, Channel *c) noexcept nogil:
    cdef uint32_t place = c.timer, last
    if place == 0:
        return
    c.timer = 0
    counter_add(t.counters, <int>Counter.COUNT_THROTTLED_PRODUCE + c.throttled_by, <uint64_t>-1)
    last = t.timers[t.timer_count]
    t.timer_count -= 1
    if last != c.index:
        timer_sift(t, place, last)

cdef inline int until_timer_ms(ChannelTurn *t, int timeout_ms, uint64_t now_ns) noexcept nogil:
    """Return how long to sleep at most, rounded up so that no channel is unmuted too early."""
    cdef uint64_t left_ns
    if t.timer_count == 0:
        return timeout_ms
    if timer_at(t, 1) <= now_ns:
        return 0
    left_ns = timer_at(t, 1) - now_ns
    return <int>((left_ns + 999999) // 1000000) if left_ns < <uint64_t>timeout_ms * 1000000 else timeout_ms


# ---- throttling

cdef bint start_throttle(ChannelTurn *t, Channel *c, ReplySlot *a) noexcept nogil:
    """Start the throttle, from the handler's answer on, before writing the answer (KIP-219)."""
    cdef uint64_t since = a.done_ns if 0 < a.done_ns < t.now_ns else t.now_ns
    if not mute_event(t, c, THROTTLE_STARTED):
        return False
    timer_start(t, c, since + <uint64_t>a.throttle_ms * 1000000, (a.flags >> THROTTLED_BY_SHIFT) & 3)
    if c.state == ChannelState.CHANNEL_READING:
        c.state = ChannelState.CHANNEL_THROTTLED        # the answer is one of the window
        if c.stash:
            shrink_stash(t, c)
    return True

cdef void end_throttle(ChannelTurn *t, Channel *c) noexcept nogil:
    timer_stop(t, c)
    if not mute_event(t, c, THROTTLE_ENDED):
        close_channel(t, c, CloseReason.CLOSED_ILLEGAL_STATE, c.mute)
    elif c.state == ChannelState.CHANNEL_THROTTLED:
        go_on_reading(t, c)

cdef void end_throttles(ChannelTurn *t) noexcept nogil:
    """End the throttles expired by this turn's `now_ns`; the clock is not read again."""
    while t.timer_count and timer_at(t, 1) <= t.now_ns:
        end_throttle(t, &t.channels[t.timers[1]])

cdef void go_on_reading(ChannelTurn *t, Channel *c) noexcept nogil:
    """Unmute an answered channel, unless a throttle lasts. A pipelined frame needs no further wake-up."""
    cdef int framed
    if not mute_event(t, c, UNMUTE):
        close_channel(t, c, CloseReason.CLOSED_ILLEGAL_STATE, c.mute)
        return
    if c.mute != NOT_MUTED:
        c.state = ChannelState.CHANNEL_THROTTLED
        if c.stash:
            shrink_stash(t, c)
        return
    c.state = ChannelState.CHANNEL_READING
    if c.received or c.barred or window_is_full(t, c):
        read_again(t, c)
        return
    if c.stash:
        if queue_is_full(t):
            hold(t, c)
        else:
            framed = take_from_stash(t, c)
            if framed == -2:
                memory_full(t, c)
            elif framed == 2 and c.stash:
                defer(t, c, True)
    if c.state == ChannelState.CHANNEL_READING and c.readable:
        defer(t, c, True)
