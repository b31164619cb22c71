from libc.stdint cimport int64_t, uint32_t, uint64_t
from posix.unistd cimport close

from mpbroker.ipc.connections cimport ledger_close
from mpbroker.ipc.counters cimport Counter
from mpbroker.ipc.leading cimport LEADS_ALWAYS, is_past
from mpbroker.ipc.meters cimport ClientKind, client_leave
from mpbroker.ipc.session cimport SecurityProtocol
from mpbroker.network.processor.activity cimport activity_remove, least_active
from mpbroker.network.processor.answers cimport release_answer
from mpbroker.network.processor.channel cimport Channel, ChannelState, CloseReason, WindowEntry
from mpbroker.network.processor.channel_turn cimport ChannelTurn
from mpbroker.network.processor.lists cimport ChannelList, enter, free_place, move
from mpbroker.network.processor.memory cimport free_request, free_stash
from mpbroker.network.processor.metering cimport note_finished
from mpbroker.network.processor.muting cimport timer_stop
from mpbroker.network.processor.peers cimport cancel, give_back
from mpbroker.network.processor.reports cimport LOG_LEVELS_ABOVE, note
from mpbroker.network.processor.window_entries cimport entry_at, leave_window
from shm.atomics cimport load_relaxed
from shm.counters cimport counter_add

from mpbroker.ipc import topology
from mpbroker.ipc.log_levels import inherited_words, logger_of

assert LOG_LEVELS_ABOVE == len(inherited_words(logger_of(topology.FIRST_PROCESSOR)))


cdef inline bint is_close_reported(ChannelTurn *t, Channel *c, uint32_t reason) noexcept nogil:
    """Return whether Python must know of the close, to log it or to drop the TLS or SASL state."""
    cdef uint64_t least
    cdef int i
    if t.sessions[c.index].protocol != SecurityProtocol.PLAINTEXT:
        return True
    for i in range(LOG_LEVELS_ABOVE):
        least = load_relaxed(t.reports.log_levels[i])
        if least:
            return t.reports.reason_levels[reason] >= least
    return t.reports.reason_levels[reason] >= t.reports.log_level_at_start

cdef void close_channel(ChannelTurn *t, Channel *c, uint32_t reason, int64_t detail) noexcept nogil:
    """Close the channel's socket. The state is CHANNEL_CLOSED until handlers have answered its requests."""
    if c.state == ChannelState.CHANNEL_FREE or c.state == ChannelState.CHANNEL_CLOSED:
        return
    if c.state == ChannelState.CHANNEL_SENDING or c.state == ChannelState.CHANNEL_OPENING:
        release_answer(&t.peers, &t.files, c)
    free_stash(&t.memory, c)
    timer_stop(&t.mutes, c)
    activity_remove(&t.activity, c.index)
    if not c.owned:
        close(c.fd)
    c.fd = -1
    t.open_count -= 1
    ledger_close(&t.acceptors.ledger, c.index)
    t.acceptors.made_room = True
    if is_close_reported(t, c, reason):
        enter(&t.lists, c, ChannelList.LIST_CLOSED)
        note(c, &t.reports.closed[t.reports.closed_count], reason, detail)
        t.reports.closed_count += 1
    counter_add(t.counters, Counter.COUNT_CONNECTIONS_CLOSED, 1)
    client_leave(t.metering.meters, ClientKind.CLIENT_SOFTWARE, c.client)
    if c.state == ChannelState.CHANNEL_SENDING or c.state == ChannelState.CHANNEL_OPENING:
        note_finished(&t.metering, &c.request)
    if c.state == ChannelState.CHANNEL_WAITING:
        move(&t.lists, c, ChannelState.CHANNEL_CLOSED)
        if c.request.parked:
            free_request(&t.memory, &c.request)
            cancel(&t.peers, c, &c.request)
        return
    free_request(&t.memory, &c.request)
    close_window(t, c)
    if c.window_owed:
        move(&t.lists, c, ChannelState.CHANNEL_CLOSED)
    else:
        free_place(&t.lists, c)

cdef void close_all_of(ChannelTurn *t, int listener) noexcept nogil:
    cdef uint32_t i
    for i in range(t.channels_used):
        if t.channels[i].connection and t.channels[i].listener == listener:
            close_channel(t, &t.channels[i], CloseReason.CLOSED_LISTENER, 0)

cdef void follow_lease(ChannelTurn *t, uint64_t until_ns) noexcept nogil:
    """Close all channels if the lease until `until_ns` has run out. Their answers are not sent."""
    cdef uint32_t i
    if not is_past(until_ns):
        t.closed_for_ns = LEADS_ALWAYS
        return
    for i in range(t.channels_used):
        if t.channels[i].connection:
            close_channel(t, &t.channels[i], CloseReason.CLOSED_LEASE, 0)
    t.closed_for_ns = until_ns

cdef uint32_t close_idle_channels(ChannelTurn *t, uint64_t before_ns) noexcept nogil:
    """Close all channels last active before `before_ns`; return how many. (Kafka closes one per poll.)"""
    cdef Channel *c = least_active(&t.activity)
    cdef uint32_t closed = 0
    while c != NULL and c.last_active_ns < before_ns:
        close_channel(t, c, CloseReason.CLOSED_IDLE, 0)
        closed += 1
        c = least_active(&t.activity)
    return closed


# ---- windows of closed channels

cdef void forget_entry(ChannelTurn *t, Channel *c, WindowEntry *e) noexcept nogil:
    """Free a window entry of a closed channel. After the last entry, free the channel's place."""
    free_request(&t.memory, &e.request)
    e.answered = 1
    c.window_owed -= 1
    if c.window_owed == 0:
        while c.window_count:
            leave_window(&t.window, c)
        free_place(&t.lists, c)

cdef void close_window(ChannelTurn *t, Channel *c) noexcept nogil:
    """Free the memory of a closing channel's window, except the requests that are with handlers."""
    cdef uint32_t i
    cdef WindowEntry *e
    for i in range(c.window_count):
        e = entry_at(&t.window, c, i)
        if e.answered:
            note_finished(&t.metering, &e.request)
            give_back(&t.peers, &e.request.answer)
            free_request(&t.memory, &e.request)
        elif e.waiting:
            e.answered = 1
            c.window_owed -= 1
            free_request(&t.memory, &e.request)
        elif e.request.parked:
            cancel(&t.peers, c, &e.request)
    c.window_waiting = 0
    if c.window_owed == 0:
        while c.window_count:
            leave_window(&t.window, c)
