from libc.stdint cimport uint32_t, uint64_t

from mpbroker.network.processor.apis cimport Api, may_try_again
from mpbroker.network.processor.channel cimport (
    NO_HANDLER, Channel, ChannelState, CloseReason, Request, WindowEntry,
)
from mpbroker.network.processor.channel_turn cimport ChannelTurn
from mpbroker.network.processor.closing cimport close_channel, forget_entry
from mpbroker.network.processor.dispatch cimport take_all_answers
from mpbroker.network.processor.lists cimport free_place, move
from mpbroker.network.processor.memory cimport enter_arena, free_request
from mpbroker.network.processor.peers cimport (
    LOG_PROCESS, REQUEST_RING_PLACES, Peer, answered, count_taken_by, fill_cancel, forget_untaken,
)
from mpbroker.network.processor.queue cimport enqueue, enqueue_entry
from mpbroker.network.processor.window_entries cimport entry_at, release_waiting
from shm.atomics cimport load_acquire


cdef void lose_answer_of(ChannelTurn *t, Channel *c, uint32_t owner) noexcept nogil:
    """Close the channel if it has yet to send an answer from the arena of the dead handler `owner`."""
    cdef uint32_t i
    cdef WindowEntry *e
    for i in range(c.window_count if c.state != ChannelState.CHANNEL_CLOSED else 0):
        e = entry_at(&t.window, c, i)
        if e.answered and e.request.answer.owner == owner and e.request.answer.block:
            close_channel(t, c, CloseReason.CLOSED_ROLE_DIED, owner)
            return
    if c.state == ChannelState.CHANNEL_SENDING or c.state == ChannelState.CHANNEL_OPENING:
        if c.request.answer.owner == owner and c.request.answer.block:
            close_channel(t, c, CloseReason.CLOSED_ROLE_DIED, owner)

cdef void requeue_window(ChannelTurn *t, Channel *c, uint32_t number, uint64_t taken) noexcept nogil:
    """Requeue the window's requests that the dead handler `number` had not taken. If the handler had taken a
    request, close the channel: the result is unknown, and later requests must not be served before it.
    """
    cdef bint is_closed = c.state == ChannelState.CHANNEL_CLOSED, lost = False
    cdef uint32_t i, count = c.window_count
    cdef WindowEntry *e
    for i in range(count):
        e = entry_at(&t.window, c, i)
        if e.answered or e.request.handler != number:
            continue
        lost = lost or e.request.ring_position < taken or e.request.block == 0
        answered(&t.peers, &e.request)
        if not is_closed:
            t.next_request += 1
            e.request.number = t.next_request
            enqueue_entry(&t.queue, c)
        else:
            # forget_entry may free the place, and with it the window that is walked.
            if c.window_owed == 1:
                forget_entry(t, c, e)
                return
            forget_entry(t, c, e)
    if lost and not is_closed:
        close_channel(t, c, CloseReason.CLOSED_ROLE_DIED, t.peers.handlers[number].process)
    elif c.window_waiting and not is_closed:
        release_waiting(&t.window, &t.peers, &t.queue, c)

cdef bint has_lost_produce(ChannelTurn *t, Channel *c) noexcept nogil:
    """Return whether a handler has taken a Produce request of the window and has not answered it."""
    cdef uint32_t i
    cdef Request *r
    for i in range(c.window_count):
        r = &entry_at(&t.window, c, i).request
        if entry_at(&t.window, c, i).answered or r.api_key != Api.API_PRODUCE or r.handler == NO_HANDLER:
            continue
        if r.ring_position < load_acquire(t.peers.handlers[r.handler].requests.head):
            return True
    return False

cdef void take_back(ChannelTurn *t, Channel *c, Request *r) noexcept nogil:
    """Overwrite an untaken request in its handler's ring with a CANCEL. The handler is paused."""
    cdef Peer *peer = &t.peers.handlers[r.handler]
    count_taken_by(&t.peers, peer)
    peer.is_request[r.ring_position & (REQUEST_RING_PLACES - 1)] = 0
    peer.untaken -= 1
    t.peers.untaken -= 1
    fill_cancel(&t.peers, c, r, &peer.requests.slots[r.ring_position & (peer.requests.size - 1)])

cdef void lose_produces(ChannelTurn *t, Channel *c) noexcept nogil:
    """Close a channel whose window has a Produce request that was lost with a log worker. Count the window's
    Produce requests as answered. Take back those that no handler has taken: they must not be appended now.
    """
    cdef uint32_t i, count = c.window_count
    cdef WindowEntry *e
    cdef Request *r
    cdef bint is_last
    if c.state != ChannelState.CHANNEL_CLOSED:
        close_channel(t, c, CloseReason.CLOSED_ROLE_DIED, LOG_PROCESS)
    for i in range(count):
        e = entry_at(&t.window, c, i)
        r = &e.request
        if e.answered or r.api_key != Api.API_PRODUCE or r.handler == NO_HANDLER:
            continue
        if r.ring_position >= load_acquire(t.peers.handlers[r.handler].requests.head):
            take_back(t, c, r)
        answered(&t.peers, r)
        is_last = c.window_owed == 1
        forget_entry(t, c, e)
        if is_last:
            return

cdef void handler_died(ChannelTurn *t, uint32_t number) noexcept nogil:
    """Repair after a handler's death: queue again each request that the handler had not taken or that may be
    repeated, and close the channels of its other requests. Call this when the log process no longer answers
    requests of the dead handler.
    """
    cdef Peer *peer = &t.peers.handlers[number]
    cdef uint64_t taken = load_acquire(peer.requests.head)
    cdef uint32_t i
    cdef Channel *c
    take_all_answers(t)
    for i in range(t.channels_used):
        c = &t.channels[i]
        if c.state == ChannelState.CHANNEL_FREE:
            continue
        lose_answer_of(t, c, peer.process)
        if c.window_count:
            requeue_window(t, c, number, taken)
            continue
        if c.request.handler != number or (
            c.state != ChannelState.CHANNEL_WAITING and c.state != ChannelState.CHANNEL_CLOSED
        ):
            continue
        answered(&t.peers, &c.request)
        if c.state == ChannelState.CHANNEL_CLOSED:
            free_request(&t.memory, &c.request)
            free_place(&t.lists, c)
        elif (c.request.ring_position >= taken or may_try_again(&c.request)) and enter_arena(&t.memory, c):
            t.next_request += 1
            # an answer of the dead handler cannot be taken for the new one's
            c.request.number = t.next_request
            enqueue(&t.queue, c)
        else:
            move(&t.lists, c, ChannelState.CHANNEL_READING)
            close_channel(t, c, CloseReason.CLOSED_ROLE_DIED, peer.process)
    peer.alive = peer.leaving = False
    peer.known = False
    peer.load = 0
    peer.owed_count = 0
    peer.touched = False
    forget_untaken(&t.peers, peer)

cdef void log_worker_died(ChannelTurn *t) noexcept nogil:
    """Close each channel that has a Produce request lost with a log worker: a handler has taken the request
    and has not answered it. The handlers are paused, and the other log workers have answered all requests.
    """
    cdef uint32_t i
    cdef Channel *c
    take_all_answers(t)
    for i in range(t.channels_used):
        c = &t.channels[i]
        if c.window_count:
            if has_lost_produce(t, c):
                lose_produces(t, c)
            continue
        if c.state != ChannelState.CHANNEL_WAITING and c.state != ChannelState.CHANNEL_CLOSED:
            continue
        if c.request.api_key != Api.API_PRODUCE or c.request.handler == NO_HANDLER:
            continue
        if c.request.ring_position >= load_acquire(t.peers.handlers[c.request.handler].requests.head):
            continue
        answered(&t.peers, &c.request)
        if c.state == ChannelState.CHANNEL_CLOSED:
            free_request(&t.memory, &c.request)
            free_place(&t.lists, c)
        else:
            move(&t.lists, c, ChannelState.CHANNEL_READING)
            close_channel(t, c, CloseReason.CLOSED_ROLE_DIED, LOG_PROCESS)
