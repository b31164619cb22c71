from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memmove

from mpbroker.ipc.slots cimport ReplySlot, SlotKind
from mpbroker.network.processor.answers cimport answer_bytes
from mpbroker.network.processor.channel cimport Channel, ChannelState, CloseReason
from mpbroker.network.processor.channel_turn cimport ChannelTurn
from mpbroker.network.processor.closing cimport close_channel
from mpbroker.network.processor.lists cimport free_place
from mpbroker.network.processor.memory cimport end_dry_spell, may_have_room, memory_is_out
from mpbroker.network.processor.muting cimport UNMUTE, mute_event
from mpbroker.network.processor.peers cimport replies_are_out
from mpbroker.network.processor.receiving cimport read_channel
from mpbroker.network.processor.system_calls cimport epoll_event
from mpbroker.network.processor.window_entries cimport window_holds_answers

cdef enum:
    STALL_CHECK_NS = 100 * 1000 * 1000
    # While others starve, a channel must move at least this many bytes within `stall_ns`, and at least this
    # share of a large request or answer.
    PROGRESS_BYTES = 4096
    PROGRESS_SHARE = 64


cdef void feed(ChannelTurn *t, Channel *c) noexcept nogil:
    c.starved = 0
    if c.state == ChannelState.CHANNEL_FREE:
        free_place(&t.lists, c)
    elif c.state == ChannelState.CHANNEL_READING and mute_event(&t.mutes, c, UNMUTE):
        read_channel(t, c)

cdef inline void forget_starved(ChannelTurn *t, uint32_t first, uint32_t count) noexcept nogil:
    memmove(
        t.lists.starved + first, t.lists.starved + first + count,
        (t.lists.starved_count - first - count) * sizeof(uint32_t))
    t.lists.starved_count -= count

cdef void feed_starved(ChannelTurn *t) noexcept nogil:
    """Resume channels that wait for memory, the longest waiting first, until memory is used up."""
    cdef uint32_t count = t.lists.starved_count, fed = 0
    end_dry_spell(&t.memory, t.now_ns)
    if not may_have_room(&t.memory):
        return
    while fed < count and not memory_is_out(&t.memory):
        fed += 1
        feed(t, &t.channels[t.lists.starved[fed - 1]])
    if fed:
        # Channels that found none again now follow those not tried.
        forget_starved(t, 0, fed)

cdef void end_jam(ChannelTurn *t) noexcept nogil:
    """If channels that wait for more memory hold all memory, let the longest waiting one exceed the limit.

    Otherwise no memory would ever be freed. A throttled channel is not chosen.
    """
    cdef uint64_t held = 0
    cdef uint32_t i, first = t.lists.starved_count
    cdef Channel *c
    for i in range(t.lists.starved_count):
        c = &t.channels[t.lists.starved[i]]
        if c.state == ChannelState.CHANNEL_READING or c.state == ChannelState.CHANNEL_THROTTLED:
            held += (c.request.block != 0) + (c.stash != 0)
            if (
                first == t.lists.starved_count and c.state == ChannelState.CHANNEL_READING
                and (c.request.block or c.stash)
            ):
                first = i
    if first < t.lists.starved_count and held == t.memory.arena.blocks_out:
        c = &t.channels[t.lists.starved[first]]
        t.memory.beyond = True
        feed(t, c)
        t.memory.beyond = False
        forget_starved(t, first, 1)

cdef inline bint holds_files(Channel *c) noexcept nogil:
    return c.state == ChannelState.CHANNEL_SENDING and c.request.answer.kind == SlotKind.SEND_PARTS

cdef uint64_t progress_asked(ChannelTurn *t, Channel *c) noexcept nogil:
    """Return the bytes that a channel must receive or send within `stall_ns` while others lack memory."""
    cdef ReplySlot *a = &c.request.answer
    cdef uint64_t holds = c.request.asked_bytes if c.request.block else 0
    if t.lists.unopened_count and holds_files(c):
        holds = answer_bytes(&t.peers, c)
    if c.state == ChannelState.CHANNEL_SENDING and a.kind == SlotKind.SEND and a.length > holds:
        holds = a.length
    holds //= PROGRESS_SHARE
    return holds if holds > PROGRESS_BYTES else PROGRESS_BYTES

cdef bint is_stalled(ChannelTurn *t, Channel *c) noexcept nogil:
    """Return whether a channel holds memory, waits for its client alone, and has received and sent less than
    `progress_asked` bytes for `stall_ns`.
    """
    if (c.starved or c.held) and not window_holds_answers(&t.window, c):
        return False
    # A sending channel holds an answer, whatever became of the request.
    if c.state != ChannelState.CHANNEL_SENDING and not window_holds_answers(&t.window, c) and not (
        c.state == ChannelState.CHANNEL_READING and (c.request.block or c.stash) and not c.barred
    ):
        return False
    if c.last_active_ns + t.memory.stall_ns < t.now_ns:
        return True
    if c.checked_ns and t.now_ns - c.checked_ns < t.memory.stall_ns:
        return False
    if c.checked_ns and c.moved_bytes - c.checked_bytes < progress_asked(t, c):
        return True
    c.checked_ns, c.checked_bytes = t.now_ns, c.moved_bytes
    return False

cdef inline bint only_keeps(ChannelTurn *t, Channel *c) noexcept nogil:
    """Return whether a channel that is throttled, or whose request is parked, has held bytes of later
    requests for `stall_ns`. It waits for the broker, not for its client: close it only if others need memory.
    """
    if c.last_active_ns + t.memory.stall_ns >= t.now_ns:
        return False
    if c.state == ChannelState.CHANNEL_WAITING:
        return c.request.parked and c.stash != 0
    return c.state == ChannelState.CHANNEL_THROTTLED and (c.stash != 0 or c.request.block != 0)

cdef void close_stalled(ChannelTurn *t) noexcept nogil:
    """Ten times a second, close stalled channels that hold memory or files that other channels need."""
    cdef uint32_t place = t.activity.links[t.channel_places].after
    cdef bint memory = t.memory.dry_since_ns or t.lists.starved_count or replies_are_out(&t.peers)
    cdef Channel *c
    if t.now_ns < t.memory.next_stall_check_ns:
        return
    t.memory.next_stall_check_ns = t.now_ns + STALL_CHECK_NS
    while place != t.channel_places:
        c = &t.channels[place]
        place = t.activity.links[place].after
        if not memory and not holds_files(c):
            continue
        if is_stalled(t, c) or (t.lists.starved_count and not may_have_room(&t.memory) and only_keeps(t, c)):
            close_channel(t, c, CloseReason.CLOSED_STALLED, c.received)
    end_jam(t)

cdef void shuffle(ChannelTurn *t, epoll_event *events, int count) noexcept nogil:
    """Shuffle the events of a turn, so that the same sockets do not always get the little memory left."""
    cdef int i
    cdef uint64_t k
    cdef epoll_event other
    for i in range(count - 1, 0, -1):
        t.memory.dice ^= t.memory.dice << 13
        t.memory.dice ^= t.memory.dice >> 7
        t.memory.dice ^= t.memory.dice << 17
        k = t.memory.dice % <uint64_t>(i + 1)
        other = events[i]
        events[i] = events[k]
        events[k] = other
