from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from mpbroker.ipc.connections cimport ledger_open, ledger_take
from mpbroker.ipc.counters cimport Counter
from mpbroker.ipc.session cimport SecurityProtocol, session_open
from mpbroker.network.handover cimport Handover, handover_receive
from mpbroker.network.processor.activity cimport activity_append
from mpbroker.network.processor.channel cimport NO_HANDLER, Channel, ChannelState
from mpbroker.network.processor.channel_turn cimport ChannelTurn
from mpbroker.network.processor.lists cimport move
from mpbroker.network.processor.metering cimport count_client
from mpbroker.network.processor.peers cimport FIRST_PROCESSOR
from mpbroker.network.processor.system_calls cimport (
    EPOLL_CTL_ADD, EPOLLET, EPOLLIN, EPOLLOUT, EPOLLRDHUP, epoll_ctl, epoll_event,
)
from shm.counters cimport counter_add

from mpbroker.config.listeners import MAX_LISTENERS
from mpbroker.network import handover

cdef enum:
    # Most new sockets per wake-up, like Kafka's Processor, so that open ones are not kept waiting.
    NEW_CONNECTIONS_MAX = 20

assert LISTENERS == MAX_LISTENERS and sizeof(Handover) == handover.HANDOVER.size


cdef int open_channel(ChannelTurn *t, int fd, int listener, int protocol, bint privileged) noexcept nogil:
    """Serve a connected non-blocking socket and return its channel. Return NO_PLACE if no channel is free,
    or NO_SOCKET with errno if the socket cannot be watched. After a failure the caller keeps the socket.
    """
    cdef Channel *c
    cdef epoll_event event
    cdef uint32_t index
    if t.lists.free_count == 0 and t.channels_used == t.channel_places:
        return NO_PLACE
    index = t.lists.free_channels[t.lists.free_count - 1] if t.lists.free_count else t.channels_used
    # Do first what may fail: until then the place is free.
    if not session_open(
        &t.sessions[index], t.next_connection + 1, fd, t.process - FIRST_PROCESSOR, listener, protocol,
        privileged
    ):
        return NO_SOCKET
    event.events = <uint32_t>(EPOLLIN | EPOLLOUT | EPOLLRDHUP) | EPOLLET
    event.data.u64 = <uint64_t><uint32_t>(t.next_connection + 1) << 32 | index
    if epoll_ctl(t.epoll_fd, EPOLL_CTL_ADD, fd, &event):
        return NO_SOCKET
    if t.lists.free_count:
        t.lists.free_count -= 1
    else:
        t.channels_used += 1
    c = &t.channels[index]
    memset(c, 0, sizeof(Channel))
    c.index = index
    c.fd = fd
    move(&t.lists, c, ChannelState.CHANNEL_READING)
    c.request.handler = NO_HANDLER
    c.listener = listener
    c.client = -1
    t.next_connection += 1
    c.connection = t.next_connection
    c.last_active_ns = t.now_ns
    activity_append(&t.activity, index)
    t.open_count += 1
    counter_add(t.counters, Counter.COUNT_CONNECTIONS_CREATED, 1)
    count_client(&t.metering, c)
    return <int>index

cdef bint take_connection(Intake *intake, ChannelTurn *t) noexcept nogil:
    """Serve the connection in `intake.handed`. Return False if Python has to decide about it."""
    cdef Handover *h = &intake.handed
    cdef uint8_t kind = intake.listener_kinds[h.listener] if h.listener < LISTENERS else 0
    cdef int channel
    if intake.handed_fd < 0 or not kind & IS_PLAIN or t.open_count >= intake.connections_max:
        return False
    channel = open_channel(
        t, intake.handed_fd, h.listener, SecurityProtocol.PLAINTEXT, kind & IS_PRIVILEGED != 0)
    if channel < 0:
        return False
    ledger_open(&t.acceptors.ledger, channel, h.ticket, h.listener, h.address, h.address_bytes)
    ledger_take(&t.acceptors.ledger, h.ticket)
    t.acceptors.made_room = True
    return True

cdef void take_connections(Intake *intake, ChannelTurn *t) noexcept nogil:
    """Take new connections until Python has to decide about one, which then waits in `intake.handed`."""
    cdef int _
    for _ in range(NEW_CONNECTIONS_MAX):
        if intake.handed_waits:
            return
        if handover_receive(intake.handover_fd, &intake.handed, sizeof(Handover), &intake.handed_fd) <= 0:
            return
        intake.handed_waits = not take_connection(intake, t)
