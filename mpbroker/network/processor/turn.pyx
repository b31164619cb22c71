"""A turn: one wake-up of a processor, in which it receives requests and sends answers, without the GIL.

A turn has these phases, in Kafka's order (SocketServer.Processor.run):

    sleep      arm the doorbell, check the rings, epoll_wait
    lease      close all channels if the broker leads no longer
    answers    begin to send the answers found in the rings; read a connection again after its answer is sent
    sockets    receive from readable ones into arena blocks until a frame is whole; write to writable ones
    dispatch   give the requests of the FIFO in batches to the handlers with the least load
    publish    one store per ring, one doorbell per handler

Sockets are edge-triggered and registered once, so muting a channel costs no system call: it is just not read.
The turn returns to Python if there are new or closed connections, segment files to open, or orders of the
supervisor.

The phases share one struct (channel_turn.pxd), which contains a struct for each part. A part uses its own
struct, and the structs of the parts below it:

    take_connections, socket_event              intake, events, starvation
    take_all_answers, dispatch, publish         dispatch, window_answers, api_versions; peer_failure
    reading and writing a channel               sending, throttling, receiving
    closing a channel                           closing
    parts that all of these use                 window_entries, answers, lists, memory, muting, queue, peers,
                                                metering, files, activity, reports, acceptors
"""
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

import os

from mpbroker.ipc.connections cimport EVICTIONS_ASKED_AT, EVICTIONS_DONE_AT, Ledger, ledger_word
from mpbroker.ipc.counters cimport Counter
from mpbroker.ipc.leading cimport LEADS_ALWAYS
from mpbroker.ipc.loop cimport NATIVE_AT_MOST_NS
from mpbroker.network.handover cimport Handover
from mpbroker.network.processor.acceptors cimport ACCEPTORS
from mpbroker.network.processor.activity cimport until_idle_ms
from mpbroker.network.processor.api_versions cimport API_VERSIONS_MOST, PreparedAnswers
from mpbroker.network.processor.apis cimport API_KEYS
from mpbroker.network.processor.channel cimport WINDOW_MOST, Channel, ChannelState, CloseReason
from mpbroker.network.processor.channel_turn cimport (
    ChannelTurn, allocate_places, connect_parts, empty_turn, release_turn,
)
from mpbroker.network.processor.closing cimport (
    close_all_of, close_channel, close_idle_channels, follow_lease,
)
from mpbroker.network.processor.dispatch cimport dispatch, publish, take_all_answers
from mpbroker.network.processor.events cimport (
    Orders, before_sleep, continue_channels, is_ordered, must_stay_awake, socket_event,
)
from mpbroker.network.processor.intake cimport (
    IS_PLAIN, IS_PRIVILEGED, NO_PLACE, NO_SOCKET, Intake, open_channel, take_connections,
)
from mpbroker.network.processor.lists cimport (
    ChannelList, Lists, defer_reading, free_place, may_open, noted_entries, noted_moves,
)
from mpbroker.network.processor.memory cimport memory_is_low
from mpbroker.network.processor.metering cimport begin_counting, take_told
from mpbroker.network.processor.muting cimport load_mute_table, until_timer_ms
from mpbroker.network.processor.peer_failure cimport handler_died, log_worker_died
from mpbroker.network.processor.peers cimport FIRST_HANDLER, Peer, forget_untaken
from mpbroker.network.processor.queue cimport exchange_queue_lengths, is_waiting, until_dispatch_ms
from mpbroker.network.processor.reports cimport Reports
from mpbroker.network.processor.starvation cimport may_be_stalled, shuffle
from mpbroker.network.processor.system_calls cimport (
    EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLLET, EPOLLIN, epoll_create1, epoll_ctl, epoll_event, epoll_wait,
)
from shm.arena cimport Arena
from shm.counters cimport CounterPage, counter_add, heartbeat, monotonic_ns
from shm.doorbell cimport Doorbell, bell_arm, bell_disarm
from shm.ring cimport Ring
from shm.atomics cimport load_acquire, load_relaxed

from mpbroker.ipc import topology
from mpbroker.ipc.log_levels import inherited_words, logger_of
from mpbroker.network.processor.window_apis import IN_WINDOW
from typing import Any, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from mpbroker.ipc.session import Session
    from mpbroker.ipc.topology import SharedMemory

cdef enum:
    EVENTS_MAX = 512
    STALLED_SLEEP_MS = 300
    PATIENCE_NS = 10000000          # of requests whose clients wait for nothing (patience.pxd)
    QUEUE_RETRY_MS = 2              # other processors may have room in the queue by then
    TURN_CONNECTIONS = 1
    TURN_CLOSED = 2
    TURN_OPENING = 4
    TURN_TOLD = 8                   # ended requests for the request log
    TURN_SECURE = 16
    TURN_FAILED = 32

assert ACCEPTORS == len(topology.ACCEPTORS)
# Epoll tags of the two descriptors that are no channels.
cdef uint32_t BELL_TAG = <uint32_t>0xFFFFFFFFu
cdef uint32_t HANDOVER_TAG = <uint32_t>0xFFFFFFFEu
CONNECTIONS, CLOSED, OPENING, TOLD, SECURE = (
    TURN_CONNECTIONS, TURN_CLOSED, TURN_OPENING, TURN_TOLD, TURN_SECURE)


cdef int run_turn(
    ChannelTurn *t, Intake *intake, Orders *orders, PreparedAnswers *prepared, int timeout_ms
) noexcept nogil:
    cdef epoll_event events[EVENTS_MAX]
    cdef int count, i
    cdef uint32_t tag
    cdef uint64_t before, until_ns
    cdef int flags = 0
    cdef Channel *c
    bell_arm(&t.bell)
    before = monotonic_ns()
    timeout_ms = until_timer_ms(&t.mutes, until_idle_ms(&t.activity, timeout_ms, before), before)
    timeout_ms = until_dispatch_ms(&t.queue, timeout_ms, before)
    if timeout_ms > STALLED_SLEEP_MS and may_be_stalled(t):
        timeout_ms = STALLED_SLEEP_MS
    if t.lists.held_count and timeout_ms > QUEUE_RETRY_MS:
        timeout_ms = QUEUE_RETRY_MS
    if must_stay_awake(t, orders):
        timeout_ms = 0
    count = epoll_wait(t.epoll_fd, events, EVENTS_MAX, timeout_ms)
    if count < 0 and errno != EINTR:
        t.poll_errno = errno
        flags = TURN_FAILED
    bell_disarm(&t.bell)
    t.now_ns = t.metering.clock_ns = monotonic_ns()
    t.lists.soon = False
    t.found = <uint32_t>(count if count > 0 else timeout_ms == 0 or is_waiting(&t.queue))
    if timeout_ms:
        counter_add(t.counters, Counter.COUNT_IDLE_NS, t.now_ns - before)
    counter_add(t.counters, Counter.COUNT_WAKEUPS, 1)
    heartbeat(t.counters, t.now_ns)
    t.memory.arena.limit_bytes = load_relaxed(t.memory.request_limit)
    t.metering.timed = load_relaxed(t.metering.request_quotas) != 0
    exchange_queue_lengths(&t.queue, &t.peers)
    if t.leading != NULL:
        until_ns = load_relaxed(t.leading)
        if until_ns != t.closed_for_ns:
            follow_lease(t, until_ns)
    take_all_answers(t)
    continue_channels(t)
    if count > 1 and memory_is_low(&t.memory):
        shuffle(t, events, count)
    for i in range(count):
        tag = <uint32_t>events[i].data.u64
        if tag == HANDOVER_TAG:
            take_connections(intake, t)
        elif tag != BELL_TAG:           # the bell is edge-triggered: nothing to reset
            c = &t.channels[tag]
            # An event of an earlier connection in this place carries the low bits of another connection id.
            if <uint32_t>c.connection == <uint32_t>(events[i].data.u64 >> 32):
                if c.state != ChannelState.CHANNEL_FREE and c.state != ChannelState.CHANNEL_CLOSED:
                    socket_event(t, c, events[i].events)
    dispatch(t, prepared)
    publish(t)
    before_sleep(t)
    if t.reports.closed_count or t.reports.late_count:
        flags |= TURN_CLOSED
    if may_open(&t.lists, t.files.released):
        flags |= TURN_OPENING
    if intake.handed_waits:
        flags |= TURN_CONNECTIONS
    if t.metering.told_count:
        flags |= TURN_TOLD
    if t.lists.marked_count:
        flags |= TURN_SECURE
    return flags


class PollFailed(OSError):
    """Raised if epoll_wait fails. After that, no socket is reported as ready."""


cdef class ProcessorTurn:
    """A processor's connections and their requests. `memory` is the broker's `SharedMemory`."""

    def __cinit__(self, *args, **named):
        self.t = empty_turn()

    def __dealloc__(self):
        if self.t != NULL:
            release_turn(self.t)

    def __init__(
        self, memory: SharedMemory, int process, int handover_fd, first_flexible: list[int],
        uint32_t channel_places,
        uint32_t frame_bytes_max, uint32_t queued_requests_max, uint64_t connection_prefix,
        uint64_t idle_ns=0,
        uint64_t stall_ns=10_000_000_000,
        uint32_t window=1,
        uint64_t patience_ns=PATIENCE_NS,
    ):
        cdef ChannelTurn *t = self.t
        cdef Arena arena = memory.arena(process)
        cdef CounterPage counters = memory.counters(process)
        cdef Doorbell bell = memory.doorbell(process)
        cdef unsigned char[::1] orders = memory.private.block("orders")
        cdef unsigned char[::1] fence_orders = memory.private.block("fence_orders")
        cdef uint32_t i
        if channel_places > topology.CHANNELS_PER_PROCESSOR:
            raise ValueError(
                f"{channel_places} channels: there are {topology.CHANNELS_PER_PROCESSOR} sessions")
        self.memory = memory
        self.rings = {}
        self.sessions = memory.sessions(process)
        self.meters = memory.meters(process)
        self.keep = [arena, counters, bell, orders, fence_orders]
        t.process = process
        self._bind_ledger(memory.connections(process))
        self._bind_log_levels(memory.private)
        memset(t.reports.reason_levels, 255, sizeof(t.reports.reason_levels))
        self._bind_replies_out(memory.private.block("replies_out"))
        t.memory.arena = &arena.ref
        t.counters = &counters.ref
        t.metering.meters = &self.meters.ref
        t.sessions = self.sessions.entries
        allocate_places(t, channel_places)
        connect_parts(t)
        begin_counting(&t.metering, t.memory.arena.limit_bytes)
        t.bell, t.peers.log_count, self.logs = bell.ref, memory.sizes.log_workers, {}
        for i in range(t.peers.log_count):
            self.welcome_log(i)
        self.intake.handover_fd = handover_fd
        self.orders.order = <uint64_t *>(<size_t>&orders[process * 8])
        self.orders.fence_order = <uint64_t *>(<size_t>&fence_orders[process * 8])
        self.orders.order_seen = load_acquire(self.orders.order)
        self.orders.fence_order_seen = load_acquire(self.orders.fence_order)
        load_mute_table(&t.mutes)
        self._bind_words()
        t.activity.idle_ns, t.memory.stall_ns = idle_ns, stall_ns
        t.memory.dice = monotonic_ns() | 1
        t.next_connection = connection_prefix
        t.frame_bytes_max = frame_bytes_max
        t.queue.queued_requests_max, t.queue.patience_ns = queued_requests_max, patience_ns
        for i in range(<uint32_t>API_KEYS):
            t.first_flexible[i] = first_flexible[i]
        for api in IN_WINDOW:
            t.window.in_window[<int>api] = 1
        self.set_window(window)
        t.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        if t.epoll_fd < 0:
            raise OSError(errno, "epoll_create1")
        self._watch(t.bell.fd, EPOLLIN | EPOLLET, BELL_TAG)
        self._watch(handover_fd, EPOLLIN, HANDOVER_TAG)

    def _bind_words(self):
        cdef unsigned char[::1] queued = self.memory.private.block("queued")
        cdef unsigned char[::1] limits = self.memory.private.block("request_limits")
        cdef unsigned char[::1] quotas = self.memory.private.block("request_quotas")
        cdef unsigned char[::1] leading = self.memory.private.block("leading")
        self.keep += [queued, limits, quotas, leading]
        self.t.metering.request_quotas = <uint64_t *>(<size_t>&quotas[0])
        self.t.queue.queued = <uint64_t *>(<size_t>&queued[0])
        self.t.memory.request_limit = <uint64_t *>(<size_t>&limits[self.t.process * 8])
        if not topology.is_control_plane(self.t.process):
            self.t.leading, self.t.closed_for_ns = <const uint64_t *>(<size_t>&leading[0]), LEADS_ALWAYS

    def _bind_ledger(self, Ledger ledger):
        cdef Doorbell bell
        cdef int i
        self.keep.append(ledger)
        self.t.acceptors.ledger = ledger.ref
        self.orders.evictions_asked = ledger_word(&ledger.ref, EVICTIONS_ASKED_AT)
        self.orders.evictions_done = ledger_word(&ledger.ref, EVICTIONS_DONE_AT)
        for i, acceptor in enumerate(topology.ACCEPTORS):
            bell = self.memory.doorbell(acceptor)
            self.keep.append(bell)
            self.t.acceptors.acceptor_bells[i] = bell.ref

    def _bind_log_levels(self, private):
        cdef unsigned char[::1] log_levels = private.block("log_levels")
        cdef unsigned char[::1] request_log = private.block("request_log")
        cdef int i
        self.keep += [log_levels, request_log]
        for i, word in enumerate(inherited_words(logger_of(topology.FIRST_PROCESSOR))):
            self.t.reports.log_levels[i] = <uint64_t *>(<size_t>&log_levels[8 * <int>word])
        self.prepared.request_log = <uint64_t *>(<size_t>&request_log[0])

    def _bind_replies_out(self, unsigned char[::1] words):
        self.keep.append(words)
        self.t.peers.replies_out = <uint64_t *>(<size_t>&words[0])

    def _watch(self, int fd, uint32_t events, uint64_t tag):
        cdef epoll_event event
        event.events = events
        event.data.u64 = tag
        if epoll_ctl(self.t.epoll_fd, EPOLL_CTL_ADD, fd, &event):
            raise OSError(errno, "epoll_ctl")

    def saw_orders(self) -> None:
        """Confirm that the orders found by `look_at_orders` are done. A later order ends the next sleep."""
        self.orders.order_seen = self.order_now
        self.orders.fence_order_seen = self.fence_order_now

    def look_at_orders(self) -> bool:
        """Return whether there are orders that `saw_orders` has not confirmed. Call this before obeying."""
        self.order_now = load_acquire(self.orders.order)
        self.fence_order_now = load_acquire(self.orders.fence_order)
        return (
            self.order_now != self.orders.order_seen
            or self.fence_order_now != self.orders.fence_order_seen
            or load_relaxed(self.orders.evictions_asked) != load_relaxed(self.orders.evictions_done)
        )

    def turn(self, int timeout_ms) -> int:
        """Run one turn. Return flags for Python's work: CONNECTIONS, CLOSED, OPENING, TOLD, SECURE.

        Raise PollFailed if epoll_wait fails.
        """
        return self._turns(timeout_ms, 0)

    def serve(self, int timeout_ms) -> int:
        """Run turns until one finds nothing to do or Python has work. Return and raise as `turn` does.

        Returning to Python between two turns would cost more than the turns.
        """
        return self._turns(timeout_ms, NATIVE_AT_MOST_NS)

    cdef int _turns(self, int timeout_ms, uint64_t longest_ns) except -1:
        cdef uint64_t begun_ns = monotonic_ns(), passed_ns
        cdef int flags, left_ms = timeout_ms
        with nogil:
            while True:
                flags = run_turn(self.t, &self.intake, &self.orders, &self.prepared, left_ms)
                passed_ns = self.t.metering.clock_ns - begun_ns
                left_ms = timeout_ms - <int>(passed_ns // 1000000)
                if (
                    flags or passed_ns >= longest_ns or left_ms <= 0
                    or self.t.found == 0 or is_ordered(&self.orders)
                ):
                    break
        if flags & TURN_FAILED:
            raise PollFailed(self.t.poll_errno, os.strerror(self.t.poll_errno))
        return flags

    @property
    def poll_fd(self) -> int:
        """Return the descriptor that the turn sleeps on."""
        return self.t.epoll_fd

    def add_connection(
        self, int fd, int listener, int protocol=0, bint privileged=False,
    ) -> tuple[int, int] | None:
        """Serve a connected non-blocking socket. Return (channel, connection id), or None if all channels are
        used. Raise OSError if the socket cannot be watched. After None or an error the caller keeps it.
        """
        cdef int channel
        self.t.now_ns = self.t.metering.clock_ns = monotonic_ns()
        channel = open_channel(self.t, fd, listener, protocol, privileged)
        if channel == NO_PLACE:
            return None
        if channel == NO_SOCKET:
            raise OSError(errno, os.strerror(errno))
        return channel, self.t.channels[channel].connection

    @property
    def connections(self) -> int:
        """Return the number of open connections."""
        return self.t.open_count

    def handed(self) -> tuple[bytes, list[int]] | None:
        """Return an acceptor's message (handover.py) that Python must decide about, and its descriptors (one
        or none), which the caller then owns. Return None if there is no such message.
        """
        if not self.intake.handed_waits:
            return None
        self.intake.handed_waits = False
        message = (<char *>&self.intake.handed)[:sizeof(Handover)]
        return message, [] if self.intake.handed_fd < 0 else [self.intake.handed_fd]

    def serve_plain(self, int listener, bint privileged, uint32_t connections_max) -> None:
        """Serve new connections of a PLAINTEXT listener without Python, while fewer than `connections_max`
        connections of the processor are open.
        """
        self.intake.listener_kinds[listener] = IS_PLAIN | (IS_PRIVILEGED if privileged else 0)
        self.intake.connections_max = connections_max

    def ask_about(self, int listener) -> None:
        """Leave new connections of a listener to Python from now on."""
        self.intake.listener_kinds[listener] = 0

    def tell_closed(self, levels: Mapping[CloseReason, int], int level_at_start) -> None:
        """Set the log level of each close reason. Closed connections are reported only at enabled levels.

        TLS and SASL connections are always reported. `level_at_start` is the least enabled level until a
        client sets another one.
        """
        for reason, level in levels.items():
            self.t.reports.reason_levels[<int>reason] = level
        self.t.reports.log_level_at_start = level_at_start

    def answer_api_versions(self, bodies: list[bytes]) -> None:
        """From now on answer an ApiVersions request of version N with `bodies[N]`, an encoded response.

        Some requests still go to handlers, for instance those of other versions or with tagged fields.
        """
        cdef bytes body
        for version in range(API_VERSIONS_MOST):
            self.prepared.api_versions[<int>version] = NULL
        for version, body in enumerate(bodies[:API_VERSIONS_MOST]):
            self.keep.append(body)
            self.prepared.api_versions[<int>version] = <const uint8_t *><const char *>body
            self.prepared.api_versions_bytes[<int>version] = <uint32_t>len(body)

    def set_session(self, uint32_t channel, uint64_t connection, **known: Any) -> None:
        """Record the result of authentication in the session, as `Sessions.set` does.

        Raise RuntimeError if the connection has a request under way.
        """
        cdef Channel *c = &self.t.channels[channel] if channel < self.t.channel_places else NULL
        if c != NULL and (c.state == ChannelState.CHANNEL_WAITING or c.window_count):
            raise RuntimeError(f"channel {channel} has a request under way: its session must not change")
        self.sessions.set(channel, connection, **known)

    def closed(self) -> list[tuple[Session, int, int]]:
        """Return (session, reason, detail) of channels closed since the last call, and free their places."""
        cdef uint32_t i
        cdef Reports *r = &self.t.reports
        cdef Channel *c
        out = []
        for i in range(r.closed_count):
            c = &self.t.channels[r.closed[i].channel]
            out.append((
                self.sessions.of(c.index, r.closed[i].connection), r.closed[i].reason, r.closed[i].detail))
            self._reported(c)
        r.closed_count = 0
        return out

    def late_answers(self) -> list[tuple[Session, int]]:
        """Return (session, API key) of answers that came after their connection was closed."""
        cdef uint32_t i
        cdef Reports *r = &self.t.reports
        out = [
            (self.sessions.of(r.late[i].channel, r.late[i].connection), r.late[i].detail)
            for i in range(r.late_count)
        ]
        for i in range(r.late_count):
            self._reported(&self.t.channels[r.late[i].channel])
        r.late_count = 0
        return out

    cdef _reported(self, Channel *c):
        c.unreported -= 1
        if c.state == ChannelState.CHANNEL_FREE:
            free_place(&self.t.lists, c)

    def close_connection(self, uint32_t channel, int reason, int64_t detail=0) -> None:
        """Close a connection that Python has failed to serve, so that other connections continue."""
        if channel < self.t.channels_used:
            close_channel(self.t, &self.t.channels[channel], reason, detail)
            publish(self.t)

    def told(self) -> list[tuple[bytes, int, int, int, int, int, int, int]]:
        """Return the fields of request_log.Ended for requests that have ended since the last call."""
        return take_told(&self.t.metering)

    # ---- orders

    def welcome_handler(self, uint32_t number) -> None:
        """Bind the rings of a handler that has started, perhaps in place of a dead handler.

        Do nothing if its rings are bound already, because the handler started before this process.
        """
        if self.t.peers.handlers[number].known:
            return
        cdef ChannelTurn *t = self.t
        cdef int process = FIRST_HANDLER + number
        cdef Ring requests = self.memory.ring(t.process, process)
        cdef Ring answers = self.memory.ring(process, t.process)
        cdef Doorbell bell = self.memory.doorbell(process)
        cdef Arena arena = self.memory.arena(process)
        cdef Peer *peer = &t.peers.handlers[number]
        heavy = self.memory.private.block("heavy")
        cdef unsigned char[::1] heavy_view = heavy
        self.rings[number] = (requests, answers, bell, arena, heavy)
        peer.requests = requests.ref
        peer.answers = answers.ref
        peer.bell = bell.ref
        peer.arena = arena.ref.base
        peer.heavy = <uint64_t *>&heavy_view[number * 8]
        peer.number = number
        peer.process = process
        peer.load = 0
        peer.heavy_until = 0
        forget_untaken(&t.peers, peer)
        peer.owed_count = 0
        peer.touched = False
        peer.wants_room = False
        peer.known = True
        peer.alive = True
        peer.leaving = False
        if number >= t.peers.handler_count:
            t.peers.handler_count = number + 1
        t.lists.soon = True

    def leave_handler(self, uint32_t number) -> None:
        """Give a handler no new requests. The handler finishes its present requests."""
        self.t.peers.handlers[number].leaving = True

    def fence_handler(self, uint32_t number) -> None:
        if self.t.peers.handlers[number].known:
            handler_died(self.t, number)
            self.t.lists.soon = True

    def fence_log(self) -> None:
        log_worker_died(self.t)
        publish(self.t)

    def welcome_log(self, uint32_t number=0) -> None:
        """Bind the ring of a log worker that has started, perhaps in place of a dead log worker."""
        cdef Ring answers = self.memory.ring(topology.log_worker(number), self.t.process)
        cdef Doorbell bell = self.memory.doorbell(topology.log_worker(number))
        self.logs[number] = (answers, bell)
        self.t.peers.log_answers[number], self.t.peers.log_bells[number] = answers.ref, bell.ref

    def limit(self, uint32_t frame_bytes_max, uint32_t queued_requests_max, uint64_t idle_ns) -> None:
        """Change the limits. A frame whose size was read already may exceed the new `frame_bytes_max`."""
        self.t.frame_bytes_max, self.t.queue.queued_requests_max, self.t.activity.idle_ns = (
            frame_bytes_max, queued_requests_max, idle_ns)
        self.t.lists.soon = True          # channels that wait for room in the queue may go on

    def set_window(self, uint32_t requests) -> None:
        """Serve up to `requests` requests of a connection at a time.

        Raise ValueError unless `requests` is from 1 to WINDOW_MOST.
        """
        cdef uint32_t before = self.t.window.window_most, i
        cdef Channel *c
        if not 1 <= requests <= WINDOW_MOST:
            raise ValueError(f"a window of {requests} requests: 1 to {WINDOW_MOST} are possible")
        self.t.window.window_most = requests
        for i in range(self.t.channels_used):
            c = &self.t.channels[i]
            if c.state == ChannelState.CHANNEL_READING and before <= c.window_count < requests:
                defer_reading(&self.t.lists, c)

    def stop_reading(self) -> None:
        """Begin no more requests, and close the connections that have none under way."""
        cdef uint32_t i
        self.t.stopping = True
        for i in range(self.t.channels_used):
            if self.t.channels[i].window_count:
                continue            # closed when the last of them is answered
            if self.t.channels[i].state in (ChannelState.CHANNEL_READING, ChannelState.CHANNEL_THROTTLED):
                close_channel(self.t, &self.t.channels[i], CloseReason.CLOSED_STOPPING, 0)

    def close_idle(self, uint64_t before_ns) -> None:
        """Close all connections whose socket was last ready before `before_ns` (CLOCK_MONOTONIC).

        A connection that waits for an answer of the broker is closed, too, as in Kafka.
        """
        close_idle_channels(self.t, before_ns)
        publish(self.t)

    def close_listener(self, int listener) -> None:
        """Close all connections of a listener."""
        close_all_of(self.t, listener)
        publish(self.t)

    def close_least_recently_active(self, listeners: Container[int] | None = None) -> int | None:
        """Close the least recently active connection (of `listeners`, if given) to make room for another one.

        Return the id of the closed connection, or None. (Kafka: Processor.closeExcessConnections.)
        """
        cdef uint32_t place = self.t.activity.links[self.t.channel_places].after
        cdef Channel *c
        while place != self.t.channel_places:
            c = &self.t.channels[place]
            if listeners is None or c.listener in listeners:
                connection = c.connection
                close_channel(self.t, c, CloseReason.CLOSED_EXCESS, 0)
                publish(self.t)
                return connection
            place = self.t.activity.links[place].after
        return None

    def close_parked(self) -> None:
        """Close the connections whose only request is parked (a long poll): a stop does not wait for it."""
        cdef uint32_t i
        for i in range(self.t.channels_used):
            if self.t.channels[i].state == ChannelState.CHANNEL_WAITING and self.t.channels[i].request.parked:
                close_channel(self.t, &self.t.channels[i], CloseReason.CLOSED_STOPPING, 0)
        publish(self.t)

    def open_connections(self) -> int:
        cdef uint32_t i, n = 0
        for i in range(self.t.channels_used):
            if self.t.channels[i].state not in (ChannelState.CHANNEL_FREE, ChannelState.CHANNEL_CLOSED):
                n += 1
        return n

    # ---- for tests: what lists.pyx has a table of

    def listed(self) -> dict[ChannelList, list[int]]:
        """Return the channels of each list, in the order of the list."""
        cdef Lists *lists = &self.t.lists
        cdef Reports *r = &self.t.reports
        return {
            ChannelList.LIST_HELD: [lists.held[i] for i in range(lists.held_count)],
            ChannelList.LIST_STARVED: [lists.starved[i] for i in range(lists.starved_count)],
            ChannelList.LIST_DEFERRED: [lists.deferred[i] for i in range(lists.deferred_count)],
            ChannelList.LIST_MARKED: [lists.marked[i] for i in range(lists.marked_count)],
            ChannelList.LIST_OPENING: [lists.opening[i] for i in range(lists.opening_count)],
            ChannelList.LIST_CLOSED: [r.closed[i].channel for i in range(r.closed_count)],
        }

    def moves(self) -> set[tuple[int, int]]:
        """Return (state, following state) of each change of state that channels have made."""
        return noted_moves(&self.t.lists)

    def entries(self) -> set[tuple[int, int]]:
        """Return (state, list) for each list that channels have entered in that state."""
        return noted_entries(&self.t.lists)
