from libc.stdint cimport uint32_t
from libc.string cimport memmove

from mpbroker.ipc.counters cimport Counter
from mpbroker.network.processor.channel cimport NEGOTIATING, Channel, ChannelState, CloseReason
from mpbroker.network.processor.channel_turn cimport ChannelTurn
from mpbroker.network.processor.closing cimport close_channel, close_idle_channels
from mpbroker.network.processor.files cimport close_deleted
from mpbroker.network.processor.lists cimport free_place, mark, may_open
from mpbroker.network.processor.memory cimport count_dry, may_have_room
from mpbroker.network.processor.peers cimport replies_are_out
from mpbroker.network.processor.queue cimport await_room, end_patience, queue_is_full, queued_here
from mpbroker.network.processor.receiving cimport read_channel
from mpbroker.network.processor.sending cimport continue_sending
from mpbroker.network.processor.starvation cimport close_stalled, feed_starved
from mpbroker.network.processor.system_calls cimport EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP
from mpbroker.network.processor.throttling cimport end_throttles
from mpbroker.network.processor.window_answers cimport flush_window
from mpbroker.network.processor.window_entries cimport window_holds_answers
from shm.atomics cimport load_acquire, load_relaxed, store_relaxed
from shm.counters cimport counter_set
from shm.ring cimport ring_waiting


cdef bint is_ordered(Orders *orders) noexcept nogil:
    """Return whether Python has to obey a new order of the supervisor or an acceptor."""
    if load_acquire(orders.order) != orders.order_seen:
        return True
    if load_acquire(orders.fence_order) != orders.fence_order_seen:
        return True
    return load_acquire(orders.evictions_asked) != load_relaxed(orders.evictions_done)

cdef bint must_stay_awake(ChannelTurn *t, Orders *orders) noexcept nogil:
    cdef uint32_t h
    if t.lists.soon or t.acceptors.made_room or t.lists.marked_count or may_open(&t.lists, t.files.released):
        return True
    for h in range(t.peers.log_count):
        if ring_waiting(&t.peers.log_answers[h]):
            return True
    if is_ordered(orders):
        return True
    for h in range(t.peers.handler_count):
        if t.peers.handlers[h].known and ring_waiting(&t.peers.handlers[h].answers):
            return True
    return False

cdef void walk_deferred(ChannelTurn *t) noexcept nogil:
    cdef uint32_t *list_now = t.lists.deferred
    cdef uint32_t count = t.lists.deferred_count, i
    cdef Channel *c
    t.lists.deferred = t.lists.deferred_now
    t.lists.deferred_now = list_now
    t.lists.deferred_count = 0
    for i in range(count):
        c = &t.channels[list_now[i]]
        c.deferred = 0
        if c.state == ChannelState.CHANNEL_FREE:
            free_place(&t.lists, c)
        elif c.secure == NEGOTIATING:
            mark(&t.lists, c)
        elif c.state == ChannelState.CHANNEL_SENDING:
            continue_sending(t, c)
        else:
            if c.secure and window_holds_answers(&t.window, c):
                mark(&t.lists, c)
            if c.state == ChannelState.CHANNEL_READING and not c.starved and not c.held:
                read_channel(t, c)

cdef void release_held(ChannelTurn *t) noexcept nogil:
    """Resume channels that wait for the request queue, the longest waiting first, while it has room."""
    cdef uint32_t count = t.lists.held_count, released = 0
    cdef Channel *c
    while released < count and not queue_is_full(&t.queue, &t.peers):
        c = &t.channels[t.lists.held[released]]
        released += 1
        c.held = 0
        if c.state == ChannelState.CHANNEL_FREE:
            free_place(&t.lists, c)
        elif c.state == ChannelState.CHANNEL_READING and not c.starved:
            read_channel(t, c)
    if released:
        memmove(t.lists.held, t.lists.held + released, (t.lists.held_count - released) * sizeof(uint32_t))
        t.lists.held_count -= released

cdef void socket_event(ChannelTurn *t, Channel *c, uint32_t events) noexcept nogil:
    if events & (EPOLLERR | EPOLLHUP):
        close_channel(t, c, CloseReason.CLOSED_BY_PEER, 0)
        return
    if events & EPOLLRDHUP:
        c.ended = 1
    if events & (EPOLLIN | EPOLLRDHUP):
        c.readable = 1
        if c.state == ChannelState.CHANNEL_WAITING:
            end_patience(&t.queue)      # the next request waits for the answer to the present one
    if events & EPOLLRDHUP and c.state == ChannelState.CHANNEL_WAITING and c.request.parked:
        close_channel(t, c, CloseReason.CLOSED_BY_PEER, 0)
        return
    if c.window_count and events & EPOLLOUT:
        flush_window(t, c)
    if c.secure == NEGOTIATING:
        mark(&t.lists, c)
    elif c.state == ChannelState.CHANNEL_SENDING:
        if events & EPOLLOUT:
            continue_sending(t, c)
    elif c.state == ChannelState.CHANNEL_READING and c.readable and not c.starved and not c.held:
        read_channel(t, c)

cdef void continue_channels(ChannelTurn *t) noexcept nogil:
    """Resume throttled, deferred, held and starved channels that can go on; close stalled and idle ones."""
    end_throttles(t)
    if t.lists.deferred_count:
        walk_deferred(t)
    if t.lists.held_count:
        release_held(t)
    if t.memory.dry_since_ns or t.lists.starved_count:
        feed_starved(t)
        close_stalled(t)
    elif t.lists.unopened_count or replies_are_out(&t.peers):
        close_stalled(t)
    if t.activity.idle_ns and t.activity.idle_ns < t.now_ns:
        close_idle_channels(t, t.now_ns - t.activity.idle_ns)

cdef void before_sleep(ChannelTurn *t) noexcept nogil:
    """Set `lists.soon` if the next turn must not sleep. Publish the counts that other processes read."""
    if t.lists.held_count:
        if await_room(&t.queue, &t.peers):
            t.lists.soon = True
    else:
        store_relaxed(&t.queue.queued[t.process], queued_here(&t.queue, &t.peers))
    if t.lists.starved_count and may_have_room(&t.memory):
        t.lists.soon = True
    if t.files.count or t.lists.unopened_count:
        close_deleted(&t.files, t.now_ns)
    count_dry(&t.memory, t.now_ns)
    counter_set(t.counters, Counter.COUNT_ARENA_BYTES, t.memory.arena.in_use_bytes)
    counter_set(t.counters, Counter.COUNT_QUEUED_REQUESTS, queued_here(&t.queue, &t.peers))
    counter_set(t.counters, Counter.COUNT_RESPONSES_WAITING, t.metering.answers_waiting)
    t.metering.answers_waiting = 0
