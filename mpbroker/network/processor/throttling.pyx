from libc.stdint cimport uint64_t

from mpbroker.ipc.slots cimport THROTTLED_BY_SHIFT, ReplySlot
from mpbroker.network.processor.channel cimport Channel, ChannelState, CloseReason
from mpbroker.network.processor.channel_turn cimport ChannelTurn
from mpbroker.network.processor.closing cimport close_channel
from mpbroker.network.processor.lists cimport defer, defer_reading, hold, move
from mpbroker.network.processor.memory cimport shrink_stash
from mpbroker.network.processor.muting cimport (
    NOT_MUTED, THROTTLE_ENDED, THROTTLE_STARTED, UNMUTE, mute_event, timer_at, timer_start, timer_stop,
)
from mpbroker.network.processor.queue cimport queue_is_full
from mpbroker.network.processor.receiving cimport memory_full, take_from_stash
from mpbroker.network.processor.window_entries cimport window_is_full


cdef bint start_throttle(ChannelTurn *t, Channel *c, ReplySlot *a) noexcept nogil:
    """Throttle the channel before its answer is written (KIP-219).

    The throttle time begins with the handler's answer. Return False if the mute state allows no throttle.
    """
    cdef uint64_t since = a.done_ns if 0 < a.done_ns < t.now_ns else t.now_ns
    if not mute_event(&t.mutes, c, THROTTLE_STARTED):
        return False
    timer_start(&t.mutes, c, since + <uint64_t>a.throttle_ms * 1000000, (a.flags >> THROTTLED_BY_SHIFT) & 3)
    if c.state == ChannelState.CHANNEL_READING:
        move(&t.lists, c, ChannelState.CHANNEL_THROTTLED)  # the answer is one of the window
        if c.stash:
            shrink_stash(&t.memory, c)
    return True

cdef void end_throttle(ChannelTurn *t, Channel *c) noexcept nogil:
    timer_stop(&t.mutes, c)
    if not mute_event(&t.mutes, c, THROTTLE_ENDED):
        close_channel(t, c, CloseReason.CLOSED_ILLEGAL_STATE, c.mute)
    elif c.state == ChannelState.CHANNEL_THROTTLED:
        unmute(t, c)

cdef void end_throttles(ChannelTurn *t) noexcept nogil:
    """End the throttles that have expired at `t.now_ns`, when this turn began."""
    while t.mutes.timer_count and timer_at(&t.mutes, 1) <= t.now_ns:
        end_throttle(t, &t.channels[t.mutes.timers[1]])

cdef void unmute(ChannelTurn *t, Channel *c) noexcept nogil:
    """Unmute a channel whose request has ended, unless the channel is still throttled. If the next frame was
    received already, queue its request now.
    """
    cdef int framed
    if not mute_event(&t.mutes, c, UNMUTE):
        close_channel(t, c, CloseReason.CLOSED_ILLEGAL_STATE, c.mute)
        return
    if c.mute != NOT_MUTED:
        move(&t.lists, c, ChannelState.CHANNEL_THROTTLED)
        if c.stash:
            shrink_stash(&t.memory, c)
        return
    move(&t.lists, c, ChannelState.CHANNEL_READING)
    if c.received or c.barred or window_is_full(&t.window, c):
        defer_reading(&t.lists, c)
        return
    if c.stash:
        if queue_is_full(&t.queue, &t.peers):
            hold(&t.lists, c)
        else:
            framed = take_from_stash(t, c)
            if framed == -2:
                memory_full(t, c)
            elif framed == 2 and c.stash:
                defer(&t.lists, c, True)
    if c.state == ChannelState.CHANNEL_READING and c.readable:
        defer(&t.lists, c, True)
